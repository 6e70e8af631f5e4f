#include "trainer/model/layer_history.h"

#include <string>

#include <ATen/ATen.h>

#include "trainer/model/scheme.h"

namespace deepnet {
namespace {

at::Tensor FirstRows(const PassContext& pass, const at::Tensor& x_RD) {
  return x_RD.narrow(0, 0, pass.rows->count);
}

}  // namespace

LayerHistory::LayerHistory(const ModelSpec& spec, const Parameters& parameters, int stack)
    : width_(spec.width()) {
  const int layers = stack == 0 ? spec.encoder_layers() : spec.decoder_layers();
  const auto add = [&](const std::string& name) {
    weights_.push_back(parameters.Get(name));
    dweights_.push_back(parameters.Gradient(name));
  };
  for (int layer = 0; layer < layers; ++layer) {
    const std::string prefix = LayerPrefix(stack, layer);
    add(prefix + kHistoryWeight);
    norms_.emplace_back(spec, parameters, prefix + kHistoryNorm);
  }
  add(StackName(stack) + kHistoryWeight);
}

LayerHistory::Saved LayerHistory::MakeSaved(const Ops& ops, int64_t capacity, bool trains) const {
  Saved saved{MakeGradients(ops, capacity), std::vector<NormState>(norms_.size())};
  for (size_t i = 0; trains && i < norms_.size(); ++i) {
    saved.norms[i] = norms_[i].MakeState(ops, capacity);
  }
  return saved;
}

std::vector<at::Tensor> LayerHistory::MakeGradients(const Ops& ops, int64_t capacity) const {
  std::vector<at::Tensor> all;
  for (size_t i = 0; i <= norms_.size(); ++i) {
    all.push_back(at::zeros({capacity, width_}, ops.Stream()));
  }
  return all;
}

void LayerHistory::Begin(const PassContext& pass, const Stream& stream, Saved& saved) const {
  pass.ops->Copy(pass.rows->count, stream.value_RD, saved.outputs_RD[0]);
}

void LayerHistory::Mix(const PassContext& pass, int layer, const Stream& stream,
                       const Saved& saved) const {
  at::Tensor sum = FirstRows(pass, stream.value_RD);
  sum.zero_();
  for (int k = 0; k <= layer; ++k) {
    sum.add_(FirstRows(pass, saved.outputs_RD[k]), weights_[layer][k].item());
  }
}

void LayerHistory::Keep(const PassContext& pass, int layer, const Stream& stream,
                        Saved& saved) const {
  norms_[layer].Forward(pass, stream.value_RD, saved.outputs_RD[layer + 1], saved.norms[layer]);
}

void LayerHistory::MixBackward(const PassContext& pass, int layer, const at::Tensor& dstream_RD,
                               const Saved& saved, const std::vector<at::Tensor>& gradients) const {
  const at::Tensor dsum = FirstRows(pass, dstream_RD);
  const bool output = layer == static_cast<int>(norms_.size());
  for (int k = 0; k <= layer; ++k) {
    at::Tensor dz = FirstRows(pass, gradients[k]);
    if (output) dz.zero_();
    dz.add_(dsum, weights_[layer][k].item());
    dweights_[layer][k] += (dsum * FirstRows(pass, saved.outputs_RD[k])).sum();
  }
}

void LayerHistory::KeepBackward(const PassContext& pass, int layer, const at::Tensor& dstream_RD,
                                Saved& saved, const std::vector<at::Tensor>& gradients) const {
  pass.ops->Copy(pass.rows->count, gradients[layer + 1], dstream_RD);
  norms_[layer].BackwardInPlace(pass, dstream_RD, saved.norms[layer]);
}

void LayerHistory::BeginBackward(const PassContext& pass, const at::Tensor& dstream_RD,
                                 const std::vector<at::Tensor>& gradients) const {
  pass.ops->Copy(pass.rows->count, gradients[0], dstream_RD);
}

}  // namespace deepnet
