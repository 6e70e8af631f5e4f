// Scorers whose distributions are on the host, and the distributions of any scorer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trainer/decode/scorer.h"

namespace deepnet::testing {

class HostScorer : public Scorer {
 public:
  // Feeds the tokens and writes the log-probabilities after them, [num_rows, vocabulary_size].
  virtual void StepRows(DecoderState& state, std::span<const int32_t> tokens, float* log_probs) = 0;

  void Step(DecoderState& state, std::span<const int32_t> tokens,
            const native::TokenChoices& choices) final;
};

// Feeds the tokens and returns all log-probabilities after them, [num_rows, vocabulary_size]; what
// is not a number is -infinity.
std::vector<float> StepForAll(Scorer& scorer, DecoderState& state, std::span<const int32_t> tokens);

}  // namespace deepnet::testing
