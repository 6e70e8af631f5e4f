// The bridge from a Vocabulary to decoding, which knows no tokenizer.
#pragma once

#include "trainer/data/vocabulary.h"
#include "trainer/decode/text_codec.h"

namespace deepnet {

// Encode and Decode of `vocabulary`, which must outlive the codec.
TextCodec MakeTextCodec(const Vocabulary& vocabulary);

}  // namespace deepnet
