// How far a model has moved: ||F(x, theta_t) - F(x, theta_0)||, the quantity that DeepNet bounds
// (section 4) and that its figures 4 and 5 show.
//
// F is the decoder's output, the rows that the output layer turns into logits, without dropout; x
// is one fixed microbatch of T target tokens. The Frobenius norm over all rows is given a token, /
// sqrt(T): the root mean square over tokens of the length of a row's change, which figure 4 shows.
// The protocol, and what it was compared with: docs/design/instruments.md. A pipeline's bits are
// those of one rank.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "parallel/comm/communicator.h"
#include "proto/run.pb.h"
#include "trainer/data/microbatch.h"
#include "trainer/decode/pipeline_link.h"
#include "trainer/rank_context.h"

namespace deepnet {

// F of one microbatch.
struct OutputRows {
  int64_t tokens = 0;
  int64_t width = 0;
  std::vector<float> values;  // [tokens, width]; empty on ranks without the output layer

  friend bool operator==(const OutputRows&, const OutputRows&) = default;
};

// Returns the distance a token of rows of the same shape.
double ChangeOf(const OutputRows& rows, const OutputRows& reference);

// F on one rank of a pipeline.
class OutputProbe {
 public:
  // Collective over part.pipeline. `part` outlives the probe; nobody waits longer than `limit` for
  // a peer.
  static absl::StatusOr<std::unique_ptr<OutputProbe>> Make(RankContext& part, Microbatch microbatch,
                                                           absl::Duration limit);

  const Microbatch& microbatch() const { return microbatch_; }
  bool has_output() const { return has_output_; }  // Rows has values here

  // With the working copies of now (Refresh), as a forward pass after `step` steps computes it.
  // Collective over part.pipeline.
  absl::StatusOr<OutputRows> Rows(int64_t step);

 private:
  OutputProbe(RankContext& part, Microbatch microbatch);

  RankContext& part_;
  const Microbatch microbatch_;
  bool has_output_ = false;
  std::unique_ptr<Communicator> messages_;  // null: the rank is alone
  std::unique_ptr<PipelineLink> link_;      // likewise
  std::unique_ptr<Activations> kept_;
};

// Which parameters the updates move; the others stay as they started.
enum class Moving {
  kAll,
  kMatrices,  // all but gains and biases: what the paper's bound is over
};

// Returns the batch of a step, from 0.
using BatchOfStep = absl::FunctionRef<absl::StatusOr<StepBatch>(int64_t step)>;

// Trains `run` (defaults filled in, seed included) as one rank for `updates` steps, at least 1, and
// returns how far that moved F, a token. x is the first microbatch of the step after the last. A
// step that is skipped because it is not finite leaves the weights as they are.
absl::StatusOr<double> ModelUpdate(const RunSpec& run, int64_t updates, Moving moving,
                                   BatchOfStep batch_of);

// Returns a batch of made-up pieces, drawn evenly, in sentences of 4 to 60 tokens a side: a
// function of run.seed and `step`, of the capacities in run.data.
StepBatch MakeMadeUpBatch(const RunSpec& run, int64_t step);

}  // namespace deepnet
