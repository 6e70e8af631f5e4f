// The chunks of a model that one rank holds, as the stage of a pipeline: what a schedule drives. A
// single rank has the whole model as one chunk.
//
// Values and gradients that flow between chunks lie in pooled buffers, apart from what a chunk
// keeps for its backward pass. A chunk takes those at one of its cuts, works on them in place and
// leaves them at the other, so that a buffer moves through the rank without a copy: a received one
// becomes the next one to send. Where both sides of a cut are here, nothing else happens to it.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "parallel/exec/stage.h"
#include "parallel/plan/crossing.h"
#include "parallel/plan/shard.h"
#include "trainer/cut_buffers.h"
#include "trainer/data/microbatch.h"
#include "trainer/model/transformer.h"
#include "trainer/optim/gradient_sums.h"

namespace deepnet {

struct StageOptions {
  uint64_t seed = 0;
  double label_smoothing = 0.0;
  int virtual_replicas = 1;  // of this rank; divides its microbatches of a step
  // In a pipeline: the number of each of the model's chunks along the chain, and what crosses every
  // cut of it (MakeCrossings).
  std::vector<int> chunks = {0};
  std::vector<Crossing> crossings = std::vector<Crossing>(1);
};

// How the gradient of `model` falls into ranges that are complete at one moment: each chunk's with
// the last backward pass of a virtual replica, the output layer's, to which the loss adds, with its
// last forward pass.
std::vector<GradientBucket> MakeBuckets(const Transformer& model);

class TransformerStage : public Stage {
 public:
  // A rank alone with a whole model; sums are the stage's own.
  TransformerStage(Transformer& model, StageOptions options);
  // `sums` is over MakeBuckets(model), for as many local replicas as `options` say.
  TransformerStage(Transformer& model, StageOptions options, GradientSums& sums);

  // Clears the gradient; `batch`, the rank's microbatches, must outlive the step. Its
  // num_target_tokens are those of the step on all ranks.
  void BeginStep(const StepBatch& batch, int64_t step);

  // As in stage.h. Backward, or BackwardInput, of a chunk come in ascending microbatch order too:
  // both add to the gradients of norms and embeddings.
  absl::Status Forward(int chunk, int microbatch) override;
  absl::Status Backward(int chunk, int microbatch) override;
  absl::Status BackwardInput(int chunk, int microbatch) override;
  absl::Status BackwardWeight(int chunk, int microbatch) override;
  std::vector<Buffer> Buffers(Boundary boundary, int chunk, int microbatch) override;
  void Release(Boundary boundary, int chunk, int microbatch) override;

  // After the schedule: GradientSums::Finish.
  absl::Status FinishStep() { return sums_->Finish(); }

  // Of each of the rank's microbatches, summed over its target tokens; zeros before its Forward of
  // the output layer, and on ranks without one.
  const std::vector<LossSums>& losses() const { return losses_; }

 private:
  struct InFlight {
    int microbatch = -1;    // -1: free
    Chunk::Kept kept;       // free: without its layers' part
    at::Tensor memory_RD;   // operand; where this chunk or a later one of the rank reads it
    at::Tensor dhidden_RD;  // stream; what the loss left
  };
  // One of the rank's chunks.
  struct Part {
    const Chunk* chunk = nullptr;
    int number = 0;   // along the chain
    CutTensors sent;  // forward, to the chunk behind
    bool keeps_memory = false;
    int bucket = -1;                          // of its layers; -1: it has but the output layer
    int output_bucket = -1;                   // -1: no output layer
    int last_backward = -1;                   // microbatch
    std::vector<InFlight> in_flight;          // grows to the most that a schedule keeps alive
    std::map<int, DeferredWeights> deferred;  // by microbatch: behind its BackwardInput
    std::set<int> early;                      // microbatches whose BackwardWeight is done already
  };

  TransformerStage(Transformer& model, StageOptions options, GradientSums* sums);
  void MakeParts();
  Part& Find(int chunk);
  InFlight& Claim(Part& part, int microbatch);
  void Free(const Part& part, InFlight& slot);
  InFlight& FindInFlight(Part& part, int microbatch);
  MicrobatchPass Pass(int microbatch) const;
  int ReplicaOf(int microbatch) const;

  Flow ValuesFor(const Part& part, int microbatch);
  at::Tensor HeldMemory(int microbatch) const;
  absl::Status RunBackward(Part& part, int microbatch, DeferredWeights* deferred);
  absl::Status RunDeferred(Part& part, int microbatch);
  absl::Status FinishReplicasBefore(Part& part, int microbatch);
  absl::Status AfterMicrobatch(int bucket, int microbatch);

  Transformer& model_;
  StageOptions options_;
  std::unique_ptr<GradientSums> own_sums_;
  GradientSums* sums_;
  TensorPool deferred_pool_;
  ChunkPools pools_;  // what chunks do not hold for a microbatch
  CutBuffers cuts_;
  std::vector<Part> parts_;
  const StepBatch* batch_ = nullptr;
  int64_t step_ = 0;
  std::vector<LossSums> losses_;  // [microbatch]
};

}  // namespace deepnet
