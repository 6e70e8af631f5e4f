#include "trainer/model/feed_forward.h"

#include "trainer/kernels/aten.h"

namespace deepnet {

FeedForward::FeedForward(const BuildContext& build, const SublayerPlace& place)
    : width_(build.spec.d_model()),
      inner_(build.spec.ffn_dim()),
      gelu_(build.spec.activation() == GELU),
      dropout_(SiteOf(place, kSiteActivation, build.spec.activation_dropout())),
      fc1_(build, {LayerPrefix(place.stack, place.layer) + "fc1"}),
      fc2_(build, {LayerPrefix(place.stack, place.layer) + "fc2"}),
      residual_(build, place),
      inner_norm_(build, place) {
  if (!MakeSublayerScheme(build.spec, place).shifts) return;
  middle_shift_.emplace(build.parameters, "", BlockName(place) + kMiddleShift);
}

FeedForward::Saved FeedForward::MakeSaved(const Ops& ops, int64_t capacity,
                                          const Workspace* recompute_work) const {
  Saved saved;
  saved.inner = inner_norm_.MakeState(ops, capacity);
  saved.residual = residual_.MakeSaved(ops, capacity);
  if (recompute_work != nullptr) {
    saved.recomputed = true;
    saved.inner_RF = recompute_work->inner_RF;
    saved.pre_RF = recompute_work->pre_RF;
    saved.mask = recompute_work->inner_mask_RF;
    return saved;
  }
  saved.inner_RF = at::zeros({capacity, inner_}, ops.OperandOptions());
  if (gelu_) saved.pre_RF = at::zeros({capacity, inner_}, ops.OperandOptions());
  if (dropout_.rate > 0) saved.mask = MakeMask(ops, capacity, inner_);
  return saved;
}

void FeedForward::MakeInner(const PassContext& pass, const at::Tensor& input_RD,
                            Saved& saved) const {
  const at::Tensor& first_RF = gelu_ ? saved.pre_RF : saved.inner_RF;
  fc1_.Forward(pass, input_RD, /*relu=*/!gelu_ && !middle_shift_, first_RF);
  if (middle_shift_) middle_shift_->Forward(pass, first_RF, first_RF);
  if (middle_shift_ && !gelu_) pass.ops->Relu(pass.rows->count, saved.inner_RF);
  if (gelu_) pass.ops->Gelu(pass.rows->count, saved.pre_RF, saved.inner_RF);
  const DropoutSite dropout = At(dropout_, pass);
  if (dropout.rate > 0) {
    pass.ops->Dropout(pass.rows->count, dropout, *pass.rows, saved.inner_RF, saved.mask);
  }
}

void FeedForward::Forward(const PassContext& pass, const ResidualStream& stream,
                          Saved& saved) const {
  const Workspace& work = *pass.work;
  MakeInner(pass, residual_.Enter(pass, stream, saved.residual), saved);
  fc2_.Forward(pass, inner_norm_.Forward(pass, saved.inner_RF, work.dinner_RF, saved.inner),
               /*relu=*/false, work.branch_RD);
  residual_.Leave(pass, stream, saved.residual);
}

void FeedForward::Backward(const PassContext& pass, const Upstream& upstream,
                           const at::Tensor& dstream_RD, Saved& saved) const {
  const Workspace& work = *pass.work;
  residual_.LeaveBackward(pass, saved.residual, dstream_RD);
  const at::Tensor input_RD = residual_.Input(pass, saved.residual, upstream);
  if (saved.recomputed) MakeInner(pass, input_RD, saved);
  fc2_.BackwardWeight(pass, work.dbranch_RD,
                      inner_norm_.Recompute(pass, saved.inner_RF, work.dinner_RF, saved.inner));
  // With RELU, the positive outputs are those that both the activation and its dropout kept.
  const bool fused = !gelu_ && !inner_norm_.any();
  const bool with_bias = fused && dropout_.rate == 0 && !middle_shift_ && fc1_.CanSplit(pass);
  fc2_.BackwardInput(pass, work.dbranch_RD, fused && !with_bias ? saved.inner_RF : at::Tensor(),
                     /*accumulate=*/false, work.dinner_RF);
  if (with_bias) {
    fc1_.BackwardReluAndBias(pass, saved.inner_RF, work.dinner_RF);
    fc1_.BackwardMatrix(pass, work.dinner_RF, input_RD);
  } else {
    BackwardInner(pass, work.dinner_RF, saved);
    fc1_.BackwardWeight(pass, work.dinner_RF, input_RD);
  }
  fc1_.BackwardInput(pass, work.dinner_RF, {}, residual_.InputGradientAddsToStream(),
                     residual_.InputGradient(pass, dstream_RD));
  residual_.EnterBackward(pass, saved.residual, dstream_RD);
}

void FeedForward::BackwardInner(const PassContext& pass, const at::Tensor& dinner_RF,
                                Saved& saved) const {
  const int64_t rows = pass.rows->count;
  if (inner_norm_.any()) {
    inner_norm_.Backward(pass, dinner_RF, saved.inner_RF, saved.inner);
    if (!gelu_) pass.ops->ReluBackward(rows, saved.inner_RF, dinner_RF);
  }
  if (dropout_.rate > 0) {
    pass.ops->DropoutBackward(rows, dropout_.rate, saved.mask, dinner_RF);
  }
  if (gelu_) pass.ops->GeluBackward(rows, saved.pre_RF, dinner_RF, dinner_RF);
  if (middle_shift_) middle_shift_->BackwardInPlace(pass, dinner_RF, at::Tensor());
}

}  // namespace deepnet
