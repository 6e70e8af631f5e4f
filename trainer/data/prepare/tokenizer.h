// The tokenizer of a corpus: learned from what the scans sampled, given, or that of the corpus that
// is extended.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "proto/data.pb.h"
#include "trainer/data/prepare/context.h"
#include "trainer/data/sentence_pieces.h"

namespace deepnet {

bool LearnsTokenizer(const PrepareContext& context);

// Returns the path of the rules by which the tokenizer that is, or once was, learned rewrites text;
// empty: these are no file.
std::string NormalizationFile(const PrepareContext& context);

// Returns what the sentences are sampled by that a tokenizer learns from.
SentenceSampleSpec SampleSpecOf(const PrepareSpec& spec);

// Returns the bytes of the model on every rank; rank 0 has made or read it. Collective.
absl::StatusOr<std::string> MakeTokenizer(PrepareContext& context);

}  // namespace deepnet
