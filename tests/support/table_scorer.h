// A Scorer without a model, whose distribution after each history is a random table entry.
//
// log p(token | source, history) is the log-softmax of `sharpness` times standard normals that are
// a function of (seed, source, history, token) alone, so every search strategy sees the same table
// and an oracle can enumerate it. History: all tokens fed, the first </s> included.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tests/support/host_scorer.h"
#include "trainer/decode/scorer.h"

namespace deepnet::testing {

struct TableScorerOptions {
  int64_t vocabulary_size = 6;
  uint64_t seed = 1;
  double sharpness = 1.0;         // 0: uniform
  std::vector<int32_t> likely{};  // ids whose logit is raised by 3: temptations
};

class TableScorer : public HostScorer {
 public:
  explicit TableScorer(TableScorerOptions options) : options_(std::move(options)) {}

  int64_t vocabulary_size() const override { return options_.vocabulary_size; }
  std::unique_ptr<DecoderState> Start(std::span<const std::vector<int32_t>> sources) override;
  void Reorder(DecoderState& state, std::span<const int32_t> parents) override;
  void StepRows(DecoderState& state, std::span<const int32_t> tokens, float* log_probs) override;

  // Returns what StepRows writes for a row with this source after these tokens were fed.
  std::vector<float> LogProbs(std::span<const int32_t> source,
                              std::span<const int32_t> history) const;

  // Rows of each Step so far.
  const std::vector<int>& rows_per_step() const { return rows_per_step_; }

 private:
  TableScorerOptions options_;
  std::vector<int> rows_per_step_;
};

}  // namespace deepnet::testing
