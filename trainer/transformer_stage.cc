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

std::vector<GradientBucket> MakeBuckets(const Transformer& model) {
  std::vector<GradientBucket> buckets;
  int first = 0;  // in the rank's own layers
  for (int i = 0; i < static_cast<int>(model.chunks().size()); ++i) {
    const Chunk& chunk = model.chunks()[i];
    const int end = first + chunk.spec().layers.NumLayers();
    const int behind = chunk.has_output() ? end - 1 : end;
    const auto add = [&](int from, int to, bool in_forward) {
      const GradientSpan span = model.parameters().GradientRange(from, to);
      if (span.count > 0) buckets.push_back({span.begin, span.count, i, in_forward});
    };
    add(first, behind, /*in_forward=*/false);
    add(behind, end, /*in_forward=*/true);
    first = end;
  }
  return buckets;
}

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
    : model_(model), options_(std::move(options)), sums_(sums), cuts_(model, options_.crossings) {
  DEEPNET_CHECK_EQ(options_.chunks.size(), model.chunks().size());
  MakeParts();
}

void TransformerStage::MakeParts() {
  const int num_chunks = static_cast<int>(options_.crossings.size());
  bool read_behind = false;  // whether a later chunk of the rank reads the memory
  for (int i = static_cast<int>(options_.chunks.size()) - 1; i >= 0; --i) {
    Part part{.chunk = &model_.chunks()[i], .number = options_.chunks[i]};
    part.sent = part.chunk->outputs();
    const bool here = i + 1 < static_cast<int>(options_.chunks.size()) &&
                      options_.chunks[i + 1] == part.number + 1;
    if (!here && part.number + 1 < num_chunks) {
      part.sent = cuts_.Restrict({Way::kForward, part.number + 1, 0}, part.sent);
    }
    part.keeps_memory =
        part.chunk->decoder().size() > 0 ||
        (read_behind && (part.chunk->inputs().memory || part.chunk->ends_encoder()));
    read_behind |= part.chunk->inputs().memory;
    parts_.insert(parts_.begin(), std::move(part));
  }
  const std::vector<GradientBucket> buckets = MakeBuckets(model_);
  for (int b = 0; b < static_cast<int>(buckets.size()); ++b) {
    Part& part = parts_[buckets[b].chunk];
    (buckets[b].completes_in_forward ? part.output_bucket : part.bucket) = b;
  }
}

void TransformerStage::BeginStep(const StepBatch& batch, int64_t step) {
  DEEPNET_CHECK_EQ(batch.microbatches.size() % options_.virtual_replicas, 0u);
  batch_ = &batch;
  step_ = step;
  losses_.assign(batch.microbatches.size(), {});
  cuts_.Clear();
  for (Part& part : parts_) {
    part.last_backward = -1;
    part.deferred.clear();
    part.early.clear();
    for (InFlight& slot : part.in_flight) {
      if (slot.microbatch >= 0) Free(part, slot);  // an error ended the step
    }
  }
  sums_->BeginStep();
}

absl::Status TransformerStage::Forward(int chunk, int microbatch) {
  Part& part = Find(chunk);
  const Chunk& layers = *part.chunk;
  const LossOptions loss{.label_smoothing = options_.label_smoothing,
                         .gradient_scale = 1.0 / static_cast<double>(batch_->num_target_tokens)};
  const Flow values = ValuesFor(part, microbatch);
  InFlight& slot = Claim(part, microbatch);
  if (part.keeps_memory) slot.memory_RD = values.memory_RD;
  if (layers.has_output()) slot.dhidden_RD = cuts_.target().Claim();
  losses_[microbatch] =
      layers.Forward(Pass(microbatch), values, model_.work(), slot.kept, loss, slot.dhidden_RD);
  if (part.sent != CutTensors{}) {
    cuts_.Put({Way::kForward, chunk + 1, microbatch}, Only(part.sent, values));
  }
  return AfterMicrobatch(part.output_bucket, microbatch);
}

absl::Status TransformerStage::Backward(int chunk, int microbatch) {
  Part& part = Find(chunk);
  RETURN_IF_ERROR(RunBackward(part, microbatch, nullptr));
  return AfterMicrobatch(part.bucket, microbatch);
}

absl::Status TransformerStage::BackwardInput(int chunk, int microbatch) {
  Part& part = Find(chunk);
  DeferredWeights deferred(deferred_pool_);
  RETURN_IF_ERROR(RunBackward(part, microbatch, &deferred));
  part.deferred.emplace(microbatch, std::move(deferred));
  return absl::OkStatus();
}

