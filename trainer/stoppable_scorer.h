// A way out of a validation that has just begun when its time is over.
//
// A search cannot be left half-way, but it ends soon when nothing is probable any more. The driver
// of a pipeline stops asking its model and answers NaN by itself; what comes out is thrown away.
// Other ranks of the pipeline, which are busy following, tell their driver of requests between two
// directions.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/comm/communicator.h"
#include "trainer/decode/scorer.h"

namespace deepnet {

using IsStopping = std::function<bool()>;

// Passes everything on until `is_stopping`, which is asked at every step and stays true.
class StoppableScorer : public Scorer, public PairScorer {
 public:
  StoppableScorer(Scorer& scorer, PairScorer& pairs, IsStopping is_stopping)
      : scorer_(scorer), pairs_(pairs), is_stopping_(std::move(is_stopping)) {}

  int64_t vocabulary_size() const override { return scorer_.vocabulary_size(); }
  std::unique_ptr<DecoderState> Start(std::span<const std::vector<int32_t>> sources) override;
  void Reorder(DecoderState& state, std::span<const int32_t> parents) override;
  void Step(DecoderState& state, std::span<const int32_t> tokens, float* log_probs) override;
  std::vector<double> LogProbabilities(std::span<const IdPair> pairs) override;

 private:
  struct State;

  Scorer& scorer_;
  PairScorer& pairs_;
  const IsStopping is_stopping_;
};

// Requests to the ranks of one pipeline, gathered by its driver: a byte from each of the others.
class PipelineStop {
 public:
  // Collective over `pipeline`, which nobody else uses and outlives this.
  static absl::StatusOr<std::unique_ptr<PipelineStop>> Make(Communicator& pipeline, int driver,
                                                            IsStopping is_stopping);

  // On the driver: whether any rank is stopping, as far as known. On others: of this rank.
  bool IsStopping();

  // Others than the driver, now and then: tells it, once.
  absl::Status Tell();

  // Collective, once, at the end.
  absl::Status Finish();

 private:
  PipelineStop(Communicator& pipeline, int driver, deepnet::IsStopping is_stopping)
      : pipeline_(pipeline), driver_(driver), is_stopping_(std::move(is_stopping)) {}

  absl::Status Send(char byte);

  Communicator& pipeline_;
  const int driver_;
  const deepnet::IsStopping is_stopping_;
  bool stopping_ = false;
  std::vector<char> bytes_;  // [rank]; 1: stopping
  std::vector<std::unique_ptr<Transfer>> transfers_;
};

}  // namespace deepnet
