#include "trainer/model/norm.h"

#include <ATen/ATen.h>

#include "trainer/model/scheme.h"

namespace deepnet {

NormLayer::NormLayer(const ModelSpec& spec, const Parameters& parameters, const std::string& name,
                     std::optional<double> epsilon)
    : centred_(spec.norm() != RMS_NORM),
      over_rows_(spec.norm() == BATCH_NORM),
      epsilon_(epsilon.value_or(spec.layer_norm_epsilon())),
      gain_D_(parameters.Get(name + ".weight")),
      dgain_D_(parameters.Gradient(name + ".weight")) {
  if (!HasNormBiases(spec)) return;
  bias_D_ = parameters.Get(name + ".bias");
  dbias_D_ = parameters.Gradient(name + ".bias");
}

NormState NormLayer::MakeState(const Ops& ops, int64_t capacity) const {
  const int64_t features = gain_D_.size(0);
  return {at::zeros({capacity, features}, ops.Stream()),
          at::zeros({over_rows_ ? features : capacity}, ops.Stream())};
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
  const auto stream_type = pass.ops->Stream().dtype();
  ResidualNormArgs args{.rows = pass.rows->count, .state = pass.keep ? &state : nullptr};
  (x_RD.dtype() == stream_type ? args.x_RD : args.branch_RD) = x_RD;
  (y_RD.dtype() == stream_type ? args.y_RD : args.y_operand_RD) = y_RD;
  Into(args);
  pass.ops->ResidualNorm(args);
}

void NormLayer::Output(const PassContext& pass, const NormState& state,
                       const at::Tensor& y_RD) const {
  pass.ops->NormOutput(pass.rows->count, state, gain_D_, bias_D_, y_RD);
}

void NormLayer::BackwardInPlace(const PassContext& pass, const at::Tensor& dy_RD,
                                NormState& state) const {
  ResidualNormGradArgs args{.rows = pass.rows->count, .dy_RD = dy_RD, .state = &state};
  const bool stream = dy_RD.dtype() == pass.ops->Stream().dtype();
  (stream ? args.dx_RD : args.dbranch_RD) = dy_RD;
  Into(args);
  pass.ops->ResidualNormBackward(args);
}

void NormLayer::BackwardInto(const PassContext& pass, const at::Tensor& dy_RD, NormState& state,
                             const at::Tensor& dx_RD) const {
  ResidualNormGradArgs args{.rows = pass.rows->count,
                            .dy_RD = dy_RD,
                            .state = &state,
                            .dx_RD = dx_RD,
                            .accumulate_dx = true};
  Into(args);
  pass.ops->ResidualNormBackward(args);
}

void NormLayer::ForwardStream(const PassContext& pass, const Stream& stream,
                              NormState& state) const {
  ResidualNormArgs args{.rows = pass.rows->count,
                        .x_RD = stream.value_RD,
                        .y_RD = stream.value_RD,
                        .state = pass.keep ? &state : nullptr};
  if (!stream.operand_RD.is_same(stream.value_RD)) args.y_operand_RD = stream.operand_RD;
  Into(args);
  pass.ops->ResidualNorm(args);
}

}  // namespace deepnet
