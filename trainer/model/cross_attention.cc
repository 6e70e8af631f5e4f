#include "trainer/model/cross_attention.h"

#include <ATen/ATen.h>

namespace deepnet {

CrossAttention::CrossAttention(const ModelSpec& spec, Ops& ops, const Parameters& parameters,
                               int layer)
    : width_(spec.width()),
      heads_(spec.heads()),
      dropout_{.stack = 1,
               .layer = layer,
               .site = kSiteCrossAttentionWeights,
               .rate = spec.attention_dropout()},
      q_(spec, ops, parameters, Projections(LayerPrefix(1, layer) + "encoder_attn.", {"q"})),
      kv_(spec, ops, parameters, Projections(LayerPrefix(1, layer) + "encoder_attn.", {"k", "v"})),
      out_(spec, ops, parameters, {LayerPrefix(1, layer) + "encoder_attn.out_proj"}),
      join_(spec, parameters, 1, layer, SublayerKind::kCrossAttention),
      before_last_(spec, parameters, LayerPrefix(1, layer), join_.scheme(),
                   SublayerKind::kCrossAttention) {}

CrossAttention::Saved CrossAttention::MakeSaved(const Ops& ops, int64_t source_capacity,
                                                int64_t target_capacity, const Workspace* again,
                                                const Workspace* memory_again) const {
  Saved saved;
  saved.again = again != nullptr;
  saved.q_RD = saved.again ? again->qkv_R3D.narrow(1, 0, width_)
                           : at::zeros({target_capacity, width_}, ops.Operand());
  saved.kv_R2D = saved.again ? memory_again->qkv_R3D.narrow(1, width_, 2 * width_)
                             : at::zeros({source_capacity, 2 * width_}, ops.Operand());
  saved.k_RD = saved.kv_R2D.narrow(1, 0, width_);
  saved.v_RD = saved.kv_R2D.narrow(1, width_, width_);
  saved.context_RD = at::zeros({target_capacity, width_}, ops.Operand());
  saved.log_sum_exp_RH = at::zeros({target_capacity, heads_}, ops.Stream());
  saved.inner = before_last_.MakeState(ops, target_capacity);
  saved.join = join_.MakeSaved(ops, target_capacity);
  return saved;
}

AttentionArgs CrossAttention::Args(const PassContext& pass, const Memory& memory,
                                   const Saved& saved) const {
  return {.q_RD = saved.q_RD,
          .k_RD = saved.k_RD,
          .v_RD = saved.v_RD,
          .queries = pass.rows,
          .keys = memory.rows,
          .heads = heads_,
          .causal = false,
          .dropout = At(dropout_, pass),
          .context_RD = saved.context_RD,
          .log_sum_exp_RH = saved.log_sum_exp_RH};
}

void CrossAttention::Project(const PassContext& pass, const Memory& memory,
                             const at::Tensor& input_RD, Saved& saved) const {
  q_.Forward(pass, input_RD, /*relu=*/false, saved.q_RD);
  FillCache(pass, memory, saved.kv_R2D);
}

void CrossAttention::Forward(const PassContext& pass, const Memory& memory, const Stream& stream,
                             Workspace& work, Saved& saved) const {
  Project(pass, memory, join_.Enter(pass, stream, work.input_RD, saved.join), saved);
  pass.ops->Attention(Args(pass, memory, saved));
  out_.Forward(pass, before_last_.Forward(pass, saved.context_RD, work.dcontext_RD, saved.inner),
               /*relu=*/false, work.branch_RD);
  join_.Leave(pass, stream, work.branch_RD, saved.join);
}

void CrossAttention::Backward(const PassContext& pass, const Memory& memory,
                              const Upstream& upstream, const at::Tensor& dstream_RD,
                              Workspace& work, Workspace& memory_work, Saved& saved) const {
  PassContext memory_pass = pass;
  memory_pass.rows = memory.rows;
  const at::Tensor dq_RD = work.dqkv_R3D.narrow(1, 0, width_);
  const at::Tensor dkv_R2D = memory_work.dqkv_R3D.narrow(1, width_, 2 * width_);
  join_.LeaveBackward(pass, saved.join, dstream_RD, work.dbranch_RD);
  const at::Tensor input_RD = join_.Input(pass, saved.join, upstream, work.input_RD);
  if (saved.again) Project(pass, memory, input_RD, saved);
  out_.BackwardWeight(pass, work.dbranch_RD,
                      before_last_.Again(pass, saved.context_RD, work.dcontext_RD, saved.inner));
  out_.BackwardInput(pass, work.dbranch_RD, {}, /*accumulate=*/false, work.dcontext_RD);
  before_last_.Backward(pass, work.dcontext_RD, saved.context_RD, saved.inner);
  pass.ops->AttentionBackward({.forward = Args(pass, memory, saved),
                               .dcontext_RD = work.dcontext_RD,
                               .dq_RD = dq_RD,
                               .dk_RD = dkv_R2D.narrow(1, 0, width_),
                               .dv_RD = dkv_R2D.narrow(1, width_, width_)});
  kv_.BackwardWeight(memory_pass, dkv_R2D, memory.value_RD, /*one_input=*/true);
  kv_.BackwardInput(memory_pass, dkv_R2D, {}, /*accumulate=*/true, memory.gradient_RD);
  q_.BackwardWeight(pass, dq_RD, input_RD);
  q_.BackwardInput(pass, dq_RD, {}, join_.InputGradientAddsToStream(),
                   InputGradient(join_, dstream_RD, work));
  join_.EnterBackward(pass, saved.join, work.dinput_RD, dstream_RD);
}

void CrossAttention::FillCache(const PassContext& pass, const Memory& memory,
                               const at::Tensor& kv_R2D) const {
  PassContext memory_pass = pass;
  memory_pass.rows = memory.rows;
  kv_.Forward(memory_pass, memory.value_RD, /*relu=*/false, kv_R2D);
}

void CrossAttention::Step(const PassContext& pass, const Stream& stream, Workspace& work,
                          Saved& saved, const KeyValueCache& cache, const CacheIndex& index) const {
  const at::Tensor input_RD = join_.Enter(pass, stream, work.input_RD, saved.join);
  q_.Forward(pass, input_RD, /*relu=*/false, saved.q_RD);
  pass.ops->DecodeAttention(OverCache(pass, cache, index, heads_, saved.q_RD, saved.context_RD));
  out_.Forward(pass, before_last_.Forward(pass, saved.context_RD, work.dcontext_RD, saved.inner),
               /*relu=*/false, work.branch_RD);
  join_.Leave(pass, stream, work.branch_RD, saved.join);
}

void CrossAttention::Refresh(Ops& ops) {
  q_.Refresh(ops);
  kv_.Refresh(ops);
  out_.Refresh(ops);
}

}  // namespace deepnet
