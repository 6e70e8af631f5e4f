// The chunks of a model that one rank holds, as a stage of the pipeline: the object that a schedule
// drives. A single rank holds the whole model as one chunk.
//
// The last backward pass of a virtual replica hands buckets of layers to GradientSums as soon as it
// is through with them, so that their exchange overlaps the layers before them. Deferred weight
// gradients do the same.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

#include "parallel/comm/communicator.h"
#include "parallel/exec/stage.h"
#include "parallel/plan/inventory.h"
#include "parallel/plan/schedule.h"
#include "parallel/plan/shard.h"
#include "trainer/boundary_pool.h"
#include "trainer/data/microbatch.h"
#include "trainer/kernels/aten.h"
#include "trainer/model/pass.h"
#include "trainer/model/transformer.h"
#include "trainer/optim/gradient_sums.h"

namespace deepnet {

// Returns the parts of a rank's gradient that are handed over to be summed, each as soon as it is
// complete, in the order of the gradient. The output layer, to which the loss adds, is a bucket of
// its own and complete with a virtual replica's last forward pass. The other layers of a chunk are
// cut by LayerGroupEnds; a bucket is complete when the last pass that adds to it is through with
// its first layer.
std::vector<GradientBucket> MakeBuckets(const Transformer& model);

// Sees all passes of a step, its sub-layers included, and changes nothing.
class StageProbe : public SublayerProbe {
 public:
  // `values` as the forward pass of `chunk` left them, on `rows`. With the output layer, that
  // layer's gradient is what it and earlier passes of the virtual replica have added.
  virtual void AfterForward(const Chunk& chunk, const MicrobatchRows& rows,
                            const BoundaryActivations& values) = 0;
  // After each pass that adds to the gradients of the other layers of `chunk`, before they are
  // handed over.
  virtual void AfterBackward(const Chunk& chunk) = 0;
};

struct PipelineStageOptions {
  uint64_t seed = 0;
  double label_smoothing = 0.0;
  int virtual_replicas = 1;  // of this rank; divides its microbatches of a step
  // In a pipeline: the number of each of the model's chunks along the chain, and what crosses every
  // boundary of the chain (MakeStageMessages).
  std::vector<int> chunks = {0};
  std::vector<StageMessages> messages = std::vector<StageMessages>(1);
};

class PipelineStage : public Stage {
 public:
  // `model` and `sums` outlive this. `sums` is over MakeBuckets(model), for as many local replicas
  // as `options` say.
  PipelineStage(Transformer& model, PipelineStageOptions options, GradientSums& sums);
  PipelineStage(const PipelineStage&) = delete;
  PipelineStage& operator=(const PipelineStage&) = delete;

  // Clears the gradient and whatever a step left that ended with an error. `batch`, the rank's
  // microbatches, outlives the step; its num_target_tokens counts the step on all ranks. Gradients
  // are those of the loss summed over the step's tokens times `loss_scale`; 0: of its mean.
  void BeginStep(const StepBatch& batch, int64_t step, double loss_scale = 0.0);
  // From the next BeginStep on, `probe` is told of the sub-layers of the step's first microbatch;
  // null: nobody is.
  void Watch(SublayerProbe* probe) { probe_ = probe; }
  // From the next BeginStep on, `inspector` alone sees all passes; null: nobody does.
  void Inspect(StageProbe* inspector) { inspector_ = inspector; }

  // As in stage.h. Backward, or BackwardInput, of a chunk come in ascending microbatch order too,
  // since both add to the gradients of norms and embeddings.
  absl::Status Forward(int chunk, int microbatch) override;
  absl::Status Backward(int chunk, int microbatch) override;
  absl::Status BackwardInput(int chunk, int microbatch) override;
  absl::Status BackwardWeight(int chunk, int microbatch) override;
  std::vector<Buffer> Buffers(Boundary boundary, int chunk, int microbatch) override;
  void Release(Boundary boundary, int chunk, int microbatch) override;

  // The loss of each of the rank's microbatches, summed over its target tokens, after a
  // DeviceSession::ReadBack. Zeros before its Forward of the output layer and on ranks without it.
  const std::vector<LossSums>& losses() const { return losses_; }

 private:
  // The state of one microbatch in a chunk from its forward to its backward pass.
  struct Slot {
    int microbatch = -1;           // -1: free
    Chunk::Kept kept;              // while free, without its layers' part
    at::Tensor encoder_output_RD;  // where this chunk or a later one of the rank reads it
    at::Tensor dhidden_RD;         // the gradient that the loss left
  };

  // One of the rank's chunks, with the microbatches that are in flight in it.
  struct ModelChunk {
    const Chunk* layers = nullptr;
    int number = 0;    // along the chain
    BoundarySet sent;  // forward, to the next chunk
    bool keeps_encoder_output = false;
    at::Tensor gradient;                      // of its layers, a part of Parameters::gradient
    int last_backward = -1;                   // microbatch
    std::vector<Slot> slots;                  // grows to the most that a schedule keeps alive
    std::map<int, DeferredWeights> deferred;  // by microbatch, from BackwardInput on
    std::set<int> early;  // microbatches whose weight gradients ran before their BackwardWeight
  };

  // A pass of a microbatch through a chunk. It can be run again on the same `inputs`.
  struct ChunkPass {
    Op op;
    ModelChunk& chunk;
    int microbatch;
    std::vector<at::Tensor> inputs;  // boundary activations, which it changes
    absl::FunctionRef<void(MicrobatchPass pass)> run;
    const DeferredWeights* deferred = nullptr;  // that it fills; null: none
  };

  void MakeChunks(const Transformer& model);
  void Run(const ChunkPass& pass);
  ModelChunk& Find(int chunk);
  Slot& Claim(ModelChunk& chunk, int microbatch);
  Slot& Find(ModelChunk& chunk, int microbatch);
  void Free(const ModelChunk& chunk, Slot& slot);

  int ReplicaOf(int microbatch) const;
  bool EndsReplica(int microbatch) const;
  BoundaryActivations ValuesFor(const ModelChunk& chunk, int microbatch);
  at::Tensor HeldEncoderOutput(int microbatch) const;
  absl::Status RunBackward(ModelChunk& chunk, int microbatch, DeferredWeights* deferred,
                           const LayerDone* layer_done);
  absl::Status RunDeferred(ModelChunk& chunk, int microbatch);
  absl::Status FinishReplicasBefore(ModelChunk& chunk, int microbatch);
  const LayerDone* HandOverOf(int microbatch) const;

  Transformer& model_;
  const PipelineStageOptions options_;
  GradientSums& sums_;
  TensorPool deferred_pool_;
  ChunkPools pools_;  // buffers of microbatches in flight that chunks share
  BoundaryPool boundaries_;
  std::vector<ModelChunk> chunks_;
  std::map<int, int> bucket_of_layer_;  // by a bucket's first layer; without the output layer's
  int output_bucket_ = -1;              // -1: no output layer
  LayerDone hand_over_;                 // hands a bucket over with its first layer
  std::vector<int>* held_ = nullptr;    // layers that wait to be handed over; null: none has to
  absl::Status handed_over_;            // the first error of that in this step
  SublayerProbe* probe_ = nullptr;
  StageProbe* inspector_ = nullptr;
  double gradient_scale_ = 1.0;  // of the loss of a token
  const StepBatch* batch_ = nullptr;
  std::vector<MicrobatchPass> passes_;  // [microbatch] of the step
  std::vector<LossSums> losses_;        // [microbatch]
};

}  // namespace deepnet
