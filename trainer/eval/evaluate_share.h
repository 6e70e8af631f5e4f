// Several evaluators, one for each replica of a model, share the sentences of every direction: each
// translates and scores a contiguous part, then all have what all found out, in order. So every sum
// over sentences is the one that a single evaluator would take.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace deepnet {

struct EvaluateShare {
  int part = 0;  // of num_parts
  int num_parts = 1;
  // Collective over the parts: every part's bytes in order of parts, or everybody's error if a part
  // has one. Not called if num_parts is 1.
  std::function<absl::StatusOr<std::vector<std::string>>(const absl::StatusOr<std::string>& mine)>
      gather = {};
};

// Sentences [first, end) of a part.
struct SentenceRange {
  size_t first = 0;
  size_t end = 0;

  friend bool operator==(const SentenceRange&, const SentenceRange&) = default;
};

// Ranges of successive parts follow each other and differ by at most one sentence in length.
SentenceRange RangeOf(const EvaluateShare& share, size_t num_sentences);

// What evaluators find out about sentences of one direction.
struct SentenceScores {
  std::vector<std::string> hypotheses;    // one a sentence; single lines
  std::vector<double> log_probabilities;  // of the references that the model takes
  int64_t num_tokens = 0;                 // of those references

  friend bool operator==(const SentenceScores&, const SentenceScores&) = default;
};

// Of all parts, on every part.
absl::StatusOr<SentenceScores> Gather(const EvaluateShare& share,
                                      const absl::StatusOr<SentenceScores>& mine);

}  // namespace deepnet
