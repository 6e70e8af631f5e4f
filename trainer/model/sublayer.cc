#include "trainer/model/sublayer.h"

#include "trainer/kernels/aten.h"

namespace deepnet {

LinearLayer::LinearLayer(const BuildContext& build, const std::vector<std::string>& names) {
  std::vector<std::string> weights, biases;
  for (const std::string& name : names) {
    weights.push_back(name + ".weight");
    biases.push_back(name + ".bias");
  }
  const Parameters& parameters = build.parameters;
  weight_ = parameters.MakeWeight(weights);
  dweight_ = parameters.GradientJoined(weights);
  if (!HasBiases(build.spec)) return;
  bias_ = parameters.GetJoined(biases);
  dbias_ = parameters.GradientJoined(biases);
}

void LinearLayer::AddGradients(const PassContext& pass, const at::Tensor& dy, const at::Tensor& x,
                               const at::Tensor& dbias, bool one_input) const {
  const int64_t rows = pass.rows->count;
  if (DeferredWeights* const deferred = pass.microbatch->deferred; deferred != nullptr) {
    deferred->Add(*pass.ops, {rows, dy, x, dweight_, dbias}, one_input);
  } else {
    pass.ops->LinearBackwardWeight(rows, dy, x, dweight_, dbias);
  }
}

}  // namespace deepnet
