#include "trainer/pipeline_stage.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

using Way = BoundaryPool::Way;

bool IsReceived(Boundary boundary) {
  return boundary == Boundary::kInput || boundary == Boundary::kOutputGradient;
}

// Returns whether `boundary` is the one before the chunk; otherwise it is the one after.
bool IsBefore(Boundary boundary) {
  return boundary == Boundary::kInput || boundary == Boundary::kInputGradient;
}

BoundaryPool::Place PlaceOf(Boundary boundary, int chunk, int microbatch) {
  const bool forward = boundary == Boundary::kInput || boundary == Boundary::kOutput;
  return {forward ? Way::kForward : Way::kBackward, IsBefore(boundary) ? chunk : chunk + 1,
          microbatch};
}

// Returns those parts of `flow` that `tensors` names.
BoundaryActivations Only(const BoundarySet& tensors, const BoundaryActivations& flow) {
  BoundaryActivations only;
  if (tensors.source) only.source_RD = flow.source_RD;
  if (tensors.encoder_output) only.encoder_output_RD = flow.encoder_output_RD;
  if (tensors.target) only.target_RD = flow.target_RD;
  return only;
}

std::vector<at::Tensor> Defined(const BoundaryActivations& flow, const at::Tensor& dhidden_RD) {
  std::vector<at::Tensor> defined;
  for (const at::Tensor& x : {flow.source_RD, flow.encoder_output_RD, flow.target_RD, dhidden_RD}) {
    if (x.defined()) defined.push_back(x);
  }
  return defined;
}

const char* TextOf(Op op) {
  if (op == Op::kForward) return "the forward pass";
  if (op == Op::kBackwardWeight) return "weight gradients";
  return "the backward pass";
}

}  // namespace

std::vector<GradientBucket> MakeBuckets(const Transformer& model) {
  const std::vector<int> ends = LayerGroupEnds(model.whole());
  std::vector<GradientBucket> buckets;
  int before = 0;  // layers of the rank in earlier chunks
  for (int c = 0; c < static_cast<int>(model.chunks().size()); ++c) {
    const Chunk& chunk = model.chunks()[c];
    const LayerSpan span = chunk.spec().layers;
    const int here = before - span.first;  // from a layer of the chain to the rank's own number
    const auto add = [&](int from, int to, bool in_forward) {
      const GradientSpan range = model.parameters().GradientRange(from + here, to + here);
      if (range.count > 0) buckets.push_back({range.begin, range.count, c, from, in_forward});
    };
    const int output = chunk.has_output() ? span.end - 1 : span.end;
    for (int from = span.first; from < output;) {
      const int to = std::min(output, *std::upper_bound(ends.begin(), ends.end(), from));
      add(from, to, /*in_forward=*/false);
      from = to;
    }
    add(output, span.end, /*in_forward=*/true);
    before += span.NumLayers();
  }
  return buckets;
}

PipelineStage::PipelineStage(Transformer& model, PipelineStageOptions options, GradientSums& sums)
    : model_(model),
      options_(std::move(options)),
      sums_(sums),
      boundaries_(model, options_.messages) {
  MakeChunks(model);
  const std::vector<GradientBucket> buckets = MakeBuckets(model);
  for (int b = 0; b < static_cast<int>(buckets.size()); ++b) {
    int& place =
        buckets[b].completes_in_forward ? output_bucket_ : bucket_of_layer_[buckets[b].first_layer];
    place = b;
  }
  hand_over_ = [this](int layer) {
    const auto found = bucket_of_layer_.find(layer);
    if (found == bucket_of_layer_.end()) return;
    model_.ops().session().Flush();
    if (held_ != nullptr) return held_->push_back(layer);
    handed_over_.Update(sums_.ReplicaDone(found->second));
  };
}

