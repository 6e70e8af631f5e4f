#include "tests/support/stepped_pair_scorer.h"

#include <algorithm>
#include <cstdint>
#include <memory>

#include "parallel/base/check.h"
#include "tests/support/host_scorer.h"

namespace deepnet::testing {

std::vector<double> SteppedPairScorer::LogProbabilities(std::span<const EncodedPair> pairs) {
  std::vector<double> log_probabilities(pairs.size(), 0.0);
  const size_t max_rows = static_cast<size_t>(max_rows_);
  for (size_t first = 0; first < pairs.size(); first += max_rows) {
    ScoreBatch(pairs.subspan(first, std::min(max_rows, pairs.size() - first)),
               &log_probabilities[first]);
  }
  return log_probabilities;
}

void SteppedPairScorer::ScoreBatch(std::span<const EncodedPair> pairs, double* log_probabilities) {
  const size_t vocabulary_size = static_cast<size_t>(scorer_.vocabulary_size());
  std::vector<std::vector<int32_t>> sources;
  std::vector<size_t> live;  // pair of each row
  for (size_t i = 0; i < pairs.size(); ++i) {
    DEEPNET_CHECK(!pairs[i].labels.empty()) << "pair " << i;
    sources.push_back(pairs[i].source);
    live.push_back(i);
  }
  const std::unique_ptr<DecoderState> state = scorer_.Start(sources);
  std::vector<int32_t> tokens(pairs.size(), kEos);
  for (size_t position = 0; !live.empty(); ++position) {
    const std::vector<float> log_probs = StepForAll(scorer_, *state, tokens);
    std::vector<int32_t> parents;
    std::vector<size_t> still_live;
    tokens.clear();
    for (size_t row = 0; row < live.size(); ++row) {
      const std::vector<int32_t>& target = pairs[live[row]].labels;
      const int32_t token = target[position];
      log_probabilities[live[row]] += log_probs[row * vocabulary_size + static_cast<size_t>(token)];
      if (position + 1 == target.size()) continue;
      parents.push_back(static_cast<int32_t>(row));
      tokens.push_back(token);
      still_live.push_back(live[row]);
    }
    if (!still_live.empty() && still_live.size() < live.size()) scorer_.Reorder(*state, parents);
    live = std::move(still_live);
  }
}

}  // namespace deepnet::testing
