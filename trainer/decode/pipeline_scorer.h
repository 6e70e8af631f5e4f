// Search and scoring through a pipeline: the rank with the output layer drives, the others follow.
//
//   driver      Start, Reorder, Step, ...: sends a command of some integers, then computes its part
//   followers   ServePipeline: carry out one command after the other, until told to stop
//
// Every rank carries out the same calls on a ModelScorer of its own chunks: a boundary is crossed
// by one row of activations a hypothesis and step, log-probabilities stay on the driver. Results
// are those of ModelScorer over the complete model, bit for bit.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "trainer/decode/model_scorer.h"
#include "trainer/decode/pipeline_link.h"
#include "trainer/decode/scorer.h"
#include "trainer/model/transformer.h"

namespace deepnet {

// The driver's side. After an error of the link, and once it is stopping, no tokens are chosen and
// log-probabilities are NaN: a search cannot be left half-way, but it ends soon when nothing is
// possible any more.
class PipelineScorer : public Scorer, public PairScorer {
 public:
  // `model`, the chunks of this rank, and `link` outlive this. `is_stopping` stays true once it is;
  // then the model is not asked any more. It is asked at every step and after every microbatch of
  // pairs.
  PipelineScorer(
      Transformer& model, PipelineLink& link,
      std::function<bool()> is_stopping = [] { return false; })
      : link_(link),
        is_stopping_(std::move(is_stopping)),
        scorer_(model, &link),
        pair_scorer_(model, &link, [this] { is_stopping_(); }) {}

  int64_t vocabulary_size() const override { return scorer_.vocabulary_size(); }
  std::unique_ptr<DecoderState> Start(std::span<const std::vector<int32_t>> sources) override;
  void Reorder(DecoderState& state, std::span<const int32_t> parents) override;
  void Step(DecoderState& state, std::span<const int32_t> tokens,
            const native::TokenChoices& choices) override;
  std::vector<double> LogProbabilities(std::span<const EncodedPair> pairs) override;

  // Calls `show` of ServePipeline on the other ranks.
  void Show(const std::string& what, double fraction);

  // Ends ServePipeline on the other ranks. Once, when no state is left. The first error of all.
  absl::Status Stop();

 private:
  struct State;

  PipelineLink& link_;
  const std::function<bool()> is_stopping_;
  ModelScorer scorer_;
  ModelPairScorer pair_scorer_;
  int32_t next_state_ = 0;
};

// Called with what is being done and the fraction that is done.
using ShowProgress = std::function<void(const std::string& what, double fraction)>;

// The followers' side: serves the driver until it stops, or until the first error, which is
// returned.
absl::Status ServePipeline(Transformer& model, PipelineLink& link, const ShowProgress& show = {});

}  // namespace deepnet
