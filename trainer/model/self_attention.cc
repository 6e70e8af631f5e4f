#include "trainer/model/self_attention.h"

#include <ATen/ATen.h>

namespace deepnet {

SelfAttention::SelfAttention(const ModelSpec& spec, Ops& ops, const Parameters& parameters,
                             int stack, int layer)
    : width_(spec.width()),
      heads_(spec.heads()),
      dropout_{.stack = stack,
               .layer = layer,
               .site = kSiteSelfAttentionWeights,
               .rate = spec.attention_dropout()},
      qkv_(spec, ops, parameters,
           Projections(LayerPrefix(stack, layer) + "self_attn.", {"q", "k", "v"})),
      out_(spec, ops, parameters, {LayerPrefix(stack, layer) + "self_attn.out_proj"}),
      join_(spec, parameters, stack, layer, SublayerKind::kSelfAttention),
      before_last_(spec, parameters, LayerPrefix(stack, layer), join_.scheme(),
                   SublayerKind::kSelfAttention) {}

SelfAttention::Saved SelfAttention::MakeSaved(const Ops& ops, int64_t capacity,
                                              const Workspace* again) const {
  Saved saved;
  saved.again = again != nullptr;
  saved.qkv_R3D = saved.again ? again->qkv_R3D : at::zeros({capacity, 3 * width_}, ops.Operand());
  saved.q_RD = saved.qkv_R3D.narrow(1, 0, width_);
  saved.k_RD = saved.qkv_R3D.narrow(1, width_, width_);
  saved.v_RD = saved.qkv_R3D.narrow(1, 2 * width_, width_);
  saved.context_RD = at::zeros({capacity, width_}, ops.Operand());
  saved.log_sum_exp_RH = at::zeros({capacity, heads_}, ops.Stream());
  saved.inner = before_last_.MakeState(ops, capacity);
  saved.join = join_.MakeSaved(ops, capacity);
  return saved;
}

AttentionArgs SelfAttention::Args(const PassContext& pass, const Saved& saved) const {
  return {.q_RD = saved.q_RD,
          .k_RD = saved.k_RD,
          .v_RD = saved.v_RD,
          .queries = pass.rows,
          .keys = pass.rows,
          .heads = heads_,
          .causal = dropout_.stack == 1,
          .dropout = At(dropout_, pass),
          .context_RD = saved.context_RD,
          .log_sum_exp_RH = saved.log_sum_exp_RH};
}

void SelfAttention::Forward(const PassContext& pass, const Stream& stream, Workspace& work,
                            Saved& saved) const {
  const at::Tensor input_RD = join_.Enter(pass, stream, work.input_RD, saved.join);
  qkv_.Forward(pass, input_RD, /*relu=*/false, saved.qkv_R3D);
  pass.ops->Attention(Args(pass, saved));
  out_.Forward(pass, before_last_.Forward(pass, saved.context_RD, work.dcontext_RD, saved.inner),
               /*relu=*/false, work.branch_RD);
  join_.Leave(pass, stream, work.branch_RD, saved.join);
}

void SelfAttention::Backward(const PassContext& pass, const Upstream& upstream,
                             const at::Tensor& dstream_RD, Workspace& work, Saved& saved) const {
  join_.LeaveBackward(pass, saved.join, dstream_RD, work.dbranch_RD);
  const at::Tensor input_RD = join_.Input(pass, saved.join, upstream, work.input_RD);
  if (saved.again) qkv_.Forward(pass, input_RD, /*relu=*/false, saved.qkv_R3D);
  out_.BackwardWeight(pass, work.dbranch_RD,
                      before_last_.Again(pass, saved.context_RD, work.dcontext_RD, saved.inner));
  out_.BackwardInput(pass, work.dbranch_RD, {}, /*accumulate=*/false, work.dcontext_RD);
  before_last_.Backward(pass, work.dcontext_RD, saved.context_RD, saved.inner);
  pass.ops->AttentionBackward({.forward = Args(pass, saved),
                               .dcontext_RD = work.dcontext_RD,
                               .dq_RD = work.dqkv_R3D.narrow(1, 0, width_),
                               .dk_RD = work.dqkv_R3D.narrow(1, width_, width_),
                               .dv_RD = work.dqkv_R3D.narrow(1, 2 * width_, width_)});
  qkv_.BackwardWeight(pass, work.dqkv_R3D, input_RD);
  qkv_.BackwardInput(pass, work.dqkv_R3D, {}, join_.InputGradientAddsToStream(),
                     InputGradient(join_, dstream_RD, work));
  join_.EnterBackward(pass, saved.join, work.dinput_RD, dstream_RD);
}

void SelfAttention::Step(const PassContext& pass, const Stream& stream, Workspace& work,
                         Saved& saved, KeyValueCache& cache, int64_t first_row,
                         const CacheIndex& index) const {
  const int64_t rows = pass.rows->count;
  const at::Tensor input_RD = join_.Enter(pass, stream, work.input_RD, saved.join);
  qkv_.Forward(pass, input_RD, /*relu=*/false, saved.qkv_R3D);
  pass.ops->Copy(rows, saved.k_RD, cache.keys_ND.narrow(0, first_row, rows));
  pass.ops->Copy(rows, saved.v_RD, cache.values_ND.narrow(0, first_row, rows));
  pass.ops->DecodeAttention(OverCache(pass, cache, index, heads_, saved.q_RD, saved.context_RD));
  out_.Forward(pass, before_last_.Forward(pass, saved.context_RD, work.dcontext_RD, saved.inner),
               /*relu=*/false, work.branch_RD);
  join_.Leave(pass, stream, work.branch_RD, saved.join);
}

void SelfAttention::Refresh(Ops& ops) {
  qkv_.Refresh(ops);
  out_.Refresh(ops);
}

}  // namespace deepnet
