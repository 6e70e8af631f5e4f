#include "trainer/model/norm.h"

#include "trainer/kernels/aten.h"
#include "trainer/model/scheme.h"

namespace deepnet {

NormLayer::NormLayer(const BuildContext& build, const std::string& name,
                     std::optional<double> epsilon)
    : centred_(build.spec.norm() != RMS_NORM),
      over_rows_(build.spec.norm() == BATCH_NORM),
      epsilon_(epsilon.value_or(build.spec.layer_norm_epsilon())),
      gain_D_(build.parameters.Trained(name + ".weight")) {
  if (HasNormBiases(build.spec)) bias_D_ = build.parameters.Trained(name + ".bias");
}

NormState NormLayer::MakeState(const Ops& ops, int64_t capacity) const {
  const int64_t features = gain_D_.value.size(0);
  return {at::zeros({capacity, features}, ops.ResidualOptions()),
          at::zeros({over_rows_ ? features : capacity}, ops.ResidualOptions())};
}

void NormLayer::Run(const PassContext& pass, ResidualNormArgs args, const NormState& state) const {
  args.rows = pass.rows->count;
  if (pass.keep()) args.state = state;
  args.centred = centred_;
  args.over_rows = over_rows_;
  args.gain_D = gain_D_.value;
  args.bias_D = bias_D_.value;
  args.epsilon = epsilon_;
  pass.ops->ResidualNorm(args);
}

void NormLayer::RunBackward(const PassContext& pass, ResidualNormGradArgs args,
                            NormState& state) const {
  args.rows = pass.rows->count;
  args.state = state;
  args.centred = centred_;
  args.over_rows = over_rows_;
  args.gain_D = gain_D_.value;
  args.dgain_D = gain_D_.gradient;
  args.dbias_D = bias_D_.gradient;
  pass.ops->ResidualNormBackward(args);
}

void NormLayer::Forward(const PassContext& pass, const at::Tensor& x_RD, const at::Tensor& y_RD,
                        const NormState& state) const {
  const auto residual_type = pass.ops->ResidualOptions().dtype();
  ResidualNormArgs args;
  (x_RD.dtype() == residual_type ? args.x_RD : args.branch_RD) = x_RD;
  (y_RD.dtype() == residual_type ? args.y_RD : args.y_operand_RD) = y_RD;
  Run(pass, args, state);
}

void NormLayer::Output(const PassContext& pass, const NormState& state,
                       const at::Tensor& y_RD) const {
  pass.ops->NormOutput(pass.rows->count, state, gain_D_.value, bias_D_.value, y_RD);
}

void NormLayer::BackwardInPlace(const PassContext& pass, const at::Tensor& dy_RD,
                                NormState& state) const {
  const bool stream = dy_RD.dtype() == pass.ops->ResidualOptions().dtype();
  ResidualNormGradArgs args{.dy_RD = dy_RD};
  (stream ? args.dx_RD : args.dbranch_RD) = dy_RD;
  RunBackward(pass, args, state);
}

void NormLayer::BackwardInto(const PassContext& pass, const at::Tensor& dy_RD, NormState& state,
                             const at::Tensor& dx_RD) const {
  RunBackward(pass, {.dy_RD = dy_RD, .dx_RD = dx_RD, .accumulate_dx = true}, state);
}

void NormLayer::ForwardStream(const PassContext& pass, const ResidualStream& stream,
                              const NormState& state) const {
  Run(pass,
      {.x_RD = stream.value_RD, .y_RD = stream.value_RD, .y_operand_RD = stream.own_operand_RD()},
      state);
}

ScaleShift::ScaleShift(const Parameters& parameters, const std::string& scale,
                       const std::string& shift) {
  if (!scale.empty()) scale_G_ = parameters.Trained(scale);
  if (!shift.empty()) shift_1_ = parameters.Trained(shift);
}

void ScaleShift::Forward(const PassContext& pass, const at::Tensor& x_RD,
                         const at::Tensor& y_RD) const {
  pass.ops->ScaleShift({.rows = pass.rows->count,
                        .x_RD = x_RD,
                        .scale_G = scale_G_.value,
                        .shift_1 = shift_1_.value,
                        .y_RD = y_RD});
}

void ScaleShift::BackwardInPlace(const PassContext& pass, const at::Tensor& dy_RD,
                                 const at::Tensor& x_RD) const {
  pass.ops->ScaleShiftBackward({.rows = pass.rows->count,
                                .dy_RD = dy_RD,
                                .x_RD = x_RD,
                                .scale_G = scale_G_.value,
                                .shift_1 = shift_1_.value,
                                .dx_RD = dy_RD,
                                .dscale_G = scale_G_.gradient,
                                .dshift_1 = shift_1_.gradient});
}

}  // namespace deepnet
