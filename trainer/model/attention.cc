#include "trainer/model/attention.h"

#include "trainer/kernels/aten.h"

namespace deepnet {
namespace {

using Names = std::vector<std::string>;

// "encoder.layers.3.self_attn.q_proj" and so on, for each of `letters`.
Names Projections(const SublayerPlace& place, Names letters) {
  for (std::string& letter : letters) letter = BlockName(place) + "." + letter + "_proj";
  return letters;
}

}  // namespace

AttentionLayer::AttentionLayer(const BuildContext& build, const SublayerPlace& place)
    : width_(build.spec.d_model()),
      heads_(build.spec.num_heads()),
      causal_(place.kind == SublayerKind::kSelfAttention && place.stack == 1),
      dropout_(SiteOf(place,
                      place.kind == SublayerKind::kCrossAttention ? kSiteCrossAttentionWeights
                                                                  : kSiteSelfAttentionWeights,
                      build.spec.attention_dropout())),
      project_(build, Projections(place, place.kind == SublayerKind::kCrossAttention
                                             ? Names{"q"}
                                             : Names{"q", "k", "v"})),
      out_(build, Projections(place, {"out"})),
      residual_(build, place),
      inner_norm_(build, place) {
  if (place.kind != SublayerKind::kCrossAttention) return;
  kv_.emplace(build, Projections(place, {"k", "v"}));
}

AttentionLayer::Saved AttentionLayer::MakeSaved(const Ops& ops, int64_t capacity,
                                                int64_t source_capacity,
                                                const Workspace* recompute_work,
                                                const Workspace* source_recompute_work) const {
  const auto operands = [&](int64_t rows, int64_t columns) {
    return at::zeros({rows, columns}, ops.OperandOptions());
  };
  const auto product = [&](const Workspace* work, int64_t rows, int64_t begin, int64_t columns) {
    return work != nullptr ? work->qkv_R3D.narrow(1, begin, columns) : operands(rows, columns);
  };
  Saved saved;
  saved.recomputed = recompute_work != nullptr;
  saved.projected_RC = product(recompute_work, capacity, 0, kv_ ? width_ : 3 * width_);
  saved.kv_R2D = kv_ ? product(saved.recomputed ? source_recompute_work : nullptr, source_capacity,
                               width_, 2 * width_)
                     : saved.projected_RC.narrow(1, width_, 2 * width_);
  saved.q_RD = saved.projected_RC.narrow(1, 0, width_);
  saved.k_RD = saved.kv_R2D.narrow(1, 0, width_);
  saved.v_RD = saved.kv_R2D.narrow(1, width_, width_);
  saved.context_RD = operands(capacity, width_);
  saved.log_sum_exp_RH = at::zeros({capacity, heads_}, ops.ResidualOptions());
  saved.inner = inner_norm_.MakeState(ops, capacity);
  saved.residual = residual_.MakeSaved(ops, capacity);
  return saved;
}

AttentionArgs AttentionLayer::Args(const PassContext& pass, const Saved& saved) const {
  return {.q_RD = saved.q_RD,
          .k_RD = saved.k_RD,
          .v_RD = saved.v_RD,
          .queries = pass.rows,
          .keys = kv_ ? pass.encoder_output->rows : pass.rows,
          .heads = heads_,
          .causal = causal_,
          .dropout = At(dropout_, pass),
          .context_RD = saved.context_RD,
          .log_sum_exp_RH = saved.log_sum_exp_RH};
}

void AttentionLayer::Project(const PassContext& pass, const at::Tensor& input_RD,
                             Saved& saved) const {
  project_.Forward(pass, input_RD, /*relu=*/false, saved.projected_RC);
  if (kv_) FillCache(pass, saved.kv_R2D);
}

void AttentionLayer::LeaveBranch(const PassContext& pass, const ResidualStream& stream,
                                 Saved& saved) const {
  const Workspace& work = *pass.work;
  out_.Forward(pass, inner_norm_.Forward(pass, saved.context_RD, work.dcontext_RD, saved.inner),
               /*relu=*/false, work.branch_RD);
  residual_.Leave(pass, stream, saved.residual);
}

void AttentionLayer::Forward(const PassContext& pass, const ResidualStream& stream,
                             Saved& saved) const {
  Project(pass, residual_.Enter(pass, stream, saved.residual), saved);
  pass.ops->Attention(Args(pass, saved));
  LeaveBranch(pass, stream, saved);
}

void AttentionLayer::Backward(const PassContext& pass, const Upstream& upstream,
                              const at::Tensor& dstream_RD, Saved& saved) const {
  const Workspace& work = *pass.work;
  const at::Tensor dprojected_RC = work.dqkv_R3D.narrow(1, 0, kv_ ? width_ : 3 * width_);
  const Workspace& key_work = kv_ ? *pass.encoder_output->work : work;
  const at::Tensor dkv_R2D = key_work.dqkv_R3D.narrow(1, width_, 2 * width_);
  residual_.LeaveBackward(pass, saved.residual, dstream_RD);
  const at::Tensor input_RD = residual_.Input(pass, saved.residual, upstream);
  if (saved.recomputed) Project(pass, input_RD, saved);
  out_.BackwardWeight(pass, work.dbranch_RD,
                      inner_norm_.Recompute(pass, saved.context_RD, work.dcontext_RD, saved.inner));
  out_.BackwardInput(pass, work.dbranch_RD, {}, /*accumulate=*/false, work.dcontext_RD);
  inner_norm_.Backward(pass, work.dcontext_RD, saved.context_RD, saved.inner);
  pass.ops->AttentionBackward({.forward = Args(pass, saved),
                               .dcontext_RD = work.dcontext_RD,
                               .dq_RD = dprojected_RC.narrow(1, 0, width_),
                               .dk_RD = dkv_R2D.narrow(1, 0, width_),
                               .dv_RD = dkv_R2D.narrow(1, width_, width_)});
  if (kv_) {
    const EncoderOutput& source = *pass.encoder_output;
    PassContext source_pass = pass;
    source_pass.rows = source.rows;
    kv_->BackwardWeight(source_pass, dkv_R2D, source.value_RD, /*one_input=*/true);
    kv_->BackwardInput(source_pass, dkv_R2D, {}, /*accumulate=*/true, source.gradient_RD);
  }
  project_.BackwardWeight(pass, dprojected_RC, input_RD);
  project_.BackwardInput(pass, dprojected_RC, {}, residual_.InputGradientAddsToStream(),
                         residual_.InputGradient(pass, dstream_RD));
  residual_.EnterBackward(pass, saved.residual, dstream_RD);
}

void AttentionLayer::FillCache(const PassContext& pass, const at::Tensor& kv_R2D) const {
  PassContext source_pass = pass;
  source_pass.rows = pass.encoder_output->rows;
  kv_->Forward(source_pass, pass.encoder_output->value_RD, /*relu=*/false, kv_R2D);
}

void AttentionLayer::Step(const PassContext& pass, const ResidualStream& stream, Saved& saved,
                          const StepCache& cache) const {
  const int64_t rows = pass.rows->count;
  project_.Forward(pass, residual_.Enter(pass, stream, saved.residual), /*relu=*/false,
                   saved.projected_RC);
  if (!kv_) {
    pass.ops->Copy(rows, saved.k_RD, cache.rows.keys_ND.narrow(0, cache.first_row, rows));
    pass.ops->Copy(rows, saved.v_RD, cache.rows.values_ND.narrow(0, cache.first_row, rows));
  }
  pass.ops->DecodeAttention({.rows = rows,
                             .q_RD = saved.q_RD,
                             .keys_ND = cache.rows.keys_ND,
                             .values_ND = cache.rows.values_ND,
                             .index = cache.index.index,
                             .index_stride = cache.index.stride,
                             .lengths = cache.index.lengths,
                             .heads = heads_,
                             .context_RD = saved.context_RD});
  LeaveBranch(pass, stream, saved);
}

}  // namespace deepnet
