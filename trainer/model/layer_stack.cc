// One idea for all levels: layers come in segments, the input of each segment is kept, and inside a
// segment every layer has a Saved. FULL has short segments and one set of Saved for all of them;
// the other levels have one segment, whose set is the microbatch's own.
#include "trainer/model/layer_stack.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <utility>

#include "parallel/base/check.h"
#include "trainer/kernels/aten.h"
#include "trainer/model/architecture.h"
#include "trainer/model/scheme.h"

namespace deepnet {
namespace {

// Copies the layer's input where its last sub-layer also reads it.
void KeepInput(const PassContext& pass, const ResidualStream& stream) {
  const at::Tensor& input_RD = pass.work->layer_input_RD;
  if (input_RD.defined()) pass.ops->Copy(pass.rows->count, stream.value_RD, input_RD);
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
  for (auto& [level, all] : saved) {
    sort(all, [](const TransformerLayer::Saved& s) { return s.self_attention.log_sum_exp_RH; });
  }
  sort(first_RD, std::identity());
  sort(inputs_RD, std::identity());
  sort(histories, [](const LayerHistory::Saved& s) { return s.outputs_RD[0]; });
}

TransformerLayer::TransformerLayer(const BuildContext& build, int stack, int layer)
    : self_attention_(build, {stack, layer, SublayerKind::kSelfAttention}),
      feed_forward_(build, {stack, layer, SublayerKind::kFeedForward}) {
  if (SublayersPerLayer(build.spec, stack) < 3) return;
  cross_attention_.emplace(build, SublayerPlace{stack, layer, SublayerKind::kCrossAttention});
}

TransformerLayer::Saved TransformerLayer::MakeSaved(const Ops& ops, int64_t capacity,
                                                    int64_t source_capacity,
                                                    const Recomputed& recomputed) const {
  const auto& [level, work, source_work] = recomputed;
  const Workspace* recompute_work = level == SELECTIVE_GEMM ? work : nullptr;
  Saved saved{self_attention_.MakeSaved(ops, capacity, source_capacity, recompute_work),
              {},
              feed_forward_.MakeSaved(ops, capacity, level == NONE ? nullptr : work)};
  if (cross_attention_) {
    saved.cross_attention =
        cross_attention_->MakeSaved(ops, capacity, source_capacity, recompute_work, source_work);
  }
  return saved;
}

void TransformerLayer::Forward(const PassContext& pass, const ResidualStream& stream,
                               Saved& saved) const {
  KeepInput(pass, stream);
  self_attention_.Forward(pass, stream, saved.self_attention);
  if (cross_attention_) cross_attention_->Forward(pass, stream, saved.cross_attention);
  feed_forward_.Forward(pass, stream, saved.feed_forward);
}

void TransformerLayer::Backward(const PassContext& pass, const Upstream& upstream,
                                const at::Tensor& dstream_RD, Saved& saved) const {
  const Upstream first{&self_attention_.residual(), &saved.self_attention.residual, {}};
  const Upstream before_block =
      cross_attention_
          ? Upstream{&cross_attention_->residual(), &saved.cross_attention.residual, {}}
          : first;
  feed_forward_.Backward(pass, before_block, dstream_RD, saved.feed_forward);
  if (cross_attention_) cross_attention_->Backward(pass, first, dstream_RD, saved.cross_attention);
  self_attention_.Backward(pass, upstream, dstream_RD, saved.self_attention);
  // The last sub-layer has left a gradient for the layer's input.
  if (const at::Tensor& dinput_RD = pass.work->layer_input_RD; dinput_RD.defined()) {
    AddRows(pass, dstream_RD, dinput_RD);
  }
}

void TransformerLayer::Step(const PassContext& pass, const ResidualStream& stream, Saved& saved,
                            const StepCache& self, const StepCache& cross) const {
  KeepInput(pass, stream);
  self_attention_.Step(pass, stream, saved.self_attention, self);
  cross_attention_->Step(pass, stream, saved.cross_attention, cross);
  feed_forward_.Forward(pass, stream, saved.feed_forward);
}

Upstream TransformerLayer::Output(const Saved& saved) const {
  return {&feed_forward_.residual(), &saved.feed_forward.residual, {}};
}

LayerHistory::LayerHistory(const BuildContext& build, int stack) : width_(build.spec.d_model()) {
  for (int layer = 0; layer < LayersOf(build.spec, stack); ++layer) {
    const std::string prefix = LayerPrefix(stack, layer);
    weights_.push_back(build.parameters.Trained(prefix + kHistoryWeight));
    norms_.emplace_back(build, prefix + kHistoryNorm);
  }
  weights_.push_back(build.parameters.Trained(StackName(stack) + kHistoryWeight));
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

void LayerHistory::Mix(const PassContext& pass, int layer, const ResidualStream& stream,
                       const Saved& saved) const {
  pass.ops->Zero(FirstRows(pass.rows->count, stream.value_RD));
  for (int k = 0; k <= layer; ++k) {
    pass.ops->AddScaled({.rows = pass.rows->count,
                         .x_RD = saved.outputs_RD[k],
                         .factor_1 = weights_[layer].value.narrow(0, k, 1),
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
                                 .factor_1 = weights_[layer].value.narrow(0, k, 1),
                                 .dx_RD = gradients[k],
                                 .dfactor_1 = weights_[layer].gradient.narrow(0, k, 1)});
  }
}

void LayerHistory::KeepBackward(const PassContext& pass, int layer, const at::Tensor& dstream_RD,
                                Saved& saved, const std::vector<at::Tensor>& gradients) const {
  pass.ops->Copy(pass.rows->count, gradients[layer + 1], dstream_RD);
  norms_[layer].BackwardInPlace(pass, dstream_RD, saved.norms[layer]);
}

LayerStack::LayerStack(const BuildContext& build, const RecomputeChoice& options,
                       const LayerRun& run)
    : options_(options),
      segment_(std::max(1, options.level == FULL ? options.segment : run.count)),
      position_(run.position),
      width_(build.spec.d_model()),
      source_capacity_(build.capacity.max_source_tokens()),
      capacity_(run.stack == LabelledStack(build.spec) ? build.capacity.max_target_tokens()
                                                       : source_capacity_),
      ops_(build.ops) {
  for (int i = 0; i < run.count; ++i) layers_.emplace_back(build, run.stack, run.first + i);
  if (!InOnePiece(build.spec) || run.count == 0) return;
  DEEPNET_CHECK_EQ(run.count, LayersOf(build.spec, run.stack)) << "a stack in one piece was cut";
  if (KeepsHistory(build.spec)) history_.emplace(build, run.stack);
}

LayerStack::Kept LayerStack::TakeKept(KeptPool& pool, const Workspace& work,
                                      const Workspace& source_work) const {
  const std::array<int64_t, 2> shape = {capacity_, width_};
  Kept kept;
  if (size() == 0) return kept;
  if (history_) {
    kept.history =
        TakeOrMake(pool.histories, [&] { return history_->MakeSaved(ops_, capacity_, true); });
  }
  if (by_segment()) {
    for (int i = 0; i < NumSegments(); ++i) {
      kept.inputs_RD.push_back(
          TakeOrMake(pool.inputs_RD, [&] { return at::zeros(shape, ops_.ResidualOptions()); }));
    }
    return kept;
  }
  kept.first_RD =
      TakeOrMake(pool.first_RD, [&] { return at::zeros(shape, ops_.OperandOptions()); });
  for (int i = 0; i < size(); ++i) {
    kept.saved.push_back(TakeOrMake(pool.saved[options_.level], [&] {
      return MakeSaved({options_.level, &work, &source_work});
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
  if (size() > 0) kept.saved.push_back(MakeSaved());
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
    segment.saved.push_back(MakeSaved());
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
  if (layer == 0) ops_.Copy(pass.rows->count, stream.value_RD, kept.history.outputs_RD[0]);
  history_->Mix(pass, layer, stream, kept.history);
}

void LayerStack::AfterLayer(const PassContext& pass, int layer, const ResidualStream& stream,
                            Kept& kept) const {
  if (!history_) return;
  history_->Keep(pass, layer, stream, kept.history);
  if (layer + 1 == size()) history_->Mix(pass, size(), stream, kept.history);
}

void LayerStack::Forward(const PassContext& pass, const ResidualStream& stream, Kept& kept,
                         SegmentWorkspace& segment) const {
  const int64_t rows = pass.rows->count;
  const LayerBegins* const begins = pass.microbatch->layer_begins;
  const bool keep = pass.keep();
  if (size() == 0) return;
  for (int i = 0; i < size(); ++i) {
    if (begins != nullptr) (*begins)(position_ + i);
    if (keep && i == 0 && !by_segment()) ops_.Copy(rows, stream.operand_RD, kept.first_RD);
    BeforeLayer(pass, i, stream, kept);
    if (keep && by_segment() && i % segment_ == 0) {
      ops_.Copy(rows, stream.value_RD, kept.inputs_RD[i / segment_]);
    }
    layers_[i].Forward(pass, stream, SavedOf(i, kept, segment));
    AfterLayer(pass, i, stream, kept);
  }
  kept.pass = ++segment.passes;
  // A pass that is repeated does the same whatever ran before it.
  segment.held = keep && !ops_.session().RepeatsPasses() ? NumSegments() - 1 : -1;
}

// Runs the segment's layers once more on the stream that entered it, in buffers of its own.
void LayerStack::RecomputeSegment(const PassContext& pass, int index, Kept& kept,
                                  SegmentWorkspace& segment) const {
  const int64_t rows = pass.rows->count;
  ops_.Copy(rows, kept.inputs_RD[index], segment.stream.value_RD);
  if (!SameTypes(ops_)) ops_.Copy(rows, kept.inputs_RD[index], segment.stream.operand_RD);
  const int end = std::min(size(), (index + 1) * segment_);
  PassContext second = pass;
  second.second_RD = at::Tensor();  // it holds a gradient now
  for (int i = index * segment_; i < end; ++i) {
    if (history_) history_->Mix(second, i, segment.stream, kept.history);
    layers_[i].Forward(second, segment.stream, SavedOf(i, kept, segment));
  }
}

// Returns the origin of the input of `layer`. That of a segment's first layer was kept; products
// want it in operand type.
Upstream LayerStack::UpstreamOf(const PassContext& pass, int layer, Kept& kept,
                                SegmentWorkspace& segment) const {
  if (layer % segment_ != 0) return layers_[layer - 1].Output(SavedOf(layer - 1, kept, segment));
  if (!by_segment()) return {.embedded_RD = kept.first_RD};
  const at::Tensor& input_RD = kept.inputs_RD[layer / segment_];
  if (SameTypes(ops_)) return {.embedded_RD = input_RD};
  ops_.Copy(pass.rows->count, input_RD, segment.input_RD);
  return {.embedded_RD = segment.input_RD};
}

void LayerStack::Backward(const PassContext& pass, const at::Tensor& dstream_RD, Kept& kept,
                          SegmentWorkspace& segment) const {
  const LayerDone* const done = pass.microbatch->layer_done;
  const std::vector<at::Tensor>& gradients = segment.history_gradients_RD;
  const auto mix = [&](int layer) {
    history_->MixBackward(pass, layer, dstream_RD, kept.history, gradients);
  };
  for (int index = NumSegments() - 1; index >= 0; --index) {
    const bool held = segment.held == index && segment.passes == kept.pass;
    if (by_segment() && !held) RecomputeSegment(pass, index, kept, segment);
    segment.held = -1;  // from now on its layers' states belong to this backward pass
    const int end = std::min(size(), (index + 1) * segment_);
    for (int i = end - 1; i >= index * segment_; --i) {
      if (history_ && i + 1 == size()) mix(size());
      if (history_) history_->KeepBackward(pass, i, dstream_RD, kept.history, gradients);
      layers_[i].Backward(pass, UpstreamOf(pass, i, kept, segment), dstream_RD,
                          SavedOf(i, kept, segment));
      if (history_) mix(i);
      if (i == 0 && history_) ops_.Copy(pass.rows->count, gradients[0], dstream_RD);
      if (i == 0 && pass.second_RD.defined()) AddRows(pass, dstream_RD, pass.second_RD);
      if (done != nullptr) (*done)(position_ + i);
    }
  }
}

}  // namespace deepnet
