// One idea for all levels: layers come in segments, the input of each segment is kept, and inside a
// segment every layer has a Saved. FULL has short segments and one set of Saved for all of them;
// the other levels have one segment, whose set is the microbatch's own.
#include "trainer/model/layer_stack.h"

#include <algorithm>
#include <iterator>
#include <type_traits>
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

PassContext EnterBackward(const PassContext& pass, const Workspace& work) {
  PassContext inside = pass;
  inside.layer_input_RD = work.layer_input_RD;
  return inside;
}

// Adds the gradient that the last sub-layer left for the layer's input.
void LeaveBackward(const PassContext& pass, const at::Tensor& dstream_RD) {
  if (!pass.layer_input_RD.defined()) return;
  const int64_t rows = pass.rows->count;
  pass.ops->Add(dstream_RD.narrow(0, 0, rows), pass.layer_input_RD.narrow(0, 0, rows));
}

// The calls of the two kinds of layers differ by the encoder's output.
void RunForward(const EncoderLayer& layer, const StackPass& pass, const ResidualStream& stream,
                EncoderLayer::Saved& saved) {
  layer.Forward(pass.context, stream, *pass.work, saved);
}

void RunForward(const DecoderLayer& layer, const StackPass& pass, const ResidualStream& stream,
                DecoderLayer::Saved& saved) {
  layer.Forward(pass.context, *pass.encoder_output, stream, *pass.work, saved);
}

void RunBackward(const EncoderLayer& layer, const StackPass& pass, const Upstream& upstream,
                 const at::Tensor& dstream_RD, EncoderLayer::Saved& saved) {
  layer.Backward(pass.context, upstream, dstream_RD, *pass.work, saved);
}

