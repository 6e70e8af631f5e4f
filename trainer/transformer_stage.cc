#include "trainer/transformer_stage.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "parallel/base/check.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

using Way = CutBuffers::Way;

bool IsReceived(Boundary boundary) {
  return boundary == Boundary::kInput || boundary == Boundary::kOutputGradient;
}

// Whether `boundary` of a chunk is the cut before it; otherwise it is the one behind.
bool IsBefore(Boundary boundary) {
  return boundary == Boundary::kInput || boundary == Boundary::kInputGradient;
}

CutBuffers::Place PlaceOf(Boundary boundary, int chunk, int microbatch) {
  const bool forward = boundary == Boundary::kInput || boundary == Boundary::kOutput;
  return {forward ? Way::kForward : Way::kBackward, IsBefore(boundary) ? chunk : chunk + 1,
          microbatch};
}

}  // namespace

TransformerStage::TransformerStage(Transformer& model, StageOptions options)
    : TransformerStage(model, std::move(options), nullptr) {
  const Inventory& inventory = model.parameters().inventory();
  own_sums_ = std::make_unique<GradientSums>(
      model.ops(), model.parameters(),
      MakeShardLayout(inventory, inventory, MakeBuckets(model), ShardOptions{}), Groups{},
      GradientSumsOptions{.local_replicas = options_.virtual_replicas});
  sums_ = own_sums_.get();
}

TransformerStage::TransformerStage(Transformer& model, StageOptions options, GradientSums& sums)
    : TransformerStage(model, std::move(options), &sums) {}

TransformerStage::TransformerStage(Transformer& model, StageOptions options, GradientSums* sums)
    : model_(model),
      options_(std::move(options)),
      sums_(sums),
      cuts_(model, options_.crossings),
      parts_(MakeStageParts(model, options_.chunks, static_cast<int>(options_.crossings.size()),
                            cuts_)) {
  MapBuckets();
  hand_over_ = [this](int layer) {
    const auto found = bucket_of_layer_.find(layer);
    if (found != bucket_of_layer_.end()) handed_over_.Update(sums_->ReplicaDone(found->second));
  };
}

void TransformerStage::MapBuckets() {
  const std::vector<GradientBucket> buckets = MakeBuckets(model_);
  for (int b = 0; b < static_cast<int>(buckets.size()); ++b) {
    if (buckets[b].completes_in_forward) {
      output_bucket_ = b;
    } else {
      bucket_of_layer_[buckets[b].first_layer] = b;
    }
  }
}

void TransformerStage::BeginStep(const StepBatch& batch, int64_t step) {
  DEEPNET_CHECK_EQ(batch.microbatches.size() % options_.virtual_replicas, 0u);
  batch_ = &batch;
  step_ = step;
  losses_.assign(batch.microbatches.size(), {});
  cuts_.Clear();
  for (StagePart& part : parts_) part.Clear(pools_);
  handed_over_ = absl::OkStatus();
  sums_->BeginStep();
}

absl::Status TransformerStage::Forward(int chunk, int microbatch) {
  StagePart& part = Find(chunk);
  const Chunk& layers = *part.chunk;
  const LossOptions loss{.label_smoothing = options_.label_smoothing,
                         .gradient_scale = 1.0 / static_cast<double>(batch_->num_target_tokens)};
  const Flow values = ValuesFor(part, microbatch);
  StagePart::InFlight& slot = part.Claim(microbatch, pools_, model_.work());
  if (part.keeps_memory) slot.memory_RD = values.memory_RD;
  if (layers.has_output()) slot.dhidden_RD = cuts_.target().Claim();
  MicrobatchPass pass = Pass(microbatch);
  if (microbatch == 0) pass.probe = probe_;
  losses_[microbatch] =
      layers.Forward(pass, values, model_.work(), slot.kept, loss, slot.dhidden_RD);
  if (part.sent != CutTensors{}) {
    cuts_.Put({Way::kForward, chunk + 1, microbatch}, Only(part.sent, values));
  }
  if (!layers.has_output() || !EndsReplica(microbatch)) return absl::OkStatus();
  return sums_->ReplicaDone(output_bucket_);
}

absl::Status TransformerStage::Backward(int chunk, int microbatch) {
  RETURN_IF_ERROR(RunBackward(Find(chunk), microbatch, nullptr, HandOverOf(microbatch)));
  return handed_over_;
}

absl::Status TransformerStage::BackwardInput(int chunk, int microbatch) {
  StagePart& part = Find(chunk);
  DeferredWeights deferred(deferred_pool_);
  const LayerDone end_layer = [&](int layer) { deferred.EndLayer(layer); };
  RETURN_IF_ERROR(
      RunBackward(part, microbatch, &deferred, EndsReplica(microbatch) ? &end_layer : nullptr));
  part.deferred.emplace(microbatch, std::move(deferred));
  return absl::OkStatus();
}

absl::Status TransformerStage::BackwardWeight(int chunk, int microbatch) {
  StagePart& part = Find(chunk);
  if (part.early.erase(microbatch) > 0) return absl::OkStatus();
  return RunDeferred(part, microbatch);
}

