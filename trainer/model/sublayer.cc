#include "trainer/model/sublayer.h"

#include <ATen/ATen.h>

namespace deepnet {

const at::Tensor& InputGradient(const ResidualConnection& residual, const at::Tensor& dstream_RD,
                                const Workspace& work) {
  return residual.InputGradientAddsToStream() ? dstream_RD : work.dinput_RD;
}

LinearLayer::LinearLayer(const ModelSpec& spec, Ops& ops, const Parameters& parameters,
                         const std::vector<std::string>& names) {
  std::vector<std::string> weights, biases;
  for (const std::string& name : names) {
    weights.push_back(name + ".weight");
    biases.push_back(name + ".bias");
  }
  weight_ = ops.MakeWeight(parameters.GetJoined(weights), parameters.trainable());
  dweight_ = parameters.GradientJoined(weights);
  if (!HasBiases(spec)) return;
  bias_ = parameters.GetJoined(biases);
  dbias_ = parameters.GradientJoined(biases);
}

void LinearLayer::BackwardWeight(const PassContext& pass, const at::Tensor& dy, const at::Tensor& x,
                                 bool one_input) const {
  AddGradients(pass, dy, x, dbias_, one_input);
}

void LinearLayer::AddGradients(const PassContext& pass, const at::Tensor& dy, const at::Tensor& x,
                               const at::Tensor& dbias, bool one_input) const {
  const int64_t rows = pass.rows->count;
  if (DeferredWeights* const deferred = pass.microbatch->deferred; deferred != nullptr) {
    deferred->Add(*pass.ops, rows, dy, x, dweight_, dbias, one_input);
  } else {
    pass.ops->LinearBackwardWeight(rows, dy, x, dweight_, dbias);
  }
}

Workspace::Workspace(const ModelSpec& spec, const Ops& ops, int64_t capacity, Recompute recompute)
    : input_RD(at::zeros({capacity, spec.d_model()}, ops.OperandOptions())),
      branch_RD(at::zeros({capacity, spec.d_model()}, ops.ResidualOptions())),
      dbranch_RD(at::zeros({capacity, spec.d_model()}, ops.OperandOptions())),
      dcontext_RD(at::zeros({capacity, spec.d_model()}, ops.OperandOptions())),
      dqkv_R3D(at::zeros({capacity, 3 * spec.d_model()}, ops.OperandOptions())),
      dinput_RD(at::zeros({capacity, spec.d_model()}, ops.ResidualOptions())),
      dinner_RF(at::zeros({capacity, spec.ffn_dim()}, ops.OperandOptions())) {
  if (ReadsLayerInput(spec)) {
    layer_input_RD = at::zeros({capacity, spec.d_model()}, ops.ResidualOptions());
  }
  if (HasSecondStream(spec))
    second_RD = at::zeros({capacity, spec.d_model()}, ops.ResidualOptions());
  if (recompute != SELECTIVE_FFN && recompute != SELECTIVE_GEMM) return;
  inner_RF = at::zeros({capacity, spec.ffn_dim()}, ops.OperandOptions());
  if (spec.activation() == GELU)
    pre_RF = at::zeros({capacity, spec.ffn_dim()}, ops.OperandOptions());
  if (spec.activation_dropout() > 0) {
    inner_mask_RF =
        at::zeros({capacity, (spec.ffn_dim() + 7) / 8}, ops.ResidualOptions().dtype(at::kByte));
  }
  if (recompute == SELECTIVE_GEMM)
    qkv_R3D = at::zeros({capacity, 3 * spec.d_model()}, ops.OperandOptions());
}

}  // namespace deepnet
