#include "trainer/model/parameters.h"

#include <utility>

#include "parallel/base/check.h"
#include "trainer/kernels/aten.h"

namespace deepnet {

Parameters::Parameters(Inventory inventory, Ops& ops, bool trainable)
    : ops_(ops), inventory_(std::move(inventory)), first_use_(inventory_.parameters.size(), -1) {
  int64_t accumulators = 0;
  for (int l = 0; l < static_cast<int>(inventory_.layers.size()); ++l) {
    for (const int parameter : inventory_.layers[l].parameters) {
      const Parameter& p = inventory_.parameters[parameter];
      if (first_use_[parameter] < 0) first_use_[parameter] = static_cast<int>(uses_.size());
      uses_.push_back({l, parameter, accumulators, p.offset, p.NumElements()});
      accumulators += p.NumElements();
    }
  }
  for (int i = 0; i < static_cast<int>(inventory_.parameters.size()); ++i) {
    index_[inventory_.parameters[i].name] = i;
    DEEPNET_CHECK(first_use_[i] >= 0) << inventory_.parameters[i].name << " is in no layer";
  }
  const int64_t n = inventory_.NumElements();
  weights_ = at::zeros({n}, ops.ResidualOptions());
  if (!trainable) return;
  gradient_ = at::zeros({accumulators}, ops.ResidualOptions());
  moment_elements_ = n;
}

const at::Tensor& Parameters::Moment(at::Tensor& moment) const {
  if (!moment.defined() && trainable()) {
    moment = at::zeros({moment_elements_}, weights_.options());
  }
  return moment;
}

void Parameters::ShardMoments(int64_t elements) {
  const bool asked = moment1_.defined() || moment2_.defined();
  DEEPNET_CHECK(!asked || elements == moment_elements_) << "moments exist";
  moment_elements_ = elements;
}

void Parameters::KeepAverage() { average_ = at::zeros({moment_elements_}, weights_.options()); }

void Parameters::Initialize(uint64_t seed) {
  for (const Parameter& p : inventory_.parameters) {
    const at::Tensor values = weights_.narrow(0, p.offset, p.NumElements());
    if (p.initial_std > 0) {
      ops_.InitialNormal(seed, p.name, p.initial_std, values);
    } else if (p.initial_value == 0) {
      values.zero_();
    } else {
      values.copy_(at::full({p.NumElements()}, p.initial_value, values.scalar_type()));
    }
    if (p.zero_row >= 0) values.view({p.shape[0], -1})[p.zero_row].zero_();
  }
}

const Use& Parameters::FirstUse(const std::string& name) const {
  const auto it = index_.find(name);
  DEEPNET_CHECK(it != index_.end()) << "no parameter is called " << name;
  return uses_[first_use_[it->second]];
}

at::Tensor Parameters::Joined(const at::Tensor& flat, int64_t Use::*offset,
                              const std::vector<std::string>& names) const {
  if (!flat.defined()) return at::Tensor();
  const Use& first = FirstUse(names[0]);
  std::vector<int64_t> shape = inventory_.parameters[first.parameter].shape;
  int64_t end = first.*offset + first.count;
  for (size_t i = 1; i < names.size(); ++i) {
    const Use& next = FirstUse(names[i]);
    DEEPNET_CHECK_EQ(next.*offset, end) << names[i] << " does not follow " << names[i - 1];
    shape[0] += inventory_.parameters[next.parameter].shape[0];
    end += next.count;
  }
  return flat.narrow(0, first.*offset, end - first.*offset).view(shape);
}

at::Tensor Parameters::GetJoined(const std::vector<std::string>& names) const {
  return Joined(weights_, &Use::weight_offset, names);
}

const Weight* Parameters::MakeWeight(const std::vector<std::string>& names) const {
  working_copies_.push_back(ops_.MakeWeight(GetJoined(names), trainable()));
  return working_copies_.back().get();
}

void Parameters::Refresh() const {
  for (const std::unique_ptr<Weight>& weight : working_copies_) ops_.Refresh(*weight);
}

at::Tensor Parameters::GradientJoined(const std::vector<std::string>& names) const {
  return Joined(gradient_, &Use::gradient_offset, names);
}

at::Tensor Parameters::EmbeddingGradient(const std::string& name, LayerKind use) const {
  const int parameter = FirstUse(name).parameter;
  for (const Use& here : uses_) {
    if (here.parameter != parameter || inventory_.layers[here.layer].kind != use) continue;
    if (!trainable()) return at::Tensor();
    return gradient_.narrow(0, here.gradient_offset, here.count)
        .view(inventory_.parameters[parameter].shape);
  }
  DEEPNET_CHECK(false) << name << " is not used so here";
  return at::Tensor();
}

GradientSpan Parameters::GradientRange(int first_layer, int end_layer) const {
  GradientSpan span;
  for (const Use& use : uses_) {
    if (use.layer < first_layer) span.begin = use.gradient_offset + use.count;
    if (use.layer >= first_layer && use.layer < end_layer) span.count += use.count;
  }
  return span;
}

}  // namespace deepnet