absl::Status TransformerStage::RunBackward(StagePart& part, int microbatch,
                                           DeferredWeights* deferred, const LayerDone* layer_done) {
  DEEPNET_CHECK_LT(part.last_backward, microbatch) << "chunk " << part.number;
  part.last_backward = microbatch;
  RETURN_IF_ERROR(FinishReplicasBefore(part, microbatch));
  const Chunk& layers = *part.chunk;
  StagePart::InFlight& slot = part.Find(microbatch);
  Flow gradients = cuts_.Take({Way::kBackward, part.number + 1, microbatch});
  if (layers.has_output()) gradients.target_RD = std::exchange(slot.dhidden_RD, at::Tensor());
  if (layers.ends_decoder() && layers.reads_memory()) gradients.memory_RD = cuts_.source().Claim();
  MicrobatchPass pass = Pass(microbatch);
  pass.deferred = deferred;
  pass.layer_done = layer_done;
  layers.Backward(pass, gradients, slot.memory_RD, model_.work(), slot.kept);
  if (part.number > 0) {
    cuts_.Put({Way::kBackward, part.number, microbatch}, Only(layers.inputs(), gradients));
  }
  part.Free(slot, pools_);
  return absl::OkStatus();
}

absl::Status TransformerStage::RunDeferred(StagePart& part, int microbatch) {
  const auto found = part.deferred.find(microbatch);
  DEEPNET_CHECK(found != part.deferred.end())
      << "chunk " << part.number << ", microbatch " << microbatch << ": no weight gradients wait";
  found->second.Run(model_.ops(), HandOverOf(microbatch));
  part.deferred.erase(found);
  return handed_over_;
}

// An input pass adds to the gradients of norms and embeddings at once. So the replica before must
// be complete, its weight gradients too, even if the schedule has them later.
absl::Status TransformerStage::FinishReplicasBefore(StagePart& part, int microbatch) {
  while (!part.deferred.empty()) {
    const int waiting = part.deferred.begin()->first;
    if (ReplicaOf(waiting) == ReplicaOf(microbatch)) break;
    part.early.insert(waiting);
    RETURN_IF_ERROR(RunDeferred(part, waiting));
  }
  return absl::OkStatus();
}

int TransformerStage::ReplicaOf(int microbatch) const {
  return microbatch * options_.virtual_replicas / static_cast<int>(batch_->microbatches.size());
}

bool TransformerStage::EndsReplica(int microbatch) const {
  const bool last = microbatch + 1 == static_cast<int>(batch_->microbatches.size());
  return last || ReplicaOf(microbatch + 1) != ReplicaOf(microbatch);
}

// What hears of the layers that `microbatch` completes: null unless their replica is complete too.
const LayerDone* TransformerStage::HandOverOf(int microbatch) const {
  return EndsReplica(microbatch) ? &hand_over_ : nullptr;
}

// What `part` takes, makes and runs on, on its way forward.
Flow TransformerStage::ValuesFor(const StagePart& part, int microbatch) {
  const Chunk& layers = *part.chunk;
  Flow values = cuts_.Take({Way::kForward, part.number, microbatch});
  if (layers.has_source() && !layers.inputs().source) values.source_RD = cuts_.source().Claim();
  if (layers.has_target() && !layers.inputs().target) values.target_RD = cuts_.target().Claim();
  if (layers.ends_encoder()) values.memory_RD = cuts_.memory().Claim();
  if (layers.inputs().memory && !values.memory_RD.defined()) {
    values.memory_RD = HeldMemory(microbatch);
  }
  return values;
}

// The memory that an earlier chunk of the rank took or made.
at::Tensor TransformerStage::HeldMemory(int microbatch) const {
  for (const StagePart& part : parts_) {
    for (const StagePart::InFlight& slot : part.in_flight) {
      if (slot.microbatch == microbatch && slot.memory_RD.defined()) return slot.memory_RD;
    }
  }
  DEEPNET_CHECK(false) << "nobody left the memory of microbatch " << microbatch;
  return at::Tensor();
}

std::vector<Buffer> TransformerStage::Buffers(Boundary boundary, int chunk, int microbatch) {
  const Chunk& layers = *Find(chunk).chunk;
  return cuts_.Buffers(PlaceOf(boundary, chunk, microbatch),
                       IsBefore(boundary) ? layers.inputs() : layers.outputs(),
                       IsReceived(boundary));
}

void TransformerStage::Release(Boundary boundary, int chunk, int microbatch) {
  DEEPNET_CHECK(!IsReceived(boundary));
  cuts_.Take(PlaceOf(boundary, chunk, microbatch));
}

StagePart& TransformerStage::Find(int chunk) {
  for (StagePart& part : parts_) {
    if (part.number == chunk) return part;
  }
  DEEPNET_CHECK(false) << "chunk " << chunk << " is another rank's";
  return parts_.front();
}

MicrobatchPass TransformerStage::Pass(int microbatch) const {
  return MakePass(batch_->microbatches[microbatch], options_.seed, step_, /*training=*/true);
}

}  // namespace deepnet