void RunBackward(const DecoderLayer& layer, const StackPass& pass, const Upstream& upstream,
                 const at::Tensor& dstream_RD, DecoderLayer::Saved& saved) {
  layer.Backward(pass.context, *pass.encoder_output, upstream, dstream_RD, *pass.work,
                 *pass.source_work, saved);
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

EncoderLayer::EncoderLayer(const ModelSpec& spec, Ops& ops, const Parameters& parameters, int layer)
    : attention_(spec, ops, parameters, 0, layer, /*causal=*/false),
      feed_forward_(spec, ops, parameters, 0, layer) {}

EncoderLayer::Saved EncoderLayer::MakeSaved(const Ops& ops, int64_t capacity, Recompute level,
                                            const Workspace* work) const {
  return {attention_.MakeSaved(ops, capacity, level == SELECTIVE_GEMM ? work : nullptr),
          feed_forward_.MakeSaved(ops, capacity, AtLeastFfn(level) ? work : nullptr)};
}

void EncoderLayer::Forward(const PassContext& pass, const ResidualStream& stream, Workspace& work,
                           Saved& saved) const {
  const PassContext inside = Enter(pass, stream, work);
  attention_.Forward(inside, stream, work, saved.attention);
  feed_forward_.Forward(inside, stream, work, saved.feed_forward);
}

void EncoderLayer::Backward(const PassContext& pass, const Upstream& upstream,
                            const at::Tensor& dstream_RD, Workspace& work, Saved& saved) const {
  const PassContext inside = EnterBackward(pass, work);
  feed_forward_.Backward(inside, {&attention_.residual(), &saved.attention.residual, {}},
                         dstream_RD, work, saved.feed_forward);
  attention_.Backward(inside, upstream, dstream_RD, work, saved.attention);
  LeaveBackward(inside, dstream_RD);
}

Upstream EncoderLayer::Output(const Saved& saved) const {
  return {&feed_forward_.residual(), &saved.feed_forward.residual, {}};
}

void EncoderLayer::Refresh(Ops& ops) {
  attention_.Refresh(ops);
  feed_forward_.Refresh(ops);
}

DecoderLayer::DecoderLayer(const ModelSpec& spec, Ops& ops, const Parameters& parameters, int layer)
    : self_attention_(spec, ops, parameters, LabelledStack(spec), layer,
                      /*causal=*/spec.architecture() != ENCODER_ONLY),
      feed_forward_(spec, ops, parameters, LabelledStack(spec), layer) {
  if (HasMemory(spec)) cross_attention_.emplace(spec, ops, parameters, layer);
}

DecoderLayer::Saved DecoderLayer::MakeSaved(const Ops& ops, int64_t source_capacity,
                                            int64_t target_capacity, Recompute level,
                                            const Workspace* work,
                                            const Workspace* source_work) const {
  const Workspace* recompute_work = level == SELECTIVE_GEMM ? work : nullptr;
  Saved saved{self_attention_.MakeSaved(ops, target_capacity, recompute_work),
              {},
              feed_forward_.MakeSaved(ops, target_capacity, AtLeastFfn(level) ? work : nullptr)};
  if (cross_attention_) {
    saved.cross_attention = cross_attention_->MakeSaved(ops, source_capacity, target_capacity,
                                                        recompute_work, source_work);
  }
  return saved;
}

void DecoderLayer::Forward(const PassContext& pass, const EncoderOutput& encoder_output,
                           const ResidualStream& stream, Workspace& work, Saved& saved) const {
  const PassContext inside = Enter(pass, stream, work);
  self_attention_.Forward(inside, stream, work, saved.self_attention);
  if (cross_attention_) {
    cross_attention_->Forward(inside, encoder_output, stream, work, saved.cross_attention);
  }
  feed_forward_.Forward(inside, stream, work, saved.feed_forward);
}

void DecoderLayer::Backward(const PassContext& pass, const EncoderOutput& encoder_output,
                            const Upstream& upstream, const at::Tensor& dstream_RD, Workspace& work,
                            Workspace& source_work, Saved& saved) const {
  const PassContext inside = EnterBackward(pass, work);
  const Upstream first{&self_attention_.residual(), &saved.self_attention.residual, {}};
  const Upstream before_block =
      cross_attention_
          ? Upstream{&cross_attention_->residual(), &saved.cross_attention.residual, {}}
          : first;
  feed_forward_.Backward(inside, before_block, dstream_RD, work, saved.feed_forward);
  if (cross_attention_) {
    cross_attention_->Backward(inside, encoder_output, first, dstream_RD, work, source_work,
                               saved.cross_attention);
  }
  self_attention_.Backward(inside, upstream, dstream_RD, work, saved.self_attention);
  LeaveBackward(inside, dstream_RD);
}

void DecoderLayer::Step(const PassContext& pass, const ResidualStream& stream, Workspace& work,
                        Saved& saved, KeyValueCache& self_cache, int64_t first_row,
                        const CacheIndex& self_index, const KeyValueCache& cross_cache,
                        const CacheIndex& cross_index) const {
  const PassContext inside = Enter(pass, stream, work);
  self_attention_.Step(inside, stream, work, saved.self_attention, self_cache, first_row,
                       self_index);
  cross_attention_->Step(inside, stream, work, saved.cross_attention, cross_cache, cross_index);
  feed_forward_.Forward(inside, stream, work, saved.feed_forward);
}

Upstream DecoderLayer::Output(const Saved& saved) const {
  return {&feed_forward_.residual(), &saved.feed_forward.residual, {}};
}

void DecoderLayer::Refresh(Ops& ops) {
  self_attention_.Refresh(ops);
  if (cross_attention_) cross_attention_->Refresh(ops);
  feed_forward_.Refresh(ops);
}

LayerHistory::LayerHistory(const ModelSpec& spec, const Parameters& parameters, int stack)
    : width_(spec.d_model()) {
  const int layers = stack == 0 ? spec.encoder_layers() : spec.decoder_layers();
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
  at::Tensor sum = FirstRows(pass.rows->count, stream.value_RD);
  sum.zero_();
  for (int k = 0; k <= layer; ++k) {
    sum.add_(FirstRows(pass.rows->count, saved.outputs_RD[k]), weights_[layer][k].item());
  }
}

void LayerHistory::Keep(const PassContext& pass, int layer, const ResidualStream& stream,
                        Saved& saved) const {
  norms_[layer].Forward(pass, stream.value_RD, saved.outputs_RD[layer + 1], saved.norms[layer]);
}

void LayerHistory::MixBackward(const PassContext& pass, int layer, const at::Tensor& dstream_RD,
                               const Saved& saved, const std::vector<at::Tensor>& gradients) const {
  const at::Tensor dsum = FirstRows(pass.rows->count, dstream_RD);
  const bool output = layer == static_cast<int>(norms_.size());
  for (int k = 0; k <= layer; ++k) {
    at::Tensor dz = FirstRows(pass.rows->count, gradients[k]);
    if (output) dz.zero_();
    dz.add_(dsum, weights_[layer][k].item());
    dweights_[layer][k] += (dsum * FirstRows(pass.rows->count, saved.outputs_RD[k])).sum();
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

template <typename LayerT>
LayerStack<LayerT>::LayerStack(const ModelSpec& spec, const MicrobatchSpec& capacity,
                               const RecomputeChoice& options, Ops& ops,
                               const Parameters& parameters, int first, int count)
    : options_(options),
      segment_(std::max(1, options.level == FULL ? options.segment : count)),
      width_(spec.d_model()),
      source_capacity_(capacity.max_source_tokens()),
      capacity_(std::is_same_v<LayerT, EncoderLayer> ? capacity.max_source_tokens()
                                                     : capacity.max_target_tokens()),
      ops_(ops) {
  for (int i = 0; i < count; ++i) layers_.emplace_back(spec, ops, parameters, first + i);
  if (!InOnePiece(spec) || count == 0) return;
  const int stack = std::is_same_v<LayerT, EncoderLayer> ? 0 : LabelledStack(spec);
  DEEPNET_CHECK_EQ(count, LayersOf(spec, stack)) << "a stack in one piece was cut";
  if (KeepsHistory(spec)) history_.emplace(spec, parameters, stack);
}

template <typename LayerT>
auto LayerStack<LayerT>::MakeSaved(Recompute level, const Workspace* work,
                                   const Workspace* source_work) const -> Saved {
  if constexpr (std::is_same_v<LayerT, EncoderLayer>) {
    return layers_[0].MakeSaved(ops_, capacity_, level, work);
  } else {
    return layers_[0].MakeSaved(ops_, source_capacity_, capacity_, level, work, source_work);
  }
}

template <typename LayerT>
auto LayerStack<LayerT>::MakeKept(const Workspace& work, const Workspace* source_work) const
    -> Kept {
  KeptPool<LayerT> empty;
  return TakeKept(empty, work, source_work);
}

template <typename LayerT>
auto LayerStack<LayerT>::TakeKept(KeptPool<LayerT>& pool, const Workspace& work,
                                  const Workspace* source_work) const -> Kept {
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
    kept.saved.push_back(TakeOrMake(pool.saved[options_.level],
                                    [&] { return MakeSaved(options_.level, &work, source_work); }));
  }
  return kept;
}

template <typename LayerT>
void LayerStack<LayerT>::GiveKept(KeptPool<LayerT>& pool, Kept& kept) const {
  std::vector<Saved>& saved = pool.saved[options_.level];
  std::move(kept.saved.begin(), kept.saved.end(), std::back_inserter(saved));
  if (history_) pool.histories.push_back(std::move(kept.history));
  if (kept.first_RD.defined()) pool.first_RD.push_back(std::move(kept.first_RD));
  std::move(kept.inputs_RD.begin(), kept.inputs_RD.end(), std::back_inserter(pool.inputs_RD));
  kept = {};
}

template <typename LayerT>
auto LayerStack<LayerT>::MakeKeptForInference() const -> Kept {
  Kept kept;
  if (size() > 0) kept.saved.push_back(MakeSaved(NONE, nullptr, nullptr));
  if (history_) kept.history = history_->MakeSaved(ops_, capacity_, /*trains=*/false);
  return kept;
}

template <typename LayerT>
void LayerStack<LayerT>::Prepare(SegmentWorkspace<LayerT>& segment) const {
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

template <typename LayerT>
auto LayerStack<LayerT>::SavedOf(int layer, Kept& kept, SegmentWorkspace<LayerT>& segment) const
    -> Saved& {
  std::vector<Saved>& saved = kept.saved.empty() ? segment.saved : kept.saved;
  DEEPNET_CHECK(!saved.empty()) << "Prepare was not called";
  return saved[layer % saved.size()];  // neighbours within a segment never meet
}

template <typename LayerT>
void LayerStack<LayerT>::BeforeLayer(const PassContext& pass, int layer,
                                     const ResidualStream& stream, Kept& kept) const {
  if (layer == 0 && pass.second_RD.defined()) {
    ops_.Copy(pass.rows->count, stream.value_RD, pass.second_RD);
  }
  if (!history_) return;
  if (layer == 0) history_->Begin(pass, stream, kept.history);
  history_->Mix(pass, layer, stream, kept.history);
}

template <typename LayerT>
void LayerStack<LayerT>::AfterLayer(const PassContext& pass, int layer,
                                    const ResidualStream& stream, Kept& kept) const {
  if (!history_) return;
  history_->Keep(pass, layer, stream, kept.history);
  if (layer + 1 == size()) history_->Mix(pass, size(), stream, kept.history);
}

template <typename LayerT>
void LayerStack<LayerT>::Forward(const StackPass& pass, const ResidualStream& stream, Kept& kept,
                                 SegmentWorkspace<LayerT>& segment) const {
  const int64_t rows = pass.context.rows->count;
  const bool keep = pass.context.keep;
  if (size() == 0) return;
  if (keep && !by_segment()) ops_.Copy(rows, stream.operand_RD, kept.first_RD);
  for (int i = 0; i < size(); ++i) {
    BeforeLayer(pass.context, i, stream, kept);
    if (keep && by_segment() && i % segment_ == 0) {
      ops_.Copy(rows, stream.value_RD, kept.inputs_RD[i / segment_]);
    }
    RunForward(layers_[i], pass, stream, SavedOf(i, kept, segment));
    AfterLayer(pass.context, i, stream, kept);
  }
  kept.pass = ++segment.passes;
  segment.held = keep ? NumSegments() - 1 : -1;
}

// Runs the segment's layers once more on the stream that entered it, in buffers of its own.
template <typename LayerT>
void LayerStack<LayerT>::RecomputeSegment(const StackPass& pass, int index, Kept& kept,
                                          SegmentWorkspace<LayerT>& segment) const {
  const int64_t rows = pass.context.rows->count;
  ops_.Copy(rows, kept.inputs_RD[index], segment.stream.value_RD);
  if (!SameTypes(ops_)) ops_.Copy(rows, kept.inputs_RD[index], segment.stream.operand_RD);
  const int end = std::min(size(), (index + 1) * segment_);
  StackPass second = pass;
  second.context.second_RD = at::Tensor();  // it holds a gradient now
  for (int i = index * segment_; i < end; ++i) {
    if (history_) history_->Mix(second.context, i, segment.stream, kept.history);
    RunForward(layers_[i], second, segment.stream, SavedOf(i, kept, segment));
  }
}

// The origin of the input of `layer`. The input of a segment's first layer was kept; products want
// it in operand type.
template <typename LayerT>
Upstream LayerStack<LayerT>::UpstreamOf(const StackPass& pass, int layer, Kept& kept,
                                        SegmentWorkspace<LayerT>& segment) const {
  if (layer % segment_ != 0) return layers_[layer - 1].Output(SavedOf(layer - 1, kept, segment));
  if (!by_segment()) return {.embedded_RD = kept.first_RD};
  const at::Tensor& input_RD = kept.inputs_RD[layer / segment_];
  if (SameTypes(ops_)) return {.embedded_RD = input_RD};
  ops_.Copy(pass.context.rows->count, input_RD, segment.input_RD);
  return {.embedded_RD = segment.input_RD};
}

template <typename LayerT>
void LayerStack<LayerT>::Backward(const StackPass& pass, const at::Tensor& dstream_RD, Kept& kept,
                                  SegmentWorkspace<LayerT>& segment) const {
  const std::vector<at::Tensor>& gradients = segment.history_gradients_RD;
  if (history_) history_->MixBackward(pass.context, size(), dstream_RD, kept.history, gradients);
  for (int index = NumSegments() - 1; index >= 0; --index) {
    const bool held = segment.held == index && segment.passes == kept.pass;
    if (by_segment() && !held) RecomputeSegment(pass, index, kept, segment);
    segment.held = -1;  // from now on its layers' states belong to this backward pass
    const int end = std::min(size(), (index + 1) * segment_);
    for (int i = end - 1; i >= index * segment_; --i) {
      if (history_) {
        history_->KeepBackward(pass.context, i, dstream_RD, kept.history, gradients);
      }
      RunBackward(layers_[i], pass, UpstreamOf(pass, i, kept, segment), dstream_RD,
                  SavedOf(i, kept, segment));
      if (history_) {
        history_->MixBackward(pass.context, i, dstream_RD, kept.history, gradients);
      }
      if (pass.layer_done != nullptr) (*pass.layer_done)(pass.first_layer + i);
    }
  }
  if (history_) history_->BeginBackward(pass.context, dstream_RD, gradients);
  if (pass.context.second_RD.defined()) {
    const int64_t rows = pass.context.rows->count;
    ops_.Add(dstream_RD.narrow(0, 0, rows), pass.context.second_RD.narrow(0, 0, rows));
  }
}

template <typename LayerT>
void LayerStack<LayerT>::Refresh() {
  for (LayerT& layer : layers_) layer.Refresh(ops_);
}

template class LayerStack<EncoderLayer>;
template class LayerStack<DecoderLayer>;

}  // namespace deepnet
