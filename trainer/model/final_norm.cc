#include "trainer/model/final_norm.h"

#include <ATen/ATen.h>

namespace deepnet {

FinalNorm::FinalNorm(const ModelSpec& spec, const Parameters& parameters, const std::string& name)
    : width_(spec.width()), epsilon_(spec.layer_norm_epsilon()), norm_(parameters, name) {}

NormState FinalNorm::MakeState(const Ops& ops, int64_t capacity) const {
  return {at::zeros({capacity, width_}, ops.Stream()), at::zeros({capacity}, ops.Stream())};
}

void FinalNorm::Forward(const PassContext& pass, const Stream& stream, NormState& state) const {
  ResidualNormArgs args{.rows = pass.rows->count,
                        .x_RD = stream.value_RD,
                        .gain_D = norm_.gain_D,
                        .bias_D = norm_.bias_D,
                        .epsilon = epsilon_,
                        .y_RD = stream.value_RD,
                        .state = pass.keep ? &state : nullptr};
  if (!stream.operand_RD.is_same(stream.value_RD)) args.y_operand_RD = stream.operand_RD;
  pass.ops->ResidualNorm(args);
}

void FinalNorm::Backward(const PassContext& pass, const at::Tensor& dstream_RD,
                         NormState& state) const {
  pass.ops->ResidualNormBackward({.rows = pass.rows->count,
                                  .dy_RD = dstream_RD,
                                  .state = &state,
                                  .gain_D = norm_.gain_D,
                                  .dx_RD = dstream_RD,
                                  .dgain_D = norm_.dgain_D,
                                  .dbias_D = norm_.dbias_D});
}

}  // namespace deepnet
