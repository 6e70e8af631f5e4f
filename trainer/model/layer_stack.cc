// One idea for all levels: layers come in segments, the input of each segment is kept, and inside a
// segment every layer has a Saved. FULL has short segments and one set of Saved for all of them;
// the other levels have one segment, whose set is the microbatch's own.
#include "trainer/model/layer_stack.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <ATen/ATen.h>

#include "parallel/base/check.h"
#include "trainer/model/architecture.h"
#include "trainer/model/scheme.h"

namespace deepnet {
namespace {

bool AtLeastFfn(Recompute level) { return level == SELECTIVE_FFN || level == SELECTIVE_GEMM; }

// The pass of a layer whose last sub-layer also reads the layer's input, which is copied here.
PassContext Enter(const PassContext& pass, const ResidualStream& stream, const Workspace& work) {
  PassContext inside = pass;
  inside.layer_input_RD = work.layer_input_RD;
  if (work.layer_input_RD.defined()) {
    pass.ops->Copy(pass.rows->count, stream.value_RD, work.layer_input_RD);
  }
  return inside;
}

// Returns one of `free`, or make() if there is none.
template <typename T, typename Make>
T TakeOrMake(std::vector<T>& free, const Make& make) {
  if (free.empty()) return make();
  T taken = std::move(free.back());
  free.pop_back();
  return taken;
}

}  // namespace

void KeptPool::Sort() {
  const auto sort = [](auto& all, const auto& tensor_of) {
    std::sort(all.begin(), all.end(), [&](const auto& a, const auto& b) {
      return tensor_of(a).const_data_ptr() > tensor_of(b).const_data_ptr();
    });
  };
  const auto itself = [](const at::Tensor& x) -> const at::Tensor& { return x; };
  for (auto& [level, all] : saved) {
    sort(all, [](const TransformerLayer::Saved& s) { return s.self_attention.log_sum_exp_RH; });
  }
  sort(first_RD, itself);
  sort(inputs_RD, itself);
  sort(histories, [](const LayerHistory::Saved& s) { return s.outputs_RD[0]; });
}

// Only the decoder is causal.
TransformerLayer::TransformerLayer(const ModelSpec& spec, Ops& ops, const Parameters& parameters,
                                   int stack, int layer)
    : self_attention_(spec, ops, parameters, stack, layer, SublayerKind::kSelfAttention,
                      /*causal=*/stack == 1),
      feed_forward_(spec, ops, parameters, stack, layer) {
  if (SublayersPerLayer(spec, stack) < 3) return;
  cross_attention_.emplace(spec, ops, parameters, stack, layer, SublayerKind::kCrossAttention,
                           /*causal=*/false);
}

TransformerLayer::Saved TransformerLayer::MakeSaved(const Ops& ops, int64_t capacity,
                                                    int64_t source_capacity, Recompute level,
                                                    const Workspace* work,
                                                    const Workspace* source_work) const {
  const Workspace* recompute_work = level == SELECTIVE_GEMM ? work : nullptr;
  Saved saved{self_attention_.MakeSaved(ops, capacity, source_capacity, recompute_work),
              {},
              feed_forward_.MakeSaved(ops, capacity, AtLeastFfn(level) ? work : nullptr)};
  if (cross_attention_) {
    saved.cross_attention =
        cross_attention_->MakeSaved(ops, capacity, source_capacity, recompute_work, source_work);
  }
  return saved;
}

void TransformerLayer::Forward(const PassContext& pass, const ResidualStream& stream,
                               Workspace& work, Saved& saved) const {
  const PassContext inside = Enter(pass, stream, work);
  self_attention_.Forward(inside, stream, work, saved.self_attention);
  if (cross_attention_) cross_attention_->Forward(inside, stream, work, saved.cross_attention);
  feed_forward_.Forward(inside, stream, work, saved.feed_forward);
}

void TransformerLayer::Backward(const PassContext& pass, const Upstream& upstream,
                                const at::Tensor& dstream_RD, Workspace& work, Saved& saved) const {
  PassContext inside = pass;
  inside.layer_input_RD = work.layer_input_RD;
  const Upstream first{&self_attention_.residual(), &saved.self_attention.residual, {}};
  const Upstream before_block =
      cross_attention_
          ? Upstream{&cross_attention_->residual(), &saved.cross_attention.residual, {}}
          : first;
  feed_forward_.Backward(inside, before_block, dstream_RD, work, saved.feed_forward);
  if (cross_attention_) {
    cross_attention_->Backward(inside, first, dstream_RD, work, saved.cross_attention);
  }
  self_attention_.Backward(inside, upstream, dstream_RD, work, saved.self_attention);
  if (!inside.layer_input_RD.defined()) return;
  // The last sub-layer has left a gradient for the layer's input.
  const int64_t rows = pass.rows->count;
  pass.ops->Add(FirstRows(rows, dstream_RD), FirstRows(rows, inside.layer_input_RD));
}

void TransformerLayer::Step(const PassContext& pass, const ResidualStream& stream, Workspace& work,
                            Saved& saved, const StepCache& self, const StepCache& cross) const {
  const PassContext inside = Enter(pass, stream, work);
  self_attention_.Step(inside, stream, work, saved.self_attention, self);
  cross_attention_->Step(inside, stream, work, saved.cross_attention, cross);
  feed_forward_.Forward(inside, stream, work, saved.feed_forward);
}

Upstream TransformerLayer::Output(const Saved& saved) const {
  return {&feed_forward_.residual(), &saved.feed_forward.residual, {}};
}

void TransformerLayer::Refresh(Ops& ops) {
  self_attention_.Refresh(ops);
  if (cross_attention_) cross_attention_->Refresh(ops);
  feed_forward_.Refresh(ops);
}

LayerHistory::LayerHistory(const ModelSpec& spec, const Parameters& parameters, int stack)
    : width_(spec.d_model()) {
  const int layers = LayersOf(spec, stack);
  const auto add = [&](const std::string& name) {
    weights_.push_back(parameters.Get(name));
    dweights_.push_back(parameters.Gradient(name));
  };
  for (int layer = 0; layer < layers; ++layer) {
    const std::string prefix = LayerPrefix(stack, layer);
    add(prefix + kHistoryWeight);
    norms_.emplace_back(spec, parameters, prefix + kHistoryNorm);
  }
  add(StackName(stack) + kHistoryWeight);
}

LayerHistory::Saved LayerHistory::MakeSaved(const Ops& ops, int64_t capacity, bool trains) const {
  Saved saved{MakeGradients(ops, capacity), std::vector<NormState>(norms_.size())};
  for (size_t i = 0; trains && i < norms_.size(); ++i) {
    saved.norms[i] = norms_[i].MakeState(ops, capacity);
  }
  return saved;
}

std::vector<at::Tensor> LayerHistory::MakeGradients(const Ops& ops, int64_t capacity) const {
  std::vector<at::Tensor> all;
  for (size_t i = 0; i <= norms_.size(); ++i) {
    all.push_back(at::zeros({capacity, width_}, ops.ResidualOptions()));
  }
  return all;
}

void LayerHistory::Begin(const PassContext& pass, const ResidualStream& stream,
                         Saved& saved) const {
  pass.ops->Copy(pass.rows->count, stream.value_RD, saved.outputs_RD[0]);
}

void LayerHistory::Mix(const PassContext& pass, int layer, const ResidualStream& stream,
                       const Saved& saved) const {
  pass.ops->Zero(FirstRows(pass.rows->count, stream.value_RD));
  for (int k = 0; k <= layer; ++k) {
    pass.ops->AddScaled({.rows = pass.rows->count,
                         .x_RD = saved.outputs_RD[k],
                         .factor_1 = weights_[layer].narrow(0, k, 1),
                         .y_RD = stream.value_RD});
  }
}

void LayerHistory::Keep(const PassContext& pass, int layer, const ResidualStream& stream,
                        Saved& saved) const {
  norms_[layer].Forward(pass, stream.value_RD, saved.outputs_RD[layer + 1], saved.norms[layer]);
}

void LayerHistory::MixBackward(const PassContext& pass, int layer, const at::Tensor& dstream_RD,
                               const Saved& saved, const std::vector<at::Tensor>& gradients) const {
  const bool output = layer == static_cast<int>(norms_.size());
  for (int k = 0; k <= layer; ++k) {
    if (output) pass.ops->Zero(FirstRows(pass.rows->count, gradients[k]));
    pass.ops->AddScaledBackward({.rows = pass.rows->count,
                                 .dy_RD = dstream_RD,
                                 .x_RD = saved.outputs_RD[k],
                                 .factor_1 = weights_[layer].narrow(0, k, 1),
                                 .dx_RD = gradients[k],
                                 .dfactor_1 = dweights_[layer].narrow(0, k, 1)});
  }
}

void LayerHistory::KeepBackward(const PassContext& pass, int layer, const at::Tensor& dstream_RD,
                                Saved& saved, const std::vector<at::Tensor>& gradients) const {
  pass.ops->Copy(pass.rows->count, gradients[layer + 1], dstream_RD);
  norms_[layer].BackwardInPlace(pass, dstream_RD, saved.norms[layer]);
}

void LayerHistory::BeginBackward(const PassContext& pass, const at::Tensor& dstream_RD,
                                 const std::vector<at::Tensor>& gradients) const {
  pass.ops->Copy(pass.rows->count, gradients[0], dstream_RD);
}

LayerStack::LayerStack(const ModelSpec& spec, const MicrobatchSpec& capacity,
                       const RecomputeChoice& options, Ops& ops, const Parameters& parameters,
                       int stack, int first, int count)
    : options_(options),
      segment_(std::max(1, options.level == FULL ? options.segment : count)),
      width_(spec.d_model()),
      source_capacity_(capacity.max_source_tokens()),
      capacity_(stack == LabelledStack(spec) ? capacity.max_target_tokens()
                                             : capacity.max_source_tokens()),
      ops_(ops) {
  for (int i = 0; i < count; ++i) layers_.emplace_back(spec, ops, parameters, stack, first + i);
  if (!InOnePiece(spec) || count == 0) return;
  DEEPNET_CHECK_EQ(count, LayersOf(spec, stack)) << "a stack in one piece was cut";
  if (KeepsHistory(spec)) history_.emplace(spec, parameters, stack);
}

LayerStack::Saved LayerStack::MakeSaved(Recompute level, const Workspace* work,
                                        const Workspace* source_work) const {
  return layers_[0].MakeSaved(ops_, capacity_, source_capacity_, level, work, source_work);
}

LayerStack::Kept LayerStack::TakeKept(KeptPool& pool, const Workspace& work,
                                      const Workspace& source_work) const {
  const auto zeros = [&](const at::TensorOptions& options) {
    return at::zeros({capacity_, width_}, options);
  };
  Kept kept;
  if (size() == 0) return kept;
  if (history_) {
    kept.history =
        TakeOrMake(pool.histories, [&] { return history_->MakeSaved(ops_, capacity_, true); });
  }
  if (by_segment()) {
    for (int i = 0; i < NumSegments(); ++i) {
      kept.inputs_RD.push_back(
          TakeOrMake(pool.inputs_RD, [&] { return zeros(ops_.ResidualOptions()); }));
    }
    return kept;
  }
  kept.first_RD = TakeOrMake(pool.first_RD, [&] { return zeros(ops_.OperandOptions()); });
  for (int i = 0; i < size(); ++i) {
    kept.saved.push_back(TakeOrMake(pool.saved[options_.level], [&] {
      return MakeSaved(options_.level, &work, &source_work);
    }));
  }
  return kept;
}

void LayerStack::GiveKept(KeptPool& pool, Kept& kept) const {
  // Backwards: the next run takes them in the same order.
  std::vector<Saved>& saved = pool.saved[options_.level];
  std::move(kept.saved.rbegin(), kept.saved.rend(), std::back_inserter(saved));
  if (history_) pool.histories.push_back(std::move(kept.history));
  if (kept.first_RD.defined()) pool.first_RD.push_back(std::move(kept.first_RD));
  std::move(kept.inputs_RD.rbegin(), kept.inputs_RD.rend(), std::back_inserter(pool.inputs_RD));
  kept = {};
}

LayerStack::Kept LayerStack::MakeKeptForInference() const {
  Kept kept;
  if (size() > 0) kept.saved.push_back(MakeSaved(NONE, nullptr, nullptr));
  if (history_) kept.history = history_->MakeSaved(ops_, capacity_, /*trains=*/false);
  return kept;
}

void LayerStack::Prepare(SegmentWorkspace& segment) const {
  if (history_ && segment.history_gradients_RD.empty()) {
    segment.history_gradients_RD = history_->MakeGradients(ops_, capacity_);
  }
  if (!by_segment() || size() == 0) return;
  if (!segment.stream.value_RD.defined()) {
    segment.stream = MakeResidualStream(ops_, capacity_, width_);
    if (!SameTypes(ops_)) segment.input_RD = at::zeros({capacity_, width_}, ops_.OperandOptions());
  }
  while (segment.saved.size() < static_cast<size_t>(std::min(segment_, size()))) {
    segment.saved.push_back(MakeSaved(NONE, nullptr, nullptr));
  }
}

LayerStack::Saved& LayerStack::SavedOf(int layer, Kept& kept, SegmentWorkspace& segment) const {
  std::vector<Saved>& saved = kept.saved.empty() ? segment.saved : kept.saved;
  DEEPNET_CHECK(!saved.empty()) << "Prepare was not called";
  return saved[layer % saved.size()];  // neighbours within a segment never meet
}

void LayerStack::BeforeLayer(const PassContext& pass, int layer, const ResidualStream& stream,
                             Kept& kept) const {
  if (layer == 0 && pass.second_RD.defined()) {
    ops_.Copy(pass.rows->count, stream.value_RD, pass.second_RD);
  }
  if (!history_) return;
  if (layer == 0) history_->Begin(pass, stream, kept.history);
  history_->Mix(pass, layer, stream, kept.history);
}

void LayerStack::AfterLayer(const PassContext& pass, int layer, const ResidualStream& stream,
                            Kept& kept) const {
  if (!history_) return;
  history_->Keep(pass, layer, stream, kept.history);
  if (layer + 1 == size()) history_->Mix(pass, size(), stream, kept.history);
}

void LayerStack::Forward(const StackPass& pass, const ResidualStream& stream, Kept& kept,
                         SegmentWorkspace& segment) const {
  const int64_t rows = pass.context.rows->count;
  const MicrobatchPass& microbatch = *pass.context.microbatch;
  const bool keep = pass.context.keep();
  if (size() == 0) return;
  for (int i = 0; i < size(); ++i) {
    if (microbatch.layer_begins != nullptr) (*microbatch.layer_begins)(pass.first_layer + i);
    if (keep && i == 0 && !by_segment()) ops_.Copy(rows, stream.operand_RD, kept.first_RD);
    BeforeLayer(pass.context, i, stream, kept);
    if (keep && by_segment() && i % segment_ == 0) {
      ops_.Copy(rows, stream.value_RD, kept.inputs_RD[i / segment_]);
    }
    layers_[i].Forward(pass.context, stream, *pass.work, SavedOf(i, kept, segment));
    AfterLayer(pass.context, i, stream, kept);
  }
  kept.pass = ++segment.passes;
  // A pass that is repeated does the same whatever ran before it.
  segment.held = keep && !ops_.session().RepeatsPasses() ? NumSegments() - 1 : -1;
}

// Runs the segment's layers once more on the stream that entered it, in buffers of its own.
void LayerStack::RecomputeSegment(const StackPass& pass, int index, Kept& kept,
                                  SegmentWorkspace& segment) const {
  const int64_t rows = pass.context.rows->count;
  ops_.Copy(rows, kept.inputs_RD[index], segment.stream.value_RD);
  if (!SameTypes(ops_)) ops_.Copy(rows, kept.inputs_RD[index], segment.stream.operand_RD);
  const int end = std::min(size(), (index + 1) * segment_);
  PassContext second = pass.context;
  second.second_RD = at::Tensor();  // it holds a gradient now
  for (int i = index * segment_; i < end; ++i) {
    if (history_) history_->Mix(second, i, segment.stream, kept.history);
    layers_[i].Forward(second, segment.stream, *pass.work, SavedOf(i, kept, segment));
  }
}

// The origin of the input of `layer`. The input of a segment's first layer was kept; products want
// it in operand type.
Upstream LayerStack::UpstreamOf(const StackPass& pass, int layer, Kept& kept,
                                SegmentWorkspace& segment) const {
  if (layer % segment_ != 0) return layers_[layer - 1].Output(SavedOf(layer - 1, kept, segment));
  if (!by_segment()) return {.embedded_RD = kept.first_RD};
  const at::Tensor& input_RD = kept.inputs_RD[layer / segment_];
  if (SameTypes(ops_)) return {.embedded_RD = input_RD};
  ops_.Copy(pass.context.rows->count, input_RD, segment.input_RD);
  return {.embedded_RD = segment.input_RD};
}

void LayerStack::Backward(const StackPass& pass, const at::Tensor& dstream_RD, Kept& kept,
                          SegmentWorkspace& segment) const {
  const MicrobatchPass& microbatch = *pass.context.microbatch;
  for (int index = NumSegments() - 1; index >= 0; --index) {
    const bool held = segment.held == index && segment.passes == kept.pass;
    if (by_segment() && !held) RecomputeSegment(pass, index, kept, segment);
    segment.held = -1;  // from now on its layers' states belong to this backward pass
    const int end = std::min(size(), (index + 1) * segment_);
    for (int i = end - 1; i >= index * segment_; --i) {
      AfterLayerBackward(pass.context, i, dstream_RD, kept, segment);
      layers_[i].Backward(pass.context, UpstreamOf(pass, i, kept, segment), dstream_RD, *pass.work,
                          SavedOf(i, kept, segment));
      BeforeLayerBackward(pass.context, i, dstream_RD, kept, segment);
      if (microbatch.layer_done != nullptr) (*microbatch.layer_done)(pass.first_layer + i);
    }
  }
}

void LayerStack::AfterLayerBackward(const PassContext& pass, int layer,
                                    const at::Tensor& dstream_RD, Kept& kept,
                                    const SegmentWorkspace& segment) const {
  if (!history_) return;
  const std::vector<at::Tensor>& gradients = segment.history_gradients_RD;
  if (layer + 1 == size()) {
    history_->MixBackward(pass, size(), dstream_RD, kept.history, gradients);
  }
  history_->KeepBackward(pass, layer, dstream_RD, kept.history, gradients);
}

void LayerStack::BeforeLayerBackward(const PassContext& pass, int layer,
                                     const at::Tensor& dstream_RD, Kept& kept,
                                     const SegmentWorkspace& segment) const {
  const std::vector<at::Tensor>& gradients = segment.history_gradients_RD;
  if (history_) history_->MixBackward(pass, layer, dstream_RD, kept.history, gradients);
  if (history_ && layer == 0) history_->BeginBackward(pass, dstream_RD, gradients);
  if (layer == 0 && pass.second_RD.defined()) {
    const int64_t rows = pass.rows->count;
    ops_.Add(FirstRows(rows, dstream_RD), FirstRows(rows, pass.second_RD));
  }
}

void LayerStack::Refresh() {
  for (TransformerLayer& layer : layers_) layer.Refresh(ops_);
}

}  // namespace deepnet
