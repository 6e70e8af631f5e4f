#include "trainer/model/sublayer.h"

#include <ATen/ATen.h>

namespace deepnet {

std::vector<std::string> Projections(const std::string& prefix, std::vector<std::string> letters) {
  for (std::string& letter : letters) letter = prefix + letter + "_proj";
  return letters;
}

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

DropoutSite At(DropoutSite site, const PassContext& pass) {
  site.seed = pass.seed;
  site.step = pass.step;
  if (!pass.keep) site.rate = 0.0;
  return site;
}

const at::Tensor& InputGradient(const Join& join, const at::Tensor& dstream_RD,
                                const Workspace& work) {
  return join.InputGradientAddsToStream() ? dstream_RD : work.dinput_RD;
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
  const int64_t rows = pass.rows->count;
  if (pass.deferred != nullptr) {
    pass.deferred->Add(*pass.ops, rows, dy, x, dweight_, dbias_, one_input);
  } else {
    pass.ops->LinearBackwardWeight(rows, dy, x, dweight_, dbias_);
  }
}

Workspace::Workspace(const ModelSpec& spec, const Ops& ops, int64_t capacity, Recompute recompute)
    : input_RD(at::zeros({capacity, spec.width()}, ops.Operand())),
      branch_RD(at::zeros({capacity, spec.width()}, ops.Stream())),
      dbranch_RD(at::zeros({capacity, spec.width()}, ops.Operand())),
      dcontext_RD(at::zeros({capacity, spec.width()}, ops.Operand())),
      dqkv_R3D(at::zeros({capacity, 3 * spec.width()}, ops.Operand())),
      dinput_RD(at::zeros({capacity, spec.width()}, ops.Stream())),
      dinner_RF(at::zeros({capacity, spec.ffn_width()}, ops.Operand())) {
  if (ReadsLayerInput(spec)) {
    layer_input_RD = at::zeros({capacity, spec.width()}, ops.Stream());
  }
  if (HasSecondStream(spec)) second_RD = at::zeros({capacity, spec.width()}, ops.Stream());
  if (recompute != FFN && recompute != GEMM) return;
  inner_RF = at::zeros({capacity, spec.ffn_width()}, ops.Operand());
  if (spec.activation() == GELU) pre_RF = at::zeros({capacity, spec.ffn_width()}, ops.Operand());
  if (spec.activation_dropout() > 0) {
    inner_mask_RF =
        at::zeros({capacity, (spec.ffn_width() + 7) / 8}, ops.Stream().dtype(at::kByte));
  }
  if (recompute == GEMM) qkv_R3D = at::zeros({capacity, 3 * spec.width()}, ops.Operand());
}

}  // namespace deepnet