void PipelineStage::MakeChunks(const Transformer& model) {
  const std::vector<int>& numbers = options_.chunks;
  DEEPNET_CHECK_EQ(numbers.size(), model.chunks().size());
  const int count = static_cast<int>(numbers.size());
  const int num_chunks = static_cast<int>(options_.messages.size());
  chunks_.resize(numbers.size());
  bool read_later = false;  // whether a later chunk of the rank reads the encoder output
  for (int i = count - 1; i >= 0; --i) {
    const Chunk& layers = model.chunks()[i];
    ModelChunk& chunk = chunks_[i];
    chunk.layers = &layers;
    chunk.number = numbers[i];
    chunk.sent = layers.outputs();
    const bool here = i + 1 < count && numbers[i + 1] == chunk.number + 1;
    if (!here && chunk.number + 1 < num_chunks) {
      chunk.sent = boundaries_.Restrict({Way::kForward, chunk.number + 1, 0}, chunk.sent);
    }
    chunk.keeps_encoder_output =
        layers.reads_encoder_output() ||
        (read_later && (layers.inputs().encoder_output || layers.ends_encoder()));
    read_later |= layers.inputs().encoder_output;
  }
  int before = 0;  // layers of the rank in earlier chunks
  for (ModelChunk& chunk : chunks_) {
    const int end = before + chunk.layers->spec().layers.NumLayers();
    const GradientSpan range = model.parameters().GradientRange(before, end);
    chunk.gradient = model.parameters().gradient().narrow(0, range.begin, range.count);
    before = end;
  }
}

void PipelineStage::BeginStep(const StepBatch& batch, int64_t step, double loss_scale) {
  DEEPNET_CHECK_EQ(batch.microbatches.size() % options_.virtual_replicas, 0u);
  batch_ = &batch;
  model_.ops().session().BeginStep();
  gradient_scale_ =
      loss_scale > 0 ? loss_scale : 1.0 / static_cast<double>(batch.num_target_tokens);
  passes_.clear();
  for (const Microbatch& microbatch : batch.microbatches) {
    passes_.push_back(MakePass(model_.ops(), microbatch, options_.seed, step, /*training=*/true));
  }
  losses_.assign(batch.microbatches.size(), {});
  boundaries_.Clear();
  for (ModelChunk& chunk : chunks_) {
    chunk.last_backward = -1;
    chunk.deferred.clear();
    chunk.early.clear();
    for (Slot& slot : chunk.slots) {
      if (slot.microbatch >= 0) Free(chunk, slot);
    }
  }
  pools_.source.Sort();
  pools_.target.Sort();
  handed_over_ = absl::OkStatus();
  sums_.BeginStep();
}

absl::Status PipelineStage::Forward(int chunk, int microbatch) {
  ModelChunk& own = Find(chunk);
  const Chunk& layers = *own.layers;
  const BoundaryActivations values = ValuesFor(own, microbatch);
  Slot& slot = Claim(own, microbatch);
  if (own.keeps_encoder_output) slot.encoder_output_RD = values.encoder_output_RD;
  if (layers.has_output()) slot.dhidden_RD = boundaries_.target().Claim();
  const auto run = [&](MicrobatchPass pass) {
    if (microbatch == 0) pass.probe = probe_;
    if (inspector_ != nullptr) pass.probe = inspector_;
    layers.Forward(pass, values, model_.work(), slot.kept,
                   {.label_smoothing = options_.label_smoothing,
                    .gradient_scale = gradient_scale_,
                    .dhidden_RD = slot.dhidden_RD,
                    .sums = &losses_[microbatch]});
  };
  Run({.op = Op::kForward,
       .chunk = own,
       .microbatch = microbatch,
       .inputs = Defined(values, slot.dhidden_RD),
       .run = run});
  if (inspector_ != nullptr) inspector_->AfterForward(layers, passes_[microbatch].rows, values);
  if (own.sent != BoundarySet{}) {
    boundaries_.Put({Way::kForward, chunk + 1, microbatch}, Only(own.sent, values));
  }
  if (!layers.has_output() || !EndsReplica(microbatch)) return absl::OkStatus();
  return sums_.ReplicaDone(output_bucket_);
}

absl::Status PipelineStage::Backward(int chunk, int microbatch) {
  RETURN_IF_ERROR(RunBackward(Find(chunk), microbatch, nullptr, HandOverOf(microbatch)));
  return handed_over_;
}

absl::Status PipelineStage::BackwardInput(int chunk, int microbatch) {
  ModelChunk& own = Find(chunk);
  DeferredWeights deferred(deferred_pool_);
  const LayerDone end_layer = [&](int layer) { deferred.EndLayer(layer); };
  RETURN_IF_ERROR(
      RunBackward(own, microbatch, &deferred, EndsReplica(microbatch) ? &end_layer : nullptr));
  own.deferred.emplace(microbatch, std::move(deferred));
  return absl::OkStatus();
}

