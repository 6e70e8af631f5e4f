#include "trainer/decode/vocabulary_codec.h"

namespace deepnet {

TextCodec MakeTextCodec(const Vocabulary& vocabulary) {
  return {.encode = [&vocabulary](std::string_view text) { return vocabulary.Encode(text); },
          .decode = [&vocabulary](std::span<const int32_t> ids) { return vocabulary.Decode(ids); }};
}

}  // namespace deepnet
