// One idea for all levels: layers come in segments, the input of each segment is kept, and inside a
// segment every layer has a Saved. LAYER has short segments and one set of Saved for all of them;
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

// The two kinds of layers differ in their calls by the memory.
void RunForward(const EncoderLayer& layer, const StackPass& pass, const Stream& stream,
                EncoderLayer::Saved& saved) {
  layer.Forward(pass.context, stream, *pass.work, saved);
}

void RunForward(const DecoderLayer& layer, const StackPass& pass, const Stream& stream,
                DecoderLayer::Saved& saved) {
  layer.Forward(pass.context, *pass.memory, stream, *pass.work, saved);
}

void RunBackward(const EncoderLayer& layer, const StackPass& pass, const Upstream& upstream,
                 const at::Tensor& dstream_RD, EncoderLayer::Saved& saved) {
  layer.Backward(pass.context, upstream, dstream_RD, *pass.work, saved);
}

void RunBackward(const DecoderLayer& layer, const StackPass& pass, const Upstream& upstream,
                 const at::Tensor& dstream_RD, DecoderLayer::Saved& saved) {
  layer.Backward(pass.context, *pass.memory, upstream, dstream_RD, *pass.work, *pass.memory_work,
                 saved);
}

bool SameTypes(const Ops& ops) { return ops.Operand().dtype() == ops.Stream().dtype(); }

// One of `free`, or what `make` makes.
template <typename T, typename Make>
T TakeOrMake(std::vector<T>& free, const Make& make) {
  if (free.empty()) return make();
  T taken = std::move(free.back());
  free.pop_back();
  return taken;
}

}  // namespace

Stream MakeStream(const Ops& ops, int64_t capacity, int64_t width) {
  Stream stream;
  stream.value_RD = at::zeros({capacity, width}, ops.Stream());
  stream.operand_RD =
      SameTypes(ops) ? stream.value_RD : at::zeros({capacity, width}, ops.Operand());
  return stream;
}

template <typename LayerT>
LayerStack<LayerT>::LayerStack(const ModelSpec& spec, const MicrobatchSpec& capacity,
                               const RecomputeChoice& options, Ops& ops,
                               const Parameters& parameters, int first, int count)
    : options_(options),
      segment_(std::max(1, options.level == LAYER ? options.segment : count)),
      width_(spec.width()),
      source_capacity_(capacity.source_tokens()),
      capacity_(std::is_same_v<LayerT, EncoderLayer> ? capacity.source_tokens()
                                                     : capacity.target_tokens()),
      ops_(ops) {
  for (int i = 0; i < count; ++i) layers_.emplace_back(spec, ops, parameters, first + i);
  if (!InOnePiece(spec) || count == 0) return;
  const int stack = std::is_same_v<LayerT, EncoderLayer> ? 0 : LabelledStack(spec);
  DEEPNET_CHECK_EQ(count, LayersOf(spec, stack)) << "a stack in one piece was cut";
  if (KeepsHistory(spec)) history_.emplace(spec, parameters, stack);
}

template <typename LayerT>
auto LayerStack<LayerT>::MakeSaved(Recompute level, const Workspace* work,
                                   const Workspace* memory_work) const -> Saved {
  if constexpr (std::is_same_v<LayerT, EncoderLayer>) {
    return layers_[0].MakeSaved(ops_, capacity_, level, work);
  } else {
    return layers_[0].MakeSaved(ops_, source_capacity_, capacity_, level, work, memory_work);
  }
}

template <typename LayerT>
auto LayerStack<LayerT>::MakeKept(const Workspace& work, const Workspace* memory_work) const
    -> Kept {
  KeptPool<LayerT> empty;
  return TakeKept(empty, work, memory_work);
}

template <typename LayerT>
auto LayerStack<LayerT>::TakeKept(KeptPool<LayerT>& pool, const Workspace& work,
                                  const Workspace* memory_work) const -> Kept {
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
      kept.inputs_RD.push_back(TakeOrMake(pool.inputs_RD, [&] { return zeros(ops_.Stream()); }));
    }
    return kept;
  }
  kept.first_RD = TakeOrMake(pool.first_RD, [&] { return zeros(ops_.Operand()); });
  for (int i = 0; i < size(); ++i) {
    kept.saved.push_back(TakeOrMake(pool.saved[options_.level],
                                    [&] { return MakeSaved(options_.level, &work, memory_work); }));
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
    segment.stream = MakeStream(ops_, capacity_, width_);
    if (!SameTypes(ops_)) segment.input_RD = at::zeros({capacity_, width_}, ops_.Operand());
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
void LayerStack<LayerT>::BeforeLayer(const PassContext& pass, int layer, const Stream& stream,
                                     Kept& kept) const {
  if (layer == 0 && pass.second_RD.defined()) {
    ops_.Copy(pass.rows->count, stream.value_RD, pass.second_RD);
  }
  if (!history_) return;
  if (layer == 0) history_->Begin(pass, stream, kept.history);
  history_->Mix(pass, layer, stream, kept.history);
}

template <typename LayerT>
void LayerStack<LayerT>::AfterLayer(const PassContext& pass, int layer, const Stream& stream,
                                    Kept& kept) const {
  if (!history_) return;
  history_->Keep(pass, layer, stream, kept.history);
  if (layer + 1 == size()) history_->Mix(pass, size(), stream, kept.history);
}

template <typename LayerT>
void LayerStack<LayerT>::Forward(const StackPass& pass, const Stream& stream, Kept& kept,
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

// The stream as it entered the segment runs through its layers once more, in buffers of its own.
template <typename LayerT>
void LayerStack<LayerT>::ForwardAgain(const StackPass& pass, int index, Kept& kept,
                                      SegmentWorkspace<LayerT>& segment) const {
  const int64_t rows = pass.context.rows->count;
  ops_.Copy(rows, kept.inputs_RD[index], segment.stream.value_RD);
  if (!SameTypes(ops_)) ops_.Copy(rows, kept.inputs_RD[index], segment.stream.operand_RD);
  const int end = std::min(size(), (index + 1) * segment_);
  StackPass again = pass;
  again.context.second_RD = at::Tensor();  // it holds a gradient now
  for (int i = index * segment_; i < end; ++i) {
    if (history_) history_->Mix(again.context, i, segment.stream, kept.history);
    RunForward(layers_[i], again, segment.stream, SavedOf(i, kept, segment));
  }
}

// Where the input of `layer` came from. That of a segment's first layer was kept; products want it
// in operand type.
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
    if (by_segment() && !held) ForwardAgain(pass, index, kept, segment);
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