absl::Status TransformerStage::BackwardWeight(int chunk, int microbatch) {
  Part& part = Find(chunk);
  if (part.early.erase(microbatch) > 0) return absl::OkStatus();
  return RunDeferred(part, microbatch);
}

absl::Status TransformerStage::RunBackward(Part& part, int microbatch, DeferredWeights* deferred) {
  DEEPNET_CHECK_LT(part.last_backward, microbatch) << "chunk " << part.number;
  part.last_backward = microbatch;
  RETURN_IF_ERROR(FinishReplicasBefore(part, microbatch));
  const Chunk& layers = *part.chunk;
  InFlight& slot = FindInFlight(part, microbatch);
  Flow gradients = cuts_.Take({Way::kBackward, part.number + 1, microbatch});
  if (layers.has_output()) gradients.target_RD = std::exchange(slot.dhidden_RD, at::Tensor());
  if (layers.ends_decoder()) gradients.memory_RD = cuts_.source().Claim();
  MicrobatchPass pass = Pass(microbatch);
  pass.deferred = deferred;
  layers.Backward(pass, gradients, slot.memory_RD, model_.work(), slot.kept);
  if (part.number > 0) {
    cuts_.Put({Way::kBackward, part.number, microbatch}, Only(layers.inputs(), gradients));
  }
  Free(part, slot);
  return absl::OkStatus();
}

absl::Status TransformerStage::RunDeferred(Part& part, int microbatch) {
  const auto found = part.deferred.find(microbatch);
  DEEPNET_CHECK(found != part.deferred.end())
      << "chunk " << part.number << ", microbatch " << microbatch << ": no weight gradients wait";
  found->second.Run(model_.ops());
  part.deferred.erase(found);
  return AfterMicrobatch(part.bucket, microbatch);
}

// An input pass adds to the gradients of norms and embeddings at once. So the replica before must
// be complete, its weight gradients too, even if the schedule has them later.
absl::Status TransformerStage::FinishReplicasBefore(Part& part, int microbatch) {
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

// `microbatch` has added to `bucket` all that it has to.
absl::Status TransformerStage::AfterMicrobatch(int bucket, int microbatch) {
  if (bucket < 0) return absl::OkStatus();
  const bool last = microbatch + 1 == static_cast<int>(batch_->microbatches.size());
  if (!last && ReplicaOf(microbatch + 1) == ReplicaOf(microbatch)) return absl::OkStatus();
  return sums_->ReplicaDone(bucket);
}

// What `part` takes, makes and runs on, on its way forward.
Flow TransformerStage::ValuesFor(const Part& part, int microbatch) {
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
  for (const Part& part : parts_) {
    for (const InFlight& slot : part.in_flight) {
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

TransformerStage::Part& TransformerStage::Find(int chunk) {
  for (Part& part : parts_) {
    if (part.number == chunk) return part;
  }
  DEEPNET_CHECK(false) << "chunk " << chunk << " is another rank's";
  return parts_.front();
}

MicrobatchPass TransformerStage::Pass(int microbatch) const {
  return MakePass(batch_->microbatches[microbatch], options_.seed, step_, /*training=*/true);
}

TransformerStage::InFlight& TransformerStage::Claim(Part& part, int microbatch) {
  for (InFlight& slot : part.in_flight) {
    if (slot.microbatch >= 0) continue;
    slot.microbatch = microbatch;
    part.chunk->TakeLayers(pools_, model_.work(), slot.kept);
    return slot;
  }
  InFlight slot{microbatch, part.chunk->MakeKeptFrom(pools_, model_.work()), {}, {}};
  return part.in_flight.emplace_back(std::move(slot));
}

void TransformerStage::Free(const Part& part, InFlight& slot) {
  part.chunk->GiveLayers(pools_, slot.kept);
  slot.memory_RD = slot.dhidden_RD = at::Tensor();
  slot.microbatch = -1;
}

TransformerStage::InFlight& TransformerStage::FindInFlight(Part& part, int microbatch) {
  for (InFlight& slot : part.in_flight) {
    if (slot.microbatch == microbatch) return slot;
  }
  DEEPNET_CHECK(false) << "chunk " << part.number << ": microbatch " << microbatch
                       << " has no forward pass";
  return part.in_flight.front();
}

}  // namespace deepnet
