#include "trainer/model/parameters.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "parallel/base/check.h"
#include "parallel/base/philox.h"

namespace deepnet {
namespace {

// Layers that use embedding `name`, in order of EmbeddingUse.
std::vector<EmbeddingUse> UsesOf(const Inventory& inventory, int parameter) {
  std::vector<EmbeddingUse> uses;
  for (const Layer& layer : inventory.layers) {
    if (std::find(layer.parameters.begin(), layer.parameters.end(), parameter) ==
        layer.parameters.end()) {
      continue;
    }
    if (layer.kind == LayerKind::kSourceEmbedding) uses.push_back(EmbeddingUse::kSource);
    if (layer.kind == LayerKind::kTargetEmbedding) uses.push_back(EmbeddingUse::kTarget);
    if (layer.kind == LayerKind::kOutput) uses.push_back(EmbeddingUse::kOutput);
  }
  return uses;
}

}  // namespace

Parameters::Parameters(Inventory inventory, const Ops& ops, bool trainable)
    : inventory_(std::move(inventory)) {
  int64_t gradient_elements = inventory_.NumElements();
  for (int i = 0; i < static_cast<int>(inventory_.parameters.size()); ++i) {
    const Parameter& p = inventory_.parameters[i];
    index_[p.name] = i;
    if (p.role != Role::kEmbedding) continue;
    const std::vector<EmbeddingUse> uses = UsesOf(inventory_, i);
    for (size_t u = 1; u < uses.size(); ++u) {
      later_uses_.push_back({p.name, uses[u], gradient_elements});
      gradient_elements += p.NumElements();
    }
  }
  const int64_t n = inventory_.NumElements();
  weights_ = at::zeros({n}, ops.Stream());
  if (!trainable) return;
  gradient_ = at::zeros({gradient_elements}, ops.Stream());
  moment1_ = at::zeros({n}, ops.Stream());
  moment2_ = at::zeros({n}, ops.Stream());
}

void Parameters::Initialize(uint64_t seed) {
  for (const Parameter& p : inventory_.parameters) {
    const int64_t n = p.NumElements();
    at::Tensor values = at::full({n}, p.initial_value, at::kFloat);
    if (p.initial_std > 0) {
      float* out = values.data_ptr<float>();
      const float std = static_cast<float>(p.initial_std);
      FillInitialNormal(seed, p.name, {out, static_cast<size_t>(n)});
      for (int64_t i = 0; i < n; ++i) out[i] *= std;
    }
    if (p.zero_row >= 0) values.view({p.shape[0], -1})[p.zero_row].zero_();
    weights_.narrow(0, p.offset, n).copy_(values);
  }
}

const Parameter& Parameters::Find(const std::string& name) const {
  const auto it = index_.find(name);
  DEEPNET_CHECK(it != index_.end()) << "no parameter is called " << name;
  return inventory_.parameters[it->second];
}

at::Tensor Parameters::Joined(const at::Tensor& flat, const std::vector<std::string>& names) const {
  if (!flat.defined()) return at::Tensor();
  const Parameter& first = Find(names[0]);
  std::vector<int64_t> shape = first.shape;
  int64_t end = first.offset + first.NumElements();
  for (size_t i = 1; i < names.size(); ++i) {
    const Parameter& next = Find(names[i]);
    DEEPNET_CHECK_EQ(next.offset, end) << names[i] << " does not follow " << names[i - 1];
    shape[0] += next.shape[0];
    end += next.NumElements();
  }
  return flat.narrow(0, first.offset, end - first.offset).view(shape);
}

at::Tensor Parameters::Get(const std::string& name) const { return Joined(weights_, {name}); }

at::Tensor Parameters::GetJoined(const std::vector<std::string>& names) const {
  return Joined(weights_, names);
}

at::Tensor Parameters::Gradient(const std::string& name) const { return Joined(gradient_, {name}); }

at::Tensor Parameters::GradientJoined(const std::vector<std::string>& names) const {
  return Joined(gradient_, names);
}

at::Tensor Parameters::EmbeddingGradient(const std::string& name, EmbeddingUse use) {
  for (const LaterUse& later : later_uses_) {
    if (later.name != name || later.use != use || !gradient_.defined()) continue;
    return gradient_.narrow(0, later.offset, Find(name).NumElements()).view(Find(name).shape);
  }
  return Gradient(name);
}

void Parameters::FoldTied(Ops& ops) {
  for (const LaterUse& later : later_uses_) {
    ops.Add(Gradient(later.name).view({-1}),
            gradient_.narrow(0, later.offset, Find(later.name).NumElements()));
  }
  for (const Parameter& p : inventory_.parameters) {
    if (p.zero_row >= 0) Gradient(p.name)[p.zero_row].zero_();
  }
}

at::Tensor Parameters::FoldedGradient() const {
  return gradient_.narrow(0, 0, inventory_.NumElements());
}

}  // namespace deepnet