absl::Status PipelineStage::BackwardWeight(int chunk, int microbatch) {
  ModelChunk& own = Find(chunk);
  if (own.early.erase(microbatch) > 0) return absl::OkStatus();
  return RunDeferred(own, microbatch);
}

absl::Status PipelineStage::RunBackward(ModelChunk& chunk, int microbatch,
                                        DeferredWeights* deferred, const LayerDone* layer_done) {
  DEEPNET_CHECK_LT(chunk.last_backward, microbatch) << "chunk " << chunk.number;
  chunk.last_backward = microbatch;
  RETURN_IF_ERROR(FinishReplicasBefore(chunk, microbatch));
  const Chunk& layers = *chunk.layers;
  Slot& slot = Find(chunk, microbatch);
  BoundaryActivations gradients = boundaries_.Take({Way::kBackward, chunk.number + 1, microbatch});
  if (layers.has_output()) gradients.target_RD = std::exchange(slot.dhidden_RD, at::Tensor());
  if (layers.ends_decoder() && layers.reads_encoder_output()) {
    gradients.encoder_output_RD = boundaries_.source().Claim();
  }
  const BoundaryActivations given = gradients;
  const auto run = [&](MicrobatchPass pass) {
    if (deferred != nullptr) deferred->Clear();
    pass.deferred = deferred;
    pass.layer_done = layer_done;
    gradients = given;
    layers.Backward(pass, gradients, slot.encoder_output_RD, model_.work(), slot.kept);
  };
  Run({.op = deferred == nullptr ? Op::kBackward : Op::kBackwardInput,
       .chunk = chunk,
       .microbatch = microbatch,
       .inputs = Defined(given, {}),
       .run = run,
       .deferred = deferred});
  if (chunk.number > 0) {
    boundaries_.Put({Way::kBackward, chunk.number, microbatch}, Only(layers.inputs(), gradients));
  }
  Free(chunk, slot);
  return absl::OkStatus();
}

absl::Status PipelineStage::RunDeferred(ModelChunk& chunk, int microbatch) {
  const auto found = chunk.deferred.find(microbatch);
  DEEPNET_CHECK(found != chunk.deferred.end())
      << "chunk " << chunk.number << ", microbatch " << microbatch << ": no weight gradients wait";
  Run({.op = Op::kBackwardWeight,
       .chunk = chunk,
       .microbatch = microbatch,
       .inputs = {},
       .run = [&](const MicrobatchPass&) {
         found->second.Compute(model_.ops(), HandOverOf(microbatch));
       }});
  found->second.Clear();
  chunk.deferred.erase(found);
  return handed_over_;
}

// Runs a pass. Gradients are handed over as soon as it counts and the inspector has seen them.
void PipelineStage::Run(const ChunkPass& pass) {
  std::vector<int> layers;
  std::vector<at::Tensor> state = pass.inputs;
  state.push_back(pass.chunk.gradient);
  model_.ops().session().RunPass(
      {.kind = {static_cast<int>(pass.op), pass.chunk.number},
       .name = absl::StrCat("chunk ", pass.chunk.number, ", ", TextOf(pass.op)),
       .microbatch = pass.microbatch,
       .rows = passes_[pass.microbatch].rows,
       .state = std::move(state),
       .run =
           [&](const MicrobatchRows& rows, bool provisional) {
             layers.clear();
             held_ = provisional || inspector_ != nullptr ? &layers : nullptr;
             MicrobatchPass microbatch = passes_[pass.microbatch];
             microbatch.rows = rows;
             pass.run(microbatch);
             held_ = nullptr;
           },
       .outputs =
           [&] {
             return pass.deferred == nullptr ? std::vector<at::Tensor>() : pass.deferred->copies();
           },
       .watched = inspector_ != nullptr});
  if (inspector_ != nullptr && pass.op != Op::kForward) {
    inspector_->AfterBackward(*pass.chunk.layers);
  }
  for (const int layer : layers) hand_over_(layer);
}

// BackwardInput adds to the gradients of norms and embeddings at once. So the replica before must
// be complete, weight gradients included, even if the schedule has them later.
absl::Status PipelineStage::FinishReplicasBefore(ModelChunk& chunk, int microbatch) {
  while (!chunk.deferred.empty()) {
    const int waiting = chunk.deferred.begin()->first;
    if (ReplicaOf(waiting) == ReplicaOf(microbatch)) break;
    chunk.early.insert(waiting);
    RETURN_IF_ERROR(RunDeferred(chunk, waiting));
  }
  return absl::OkStatus();
}

