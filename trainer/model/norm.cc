#include "trainer/model/norm.h"

#include <ATen/ATen.h>

#include "trainer/model/scheme.h"

namespace deepnet {

NormLayer::NormLayer(const BuildContext& build, const std::string& name,
                     std::optional<double> epsilon)
    : centred_(build.spec.norm() != RMS_NORM),
      over_rows_(build.spec.norm() == BATCH_NORM),
      epsilon_(epsilon.value_or(build.spec.layer_norm_epsilon())),
      gain_D_(build.parameters.Get(name + ".weight")),
      dgain_D_(build.parameters.Gradient(name + ".weight")) {
  if (!HasNormBiases(build.spec)) return;
  bias_D_ = build.parameters.Get(name + ".bias");
  dbias_D_ = build.parameters.Gradient(name + ".bias");
}

NormState NormLayer::MakeState(const Ops& ops, int64_t capacity) const {
  const int64_t features = gain_D_.size(0);
  return {at::zeros({capacity, features}, ops.ResidualOptions()),
          at::zeros({over_rows_ ? features : capacity}, ops.ResidualOptions())};
}

void NormLayer::Into(ResidualNormArgs& args) const {
  args.centred = centred_;
  args.over_rows = over_rows_;
  args.gain_D = gain_D_;
  args.bias_D = bias_D_;
  args.epsilon = epsilon_;
}

void NormLayer::Into(ResidualNormGradArgs& args) const {
  args.centred = centred_;
  args.over_rows = over_rows_;
  args.gain_D = gain_D_;
  args.dgain_D = dgain_D_;
  args.dbias_D = dbias_D_;
}

void NormLayer::Forward(const PassContext& pass, const at::Tensor& x_RD, const at::Tensor& y_RD,
                        NormState& state) const {
  const auto residual_type = pass.ops->ResidualOptions().dtype();
  ResidualNormArgs args{.rows = pass.rows->count, .state = pass.keep() ? state : NormState{}};
  (x_RD.dtype() == residual_type ? args.x_RD : args.branch_RD) = x_RD;
  (y_RD.dtype() == residual_type ? args.y_RD : args.y_operand_RD) = y_RD;
  Into(args);
  pass.ops->ResidualNorm(args);
}

void NormLayer::Output(const PassContext& pass, const NormState& state,
                       const at::Tensor& y_RD) const {
  pass.ops->NormOutput(pass.rows->count, state, gain_D_, bias_D_, y_RD);
}

void NormLayer::BackwardInPlace(const PassContext& pass, const at::Tensor& dy_RD,
                                NormState& state) const {
  ResidualNormGradArgs args{.rows = pass.rows->count, .dy_RD = dy_RD, .state = state};
  const bool stream = dy_RD.dtype() == pass.ops->ResidualOptions().dtype();
  (stream ? args.dx_RD : args.dbranch_RD) = dy_RD;
  Into(args);
  pass.ops->ResidualNormBackward(args);
}

void NormLayer::BackwardInto(const PassContext& pass, const at::Tensor& dy_RD, NormState& state,
                             const at::Tensor& dx_RD) const {
  ResidualNormGradArgs args{.rows = pass.rows->count,
                            .dy_RD = dy_RD,
                            .state = state,
                            .dx_RD = dx_RD,
                            .accumulate_dx = true};
  Into(args);
  pass.ops->ResidualNormBackward(args);
}

void NormLayer::ForwardStream(const PassContext& pass, const ResidualStream& stream,
                              NormState& state) const {
  ResidualNormArgs args{.rows = pass.rows->count,
                        .x_RD = stream.value_RD,
                        .y_RD = stream.value_RD,
                        .state = pass.keep() ? state : NormState{}};
  if (!stream.one_tensor()) args.y_operand_RD = stream.operand_RD;
  Into(args);
  pass.ops->ResidualNorm(args);
}

ScaleShift::ScaleShift(const Parameters& parameters, const std::string& scale,
                       const std::string& shift) {
  if (!scale.empty()) {
    scale_G_ = parameters.Get(scale);
    dscale_G_ = parameters.Gradient(scale);
  }
  if (!shift.empty()) {
    shift_1_ = parameters.Get(shift);
    dshift_1_ = parameters.Gradient(shift);
  }
}

void ScaleShift::Forward(const PassContext& pass, const at::Tensor& x_RD,
                         const at::Tensor& y_RD) const {
  pass.ops->ScaleShift({.rows = pass.rows->count,
                        .x_RD = x_RD,
                        .scale_G = scale_G_,
                        .shift_1 = shift_1_,
                        .y_RD = y_RD});
}

void ScaleShift::BackwardInPlace(const PassContext& pass, const at::Tensor& dy_RD,
                                 const at::Tensor& x_RD) const {
  pass.ops->ScaleShiftBackward({.rows = pass.rows->count,
                                .dy_RD = dy_RD,
                                .x_RD = x_RD,
                                .scale_G = scale_G_,
                                .shift_1 = shift_1_,
                                .dx_RD = dy_RD,
                                .dscale_G = dscale_G_,
                                .dshift_1 = dshift_1_});
}

}  // namespace deepnet
