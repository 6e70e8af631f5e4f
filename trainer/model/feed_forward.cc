#include "trainer/model/feed_forward.h"

#include <ATen/ATen.h>

namespace deepnet {

FeedForward::FeedForward(const ModelSpec& spec, Ops& ops, const Parameters& parameters, int stack,
                         int layer)
    : width_(spec.width()),
      inner_(spec.ffn_width()),
      gelu_(spec.activation() == GELU),
      dropout_{.stack = stack,
               .layer = layer,
               .site = kSiteActivation,
               .rate = spec.activation_dropout()},
      fc1_(spec, ops, parameters, {LayerPrefix(stack, layer) + "fc1"}),
      fc2_(spec, ops, parameters, {LayerPrefix(stack, layer) + "fc2"}),
      join_(spec, parameters, stack, layer, SublayerKind::kFeedForward),
      before_last_(spec, parameters, LayerPrefix(stack, layer), join_.scheme(),
                   SublayerKind::kFeedForward) {
  if (!join_.scheme().shifts) return;
  middle_shift_.emplace(parameters, "", LayerPrefix(stack, layer) + kMiddleShift);
}

FeedForward::Saved FeedForward::MakeSaved(const Ops& ops, int64_t capacity,
                                          const Workspace* again) const {
  Saved saved;
  saved.inner = before_last_.MakeState(ops, capacity);
  saved.join = join_.MakeSaved(ops, capacity);
  if (again != nullptr) {
    saved.again = true;
    saved.inner_RF = again->inner_RF;
    saved.pre_RF = again->pre_RF;
    saved.mask = again->inner_mask_RF;
    return saved;
  }
  saved.inner_RF = at::zeros({capacity, inner_}, ops.Operand());
  if (gelu_) saved.pre_RF = at::zeros({capacity, inner_}, ops.Operand());
  if (dropout_.rate > 0) {
    saved.mask = at::zeros({capacity, (inner_ + 7) / 8}, ops.Stream().dtype(at::kByte));
  }
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

void FeedForward::Forward(const PassContext& pass, const Stream& stream, Workspace& work,
                          Saved& saved) const {
  MakeInner(pass, join_.Enter(pass, stream, work.input_RD, saved.join), saved);
  fc2_.Forward(pass, before_last_.Forward(pass, saved.inner_RF, work.dinner_RF, saved.inner),
               /*relu=*/false, work.branch_RD);
  join_.Leave(pass, stream, work.branch_RD, saved.join);
}

void FeedForward::Backward(const PassContext& pass, const Upstream& upstream,
                           const at::Tensor& dstream_RD, Workspace& work, Saved& saved) const {
  join_.LeaveBackward(pass, saved.join, dstream_RD, work.dbranch_RD);
  const at::Tensor input_RD = join_.Input(pass, saved.join, upstream, work.input_RD);
  if (saved.again) MakeInner(pass, input_RD, saved);
  fc2_.BackwardWeight(pass, work.dbranch_RD,
                      before_last_.Again(pass, saved.inner_RF, work.dinner_RF, saved.inner));
  // With RELU, positive outputs are those that were kept by both the activation and its dropout.
  const bool fused = !gelu_ && !before_last_.any();
  fc2_.BackwardInput(pass, work.dbranch_RD, fused ? saved.inner_RF : at::Tensor(),
                     /*accumulate=*/false, work.dinner_RF);
  BackwardInner(pass, work.dinner_RF, saved);
  fc1_.BackwardWeight(pass, work.dinner_RF, input_RD);
  fc1_.BackwardInput(pass, work.dinner_RF, {}, join_.InputGradientAddsToStream(),
                     InputGradient(join_, dstream_RD, work));
  join_.EnterBackward(pass, saved.join, work.dinput_RD, dstream_RD);
}

void FeedForward::BackwardInner(const PassContext& pass, const at::Tensor& dinner_RF,
                                Saved& saved) const {
  const int64_t rows = pass.rows->count;
  if (before_last_.any()) {
    before_last_.Backward(pass, dinner_RF, saved.inner_RF, saved.inner);
    if (!gelu_) pass.ops->ReluBackward(rows, saved.inner_RF, dinner_RF);
  }
  if (dropout_.rate > 0) {
    pass.ops->DropoutBackward(rows, dropout_.rate, saved.mask, dinner_RF);
  }
  if (gelu_) pass.ops->GeluBackward(rows, saved.pre_RF, dinner_RF, dinner_RF);
  if (middle_shift_) middle_shift_->BackwardInPlace(pass, dinner_RF, at::Tensor());
}

void FeedForward::Refresh(Ops& ops) {
  fc1_.Refresh(ops);
  fc2_.Refresh(ops);
}

}  // namespace deepnet