int PipelineStage::ReplicaOf(int microbatch) const {
  return microbatch * options_.virtual_replicas / static_cast<int>(batch_->microbatches.size());
}

bool PipelineStage::EndsReplica(int microbatch) const {
  const bool last = microbatch + 1 == static_cast<int>(batch_->microbatches.size());
  return last || ReplicaOf(microbatch + 1) != ReplicaOf(microbatch);
}

// Returns the callback for layers that `microbatch` completes: null unless it also completes their
// virtual replica.
const LayerDone* PipelineStage::HandOverOf(int microbatch) const {
  return EndsReplica(microbatch) ? &hand_over_ : nullptr;
}

// Returns the tensors that `chunk` runs on, on its way forward: those at the boundary before it,
// and new ones for the streams that begin in it.
BoundaryActivations PipelineStage::ValuesFor(const ModelChunk& chunk, int microbatch) {
  const Chunk& layers = *chunk.layers;
  BoundaryActivations values = boundaries_.Take({Way::kForward, chunk.number, microbatch});
  if (layers.has_source() && !layers.inputs().source) {
    values.source_RD = boundaries_.source().Claim();
  }
  if (layers.has_target() && !layers.inputs().target) {
    values.target_RD = boundaries_.target().Claim();
  }
  if (layers.ends_encoder()) values.encoder_output_RD = boundaries_.encoder_output().Claim();
  if (layers.inputs().encoder_output && !values.encoder_output_RD.defined()) {
    values.encoder_output_RD = HeldEncoderOutput(microbatch);
  }
  return values;
}

// Returns the encoder output that an earlier chunk of the rank received or computed.
at::Tensor PipelineStage::HeldEncoderOutput(int microbatch) const {
  for (const ModelChunk& chunk : chunks_) {
    for (const Slot& slot : chunk.slots) {
      if (slot.microbatch == microbatch && slot.encoder_output_RD.defined()) {
        return slot.encoder_output_RD;
      }
    }
  }
  DEEPNET_CHECK(false) << "no chunk holds the encoder output of microbatch " << microbatch;
  return at::Tensor();
}

std::vector<Buffer> PipelineStage::Buffers(Boundary boundary, int chunk, int microbatch) {
  const Chunk& layers = *Find(chunk).layers;
  return boundaries_.Buffers(PlaceOf(boundary, chunk, microbatch),
                             IsBefore(boundary) ? layers.inputs() : layers.outputs(),
                             IsReceived(boundary));
}

void PipelineStage::Release(Boundary boundary, int chunk, int microbatch) {
  DEEPNET_CHECK(!IsReceived(boundary));
  boundaries_.Take(PlaceOf(boundary, chunk, microbatch));
}

PipelineStage::ModelChunk& PipelineStage::Find(int chunk) {
  const auto own = std::ranges::find(chunks_, chunk, &ModelChunk::number);
  DEEPNET_CHECK(own != chunks_.end()) << "chunk " << chunk << " is another rank's";
  return *own;
}

PipelineStage::Slot& PipelineStage::Claim(ModelChunk& chunk, int microbatch) {
  const auto free = std::ranges::find(chunk.slots, -1, &Slot::microbatch);
  if (free == chunk.slots.end()) {
    return chunk.slots.emplace_back(
        Slot{microbatch, chunk.layers->MakeKept(pools_, model_.work()), {}, {}});
  }
  free->microbatch = microbatch;
  chunk.layers->TakeLayers(pools_, model_.work(), free->kept);
  return *free;
}

PipelineStage::Slot& PipelineStage::Find(ModelChunk& chunk, int microbatch) {
  const auto slot = std::ranges::find(chunk.slots, microbatch, &Slot::microbatch);
  DEEPNET_CHECK(slot != chunk.slots.end())
      << "chunk " << chunk.number << ": microbatch " << microbatch << " has no forward pass";
  return *slot;
}

void PipelineStage::Free(const ModelChunk& chunk, Slot& slot) {
  chunk.layers->GiveLayers(pools_, slot.kept);
  slot.encoder_output_RD = slot.dhidden_RD = at::Tensor();
  slot.microbatch = -1;
}

}  // namespace deepnet
