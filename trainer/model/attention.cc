#include "trainer/model/attention.h"

#include <ATen/ATen.h>

namespace deepnet {
namespace {

// "<prefix>q_proj" and so on, for each of `letters`.
std::vector<std::string> Projections(const std::string& prefix, std::vector<std::string> letters) {
  for (std::string& letter : letters) letter = prefix + letter + "_proj";
  return letters;
}

// One step of queries over a cache.
DecodeAttentionArgs OverCache(const PassContext& pass, const KeyValueCache& cache,
                              const CacheIndex& index, int heads, const at::Tensor& q_RD,
                              const at::Tensor& context_RD) {
  return {.rows = pass.rows->count,
          .q_RD = q_RD,
          .keys_ND = cache.keys_ND,
          .values_ND = cache.values_ND,
          .index = index.index,
          .index_stride = index.stride,
          .lengths = index.lengths,
          .heads = heads,
          .context_RD = context_RD};
}

}  // namespace

SelfAttention::SelfAttention(const ModelSpec& spec, Ops& ops, const Parameters& parameters,
                             int stack, int layer, bool causal)
    : width_(spec.d_model()),
      heads_(spec.num_heads()),
      causal_(causal),
      dropout_{.stack = stack,
               .layer = layer,
               .site = kSiteSelfAttentionWeights,
               .rate = spec.attention_dropout()},
      qkv_(spec, ops, parameters,
           Projections(LayerPrefix(stack, layer) + "self_attn.", {"q", "k", "v"})),
      out_(spec, ops, parameters, {LayerPrefix(stack, layer) + "self_attn.out_proj"}),
      residual_(spec, parameters, stack, layer, SublayerKind::kSelfAttention),
      inner_norm_(spec, parameters, LayerPrefix(stack, layer), residual_.scheme(),
                  SublayerKind::kSelfAttention) {}

SelfAttention::Saved SelfAttention::MakeSaved(const Ops& ops, int64_t capacity,
                                              const Workspace* recompute_work) const {
  Saved saved;
  saved.recomputed = recompute_work != nullptr;
  saved.qkv_R3D = saved.recomputed ? recompute_work->qkv_R3D
                                   : at::zeros({capacity, 3 * width_}, ops.OperandOptions());
  saved.q_RD = saved.qkv_R3D.narrow(1, 0, width_);
  saved.k_RD = saved.qkv_R3D.narrow(1, width_, width_);
  saved.v_RD = saved.qkv_R3D.narrow(1, 2 * width_, width_);
  saved.context_RD = at::zeros({capacity, width_}, ops.OperandOptions());
  saved.log_sum_exp_RH = at::zeros({capacity, heads_}, ops.ResidualOptions());
  saved.inner = inner_norm_.MakeState(ops, capacity);
  saved.residual = residual_.MakeSaved(ops, capacity);
  return saved;
}

AttentionArgs SelfAttention::Args(const PassContext& pass, const Saved& saved) const {
  return {.q_RD = saved.q_RD,
          .k_RD = saved.k_RD,
          .v_RD = saved.v_RD,
          .queries = pass.rows,
          .keys = pass.rows,
          .heads = heads_,
          .causal = causal_,
          .dropout = At(dropout_, pass),
          .context_RD = saved.context_RD,
          .log_sum_exp_RH = saved.log_sum_exp_RH};
}

void SelfAttention::Forward(const PassContext& pass, const ResidualStream& stream, Workspace& work,
                            Saved& saved) const {
  const at::Tensor input_RD = residual_.Enter(pass, stream, work.input_RD, saved.residual);
  qkv_.Forward(pass, input_RD, /*relu=*/false, saved.qkv_R3D);
  pass.ops->Attention(Args(pass, saved));
  out_.Forward(pass, inner_norm_.Forward(pass, saved.context_RD, work.dcontext_RD, saved.inner),
               /*relu=*/false, work.branch_RD);
  residual_.Leave(pass, stream, work.branch_RD, saved.residual);
}

void SelfAttention::Backward(const PassContext& pass, const Upstream& upstream,
                             const at::Tensor& dstream_RD, Workspace& work, Saved& saved) const {
  residual_.LeaveBackward(pass, saved.residual, dstream_RD, work.dbranch_RD);
  const at::Tensor input_RD = residual_.Input(pass, saved.residual, upstream, work.input_RD);
  if (saved.recomputed) qkv_.Forward(pass, input_RD, /*relu=*/false, saved.qkv_R3D);
  out_.BackwardWeight(pass, work.dbranch_RD,
                      inner_norm_.Recompute(pass, saved.context_RD, work.dcontext_RD, saved.inner));
  out_.BackwardInput(pass, work.dbranch_RD, {}, /*accumulate=*/false, work.dcontext_RD);
  inner_norm_.Backward(pass, work.dcontext_RD, saved.context_RD, saved.inner);
  pass.ops->AttentionBackward({.forward = Args(pass, saved),
                               .dcontext_RD = work.dcontext_RD,
                               .dq_RD = work.dqkv_R3D.narrow(1, 0, width_),
                               .dk_RD = work.dqkv_R3D.narrow(1, width_, width_),
                               .dv_RD = work.dqkv_R3D.narrow(1, 2 * width_, width_)});
  qkv_.BackwardWeight(pass, work.dqkv_R3D, input_RD);
  qkv_.BackwardInput(pass, work.dqkv_R3D, {}, residual_.InputGradientAddsToStream(),
                     InputGradient(residual_, dstream_RD, work));
  residual_.EnterBackward(pass, saved.residual, work.dinput_RD, dstream_RD);
}

void SelfAttention::Step(const PassContext& pass, const ResidualStream& stream, Workspace& work,
                         Saved& saved, KeyValueCache& cache, int64_t first_row,
                         const CacheIndex& index) const {
  const int64_t rows = pass.rows->count;
  const at::Tensor input_RD = residual_.Enter(pass, stream, work.input_RD, saved.residual);
  qkv_.Forward(pass, input_RD, /*relu=*/false, saved.qkv_R3D);
  pass.ops->Copy(rows, saved.k_RD, cache.keys_ND.narrow(0, first_row, rows));
  pass.ops->Copy(rows, saved.v_RD, cache.values_ND.narrow(0, first_row, rows));
  pass.ops->DecodeAttention(OverCache(pass, cache, index, heads_, saved.q_RD, saved.context_RD));
  out_.Forward(pass, inner_norm_.Forward(pass, saved.context_RD, work.dcontext_RD, saved.inner),
               /*relu=*/false, work.branch_RD);
  residual_.Leave(pass, stream, work.branch_RD, saved.residual);
}

void SelfAttention::Refresh(Ops& ops) {
  qkv_.Refresh(ops);
  out_.Refresh(ops);
}

CrossAttention::CrossAttention(const ModelSpec& spec, Ops& ops, const Parameters& parameters,
                               int layer)
    : width_(spec.d_model()),
      heads_(spec.num_heads()),
      dropout_{.stack = 1,
               .layer = layer,
               .site = kSiteCrossAttentionWeights,
               .rate = spec.attention_dropout()},
      q_(spec, ops, parameters, Projections(LayerPrefix(1, layer) + "encoder_attn.", {"q"})),
      kv_(spec, ops, parameters, Projections(LayerPrefix(1, layer) + "encoder_attn.", {"k", "v"})),
      out_(spec, ops, parameters, {LayerPrefix(1, layer) + "encoder_attn.out_proj"}),
      residual_(spec, parameters, 1, layer, SublayerKind::kCrossAttention),
      inner_norm_(spec, parameters, LayerPrefix(1, layer), residual_.scheme(),
                  SublayerKind::kCrossAttention) {}

CrossAttention::Saved CrossAttention::MakeSaved(const Ops& ops, int64_t source_capacity,
                                                int64_t target_capacity,
                                                const Workspace* recompute_work,
                                                const Workspace* source_recompute_work) const {
  Saved saved;
  saved.recomputed = recompute_work != nullptr;
  saved.q_RD = saved.recomputed ? recompute_work->qkv_R3D.narrow(1, 0, width_)
                                : at::zeros({target_capacity, width_}, ops.OperandOptions());
  saved.kv_R2D = saved.recomputed ? source_recompute_work->qkv_R3D.narrow(1, width_, 2 * width_)
                                  : at::zeros({source_capacity, 2 * width_}, ops.OperandOptions());
  saved.k_RD = saved.kv_R2D.narrow(1, 0, width_);
  saved.v_RD = saved.kv_R2D.narrow(1, width_, width_);
  saved.context_RD = at::zeros({target_capacity, width_}, ops.OperandOptions());
  saved.log_sum_exp_RH = at::zeros({target_capacity, heads_}, ops.ResidualOptions());
  saved.inner = inner_norm_.MakeState(ops, target_capacity);
  saved.residual = residual_.MakeSaved(ops, target_capacity);
  return saved;
}

AttentionArgs CrossAttention::Args(const PassContext& pass, const EncoderOutput& encoder_output,
                                   const Saved& saved) const {
  return {.q_RD = saved.q_RD,
          .k_RD = saved.k_RD,
          .v_RD = saved.v_RD,
          .queries = pass.rows,
          .keys = encoder_output.rows,
          .heads = heads_,
          .causal = false,
          .dropout = At(dropout_, pass),
          .context_RD = saved.context_RD,
          .log_sum_exp_RH = saved.log_sum_exp_RH};
}

void CrossAttention::Project(const PassContext& pass, const EncoderOutput& encoder_output,
                             const at::Tensor& input_RD, Saved& saved) const {
  q_.Forward(pass, input_RD, /*relu=*/false, saved.q_RD);
  FillCache(pass, encoder_output, saved.kv_R2D);
}

void CrossAttention::Forward(const PassContext& pass, const EncoderOutput& encoder_output,
                             const ResidualStream& stream, Workspace& work, Saved& saved) const {
  Project(pass, encoder_output, residual_.Enter(pass, stream, work.input_RD, saved.residual),
          saved);
  pass.ops->Attention(Args(pass, encoder_output, saved));
  out_.Forward(pass, inner_norm_.Forward(pass, saved.context_RD, work.dcontext_RD, saved.inner),
               /*relu=*/false, work.branch_RD);
  residual_.Leave(pass, stream, work.branch_RD, saved.residual);
}

void CrossAttention::Backward(const PassContext& pass, const EncoderOutput& encoder_output,
                              const Upstream& upstream, const at::Tensor& dstream_RD,
                              Workspace& work, Workspace& source_work, Saved& saved) const {
  PassContext source_pass = pass;
  source_pass.rows = encoder_output.rows;
  const at::Tensor dq_RD = work.dqkv_R3D.narrow(1, 0, width_);
  const at::Tensor dkv_R2D = source_work.dqkv_R3D.narrow(1, width_, 2 * width_);
  residual_.LeaveBackward(pass, saved.residual, dstream_RD, work.dbranch_RD);
  const at::Tensor input_RD = residual_.Input(pass, saved.residual, upstream, work.input_RD);
  if (saved.recomputed) Project(pass, encoder_output, input_RD, saved);
  out_.BackwardWeight(pass, work.dbranch_RD,
                      inner_norm_.Recompute(pass, saved.context_RD, work.dcontext_RD, saved.inner));
  out_.BackwardInput(pass, work.dbranch_RD, {}, /*accumulate=*/false, work.dcontext_RD);
  inner_norm_.Backward(pass, work.dcontext_RD, saved.context_RD, saved.inner);
  pass.ops->AttentionBackward({.forward = Args(pass, encoder_output, saved),
                               .dcontext_RD = work.dcontext_RD,
                               .dq_RD = dq_RD,
                               .dk_RD = dkv_R2D.narrow(1, 0, width_),
                               .dv_RD = dkv_R2D.narrow(1, width_, width_)});
  kv_.BackwardWeight(source_pass, dkv_R2D, encoder_output.value_RD, /*one_input=*/true);
  kv_.BackwardInput(source_pass, dkv_R2D, {}, /*accumulate=*/true, encoder_output.gradient_RD);
  q_.BackwardWeight(pass, dq_RD, input_RD);
  q_.BackwardInput(pass, dq_RD, {}, residual_.InputGradientAddsToStream(),
                   InputGradient(residual_, dstream_RD, work));
  residual_.EnterBackward(pass, saved.residual, work.dinput_RD, dstream_RD);
}

void CrossAttention::FillCache(const PassContext& pass, const EncoderOutput& encoder_output,
                               const at::Tensor& kv_R2D) const {
  PassContext source_pass = pass;
  source_pass.rows = encoder_output.rows;
  kv_.Forward(source_pass, encoder_output.value_RD, /*relu=*/false, kv_R2D);
}

void CrossAttention::Step(const PassContext& pass, const ResidualStream& stream, Workspace& work,
                          Saved& saved, const KeyValueCache& cache, const CacheIndex& index) const {
  const at::Tensor input_RD = residual_.Enter(pass, stream, work.input_RD, saved.residual);
  q_.Forward(pass, input_RD, /*relu=*/false, saved.q_RD);
  pass.ops->DecodeAttention(OverCache(pass, cache, index, heads_, saved.q_RD, saved.context_RD));
  out_.Forward(pass, inner_norm_.Forward(pass, saved.context_RD, work.dcontext_RD, saved.inner),
               /*relu=*/false, work.branch_RD);
  residual_.Leave(pass, stream, work.branch_RD, saved.residual);
}

void CrossAttention::Refresh(Ops& ops) {
  q_.Refresh(ops);
  kv_.Refresh(ops);
  out_.Refresh(ops);
}

}  // namespace deepnet
