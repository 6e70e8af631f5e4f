#include "tests/support/host_scorer.h"

#include <limits>

namespace deepnet::testing {

void HostScorer::Step(DecoderState& state, std::span<const int32_t> tokens,
                      const native::TokenChoices& choices) {
  std::vector<float> log_probs(tokens.size() * static_cast<size_t>(vocabulary_size()));
  StepRows(state, tokens, log_probs.data());
  for (int64_t i = 0; i < choices.count; ++i) {
    native::ChooseToken(log_probs.data(), vocabulary_size(), vocabulary_size(), choices, i);
  }
}

std::vector<float> StepForAll(Scorer& scorer, DecoderState& state,
                              std::span<const int32_t> tokens) {
  const size_t vocabulary = static_cast<size_t>(scorer.vocabulary_size());
  const std::vector<uint8_t> kinds(vocabulary, TokenKind::kOther);
  std::vector<native::TokenChoice> choices(tokens.size());
  for (size_t row = 0; row < tokens.size(); ++row) choices[row].row = static_cast<int32_t>(row);
  std::vector<native::TokenScore> chosen(tokens.size() * vocabulary);
  scorer.Step(state, tokens,
              {.count = static_cast<int64_t>(choices.size()),
               .choices = choices.data(),
               .kinds = kinds.data(),
               .k = static_cast<int>(vocabulary),
               .chosen = chosen.data()});
  std::vector<float> log_probs(chosen.size(), -std::numeric_limits<float>::infinity());
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (chosen[i].token < 0) continue;
    const size_t row = i / vocabulary;
    log_probs[row * vocabulary + static_cast<size_t>(chosen[i].token)] = chosen[i].log_prob;
  }
  return log_probs;
}

}  // namespace deepnet::testing
