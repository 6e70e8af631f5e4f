// The chunks of a model that one rank holds, as the stage of a pipeline: what a schedule drives. A
// single rank has the whole model as one chunk.
//
// Values and gradients that flow between chunks lie in pooled buffers, apart from what a chunk
// keeps for its backward pass. A chunk takes those at one of its cuts, works on them in place and
// leaves them at the other, so that a buffer moves through the rank without a copy: a received one
// becomes the next one to send. Where both sides of a cut are here, nothing else happens to it.
//
// The last backward pass of a virtual replica hands buckets of layers to GradientSums as it gets
// through them, so that their exchange runs beside the layers before; deferred weight gradients do
// the same.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "parallel/exec/stage.h"
#include "parallel/plan/stage_messages.h"
#include "trainer/cut_buffers.h"
#include "trainer/data/microbatch.h"
#include "trainer/gradient_buckets.h"
#include "trainer/model/layer_done.h"
#include "trainer/model/transformer.h"
#include "trainer/optim/gradient_sums.h"
#include "trainer/stage_part.h"

namespace deepnet {

struct StageOptions {
  uint64_t seed = 0;
  double label_smoothing = 0.0;
  int virtual_replicas = 1;  // of this rank; divides its microbatches of a step
  // In a pipeline: the number of each of the model's chunks along the chain, and what crosses every
  // cut of it (MakeStageMessages).
  std::vector<int> chunks = {0};
  std::vector<StageMessages> crossings = std::vector<StageMessages>(1);
};

class TransformerStage : public Stage {
 public:
  TransformerStage(const TransformerStage&) = delete;
  TransformerStage& operator=(const TransformerStage&) = delete;
  // A rank alone with a whole model; sums are the stage's own.
  TransformerStage(Transformer& model, StageOptions options);
  // `sums` is over MakeBuckets(model), for as many local replicas as `options` say.
  TransformerStage(Transformer& model, StageOptions options, GradientSums& sums);

  // Clears the gradient; `batch`, the rank's microbatches, must outlive the step. Its
  // num_target_tokens are those of the step on all ranks.
  void BeginStep(const StepBatch& batch, int64_t step);
  // From the next BeginStep on, `probe` is told of the sub-layers of the step's first microbatch;
  // null: nobody is.
  void Watch(SublayerProbe* probe) { probe_ = probe; }

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
  TransformerStage(Transformer& model, StageOptions options, GradientSums* sums);
  void MapBuckets();
  StagePart& Find(int chunk);
  MicrobatchPass Pass(int microbatch) const;
  int ReplicaOf(int microbatch) const;
  bool EndsReplica(int microbatch) const;

  Flow ValuesFor(const StagePart& part, int microbatch);
  at::Tensor HeldMemory(int microbatch) const;
  absl::Status RunBackward(StagePart& part, int microbatch, DeferredWeights* deferred,
                           const LayerDone* layer_done);
  absl::Status RunDeferred(StagePart& part, int microbatch);
  absl::Status FinishReplicasBefore(StagePart& part, int microbatch);
  const LayerDone* HandOverOf(int microbatch) const;

  Transformer& model_;
  StageOptions options_;
  std::unique_ptr<GradientSums> own_sums_;
  GradientSums* sums_;
  TensorPool deferred_pool_;
  ChunkPools pools_;  // what chunks do not hold for a microbatch
  CutBuffers cuts_;
  std::vector<StagePart> parts_;
  std::map<int, int> bucket_of_layer_;  // by the first layer of each but the output layer's
  int output_bucket_ = -1;              // -1: no output layer
  LayerDone hand_over_;                 // a bucket with its first layer, to sums_
  absl::Status handed_over_;            // how that went in this step
  SublayerProbe* probe_ = nullptr;
  const StepBatch* batch_ = nullptr;
  int64_t step_ = 0;
  std::vector<LossSums> losses_;  // [microbatch]
};

}  // namespace deepnet
