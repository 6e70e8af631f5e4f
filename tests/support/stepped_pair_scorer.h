// A PairScorer over any Scorer, one token at a time: the slow twin of ModelPairScorer. NEVER FAST.
#pragma once

#include <span>
#include <vector>

#include "trainer/decode/scorer.h"

namespace deepnet::testing {

// Feeds the target one token at a time. Sums are left folds in double.
class SteppedPairScorer : public PairScorer {
 public:
  // `scorer` must outlive this. At most `max_rows` >= 1 pairs are scored together.
  explicit SteppedPairScorer(Scorer& scorer, int max_rows = 64)
      : scorer_(scorer), max_rows_(max_rows) {}

  std::vector<double> LogProbabilities(std::span<const EncodedPair> pairs) override;

 private:
  void ScoreBatch(std::span<const EncodedPair> pairs, double* log_probabilities);

  Scorer& scorer_;
  const int max_rows_;
};

}  // namespace deepnet::testing
