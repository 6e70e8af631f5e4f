#include "trainer/model/layers.h"

#include "trainer/model/architecture.h"

namespace deepnet {
namespace {

bool AtLeastFfn(Recompute level) { return level == FFN || level == GEMM; }

// The pass of a layer whose last sub-layer also reads what entered it: remembered here on the way
// forward.
PassContext Enter(const PassContext& pass, const Stream& stream, const Workspace& work) {
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

// The gradient that the last sub-layer left for what entered the layer.
void LeaveBackward(const PassContext& pass, const at::Tensor& dstream_RD) {
  if (!pass.layer_input_RD.defined()) return;
  const int64_t rows = pass.rows->count;
  pass.ops->Add(dstream_RD.narrow(0, 0, rows), pass.layer_input_RD.narrow(0, 0, rows));
}

}  // namespace

EncoderLayer::EncoderLayer(const ModelSpec& spec, Ops& ops, const Parameters& parameters, int layer)
    : attention_(spec, ops, parameters, 0, layer), feed_forward_(spec, ops, parameters, 0, layer) {}

EncoderLayer::Saved EncoderLayer::MakeSaved(const Ops& ops, int64_t capacity, Recompute level,
                                            const Workspace* work) const {
  return {attention_.MakeSaved(ops, capacity, level == GEMM ? work : nullptr),
          feed_forward_.MakeSaved(ops, capacity, AtLeastFfn(level) ? work : nullptr)};
}

void EncoderLayer::Forward(const PassContext& pass, const Stream& stream, Workspace& work,
                           Saved& saved) const {
  const PassContext inside = Enter(pass, stream, work);
  attention_.Forward(inside, stream, work, saved.attention);
  feed_forward_.Forward(inside, stream, work, saved.feed_forward);
}

void EncoderLayer::Backward(const PassContext& pass, const Upstream& upstream,
                            const at::Tensor& dstream_RD, Workspace& work, Saved& saved) const {
  const PassContext inside = EnterBackward(pass, work);
  feed_forward_.Backward(inside, {&attention_.join(), &saved.attention.join, {}}, dstream_RD, work,
                         saved.feed_forward);
  attention_.Backward(inside, upstream, dstream_RD, work, saved.attention);
  LeaveBackward(inside, dstream_RD);
}

Upstream EncoderLayer::Output(const Saved& saved) const {
  return {&feed_forward_.join(), &saved.feed_forward.join, {}};
}

void EncoderLayer::Refresh(Ops& ops) {
  attention_.Refresh(ops);
  feed_forward_.Refresh(ops);
}

DecoderLayer::DecoderLayer(const ModelSpec& spec, Ops& ops, const Parameters& parameters, int layer)
    : self_attention_(spec, ops, parameters, LabelledStack(spec), layer),
      feed_forward_(spec, ops, parameters, LabelledStack(spec), layer) {
  if (HasMemory(spec)) cross_attention_.emplace(spec, ops, parameters, layer);
}

DecoderLayer::Saved DecoderLayer::MakeSaved(const Ops& ops, int64_t source_capacity,
                                            int64_t target_capacity, Recompute level,
                                            const Workspace* work,
                                            const Workspace* memory_work) const {
  const Workspace* again = level == GEMM ? work : nullptr;
  Saved saved{self_attention_.MakeSaved(ops, target_capacity, again),
              {},
              feed_forward_.MakeSaved(ops, target_capacity, AtLeastFfn(level) ? work : nullptr)};
  if (cross_attention_) {
    saved.cross_attention =
        cross_attention_->MakeSaved(ops, source_capacity, target_capacity, again, memory_work);
  }
  return saved;
}

void DecoderLayer::Forward(const PassContext& pass, const Memory& memory, const Stream& stream,
                           Workspace& work, Saved& saved) const {
  const PassContext inside = Enter(pass, stream, work);
  self_attention_.Forward(inside, stream, work, saved.self_attention);
  if (cross_attention_) {
    cross_attention_->Forward(inside, memory, stream, work, saved.cross_attention);
  }
  feed_forward_.Forward(inside, stream, work, saved.feed_forward);
}

void DecoderLayer::Backward(const PassContext& pass, const Memory& memory, const Upstream& upstream,
                            const at::Tensor& dstream_RD, Workspace& work, Workspace& memory_work,
                            Saved& saved) const {
  const PassContext inside = EnterBackward(pass, work);
  const Upstream first{&self_attention_.join(), &saved.self_attention.join, {}};
  const Upstream before_block =
      cross_attention_ ? Upstream{&cross_attention_->join(), &saved.cross_attention.join, {}}
                       : first;
  feed_forward_.Backward(inside, before_block, dstream_RD, work, saved.feed_forward);
  if (cross_attention_) {
    cross_attention_->Backward(inside, memory, first, dstream_RD, work, memory_work,
                               saved.cross_attention);
  }
  self_attention_.Backward(inside, upstream, dstream_RD, work, saved.self_attention);
  LeaveBackward(inside, dstream_RD);
}

void DecoderLayer::Step(const PassContext& pass, const Stream& stream, Workspace& work,
                        Saved& saved, KeyValueCache& self_cache, int64_t first_row,
                        const CacheIndex& self_index, const KeyValueCache& memory_cache,
                        const CacheIndex& memory_index) const {
  const PassContext inside = Enter(pass, stream, work);
  self_attention_.Step(inside, stream, work, saved.self_attention, self_cache, first_row,
                       self_index);
  cross_attention_->Step(inside, stream, work, saved.cross_attention, memory_cache, memory_index);
  feed_forward_.Forward(inside, stream, work, saved.feed_forward);
}

Upstream DecoderLayer::Output(const Saved& saved) const {
  return {&feed_forward_.join(), &saved.feed_forward.join, {}};
}

void DecoderLayer::Refresh(Ops& ops) {
  self_attention_.Refresh(ops);
  if (cross_attention_) cross_attention_->Refresh(ops);
  feed_forward_.Refresh(ops);
}

}  // namespace deepnet
