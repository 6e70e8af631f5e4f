#include "trainer/model/before_last.h"

namespace deepnet {

BeforeLast::BeforeLast(const ModelSpec& spec, const Parameters& parameters,
                       const std::string& prefix, const SublayerScheme& scheme, SublayerKind kind) {
  const bool block = kind == SublayerKind::kFeedForward;
  if (scheme.inner_norm) norm_.emplace(spec, parameters, prefix + InnerNormName(kind));
  if (scheme.head_scale) modulation_.emplace(parameters, prefix + HeadScaleName(kind), "");
  if (scheme.shifts && block) modulation_.emplace(parameters, "", prefix + kInnerShift);
}

NormState BeforeLast::MakeState(const Ops& ops, int64_t capacity) const {
  return norm_ ? norm_->MakeState(ops, capacity) : NormState();
}

at::Tensor BeforeLast::Forward(const PassContext& pass, const at::Tensor& inside_RI,
                               const at::Tensor& scratch_RI, NormState& state) const {
  if (!any()) return inside_RI;
  if (norm_) norm_->Forward(pass, inside_RI, scratch_RI, state);
  if (modulation_) modulation_->Forward(pass, inside_RI, scratch_RI);
  return scratch_RI;
}

at::Tensor BeforeLast::Again(const PassContext& pass, const at::Tensor& inside_RI,
                             const at::Tensor& scratch_RI, const NormState& state) const {
  if (!any()) return inside_RI;
  if (norm_) norm_->Output(pass, state, scratch_RI);
  if (modulation_) modulation_->Forward(pass, inside_RI, scratch_RI);
  return scratch_RI;
}

void BeforeLast::Backward(const PassContext& pass, const at::Tensor& dy_RI,
                          const at::Tensor& inside_RI, NormState& state) const {
  if (modulation_) modulation_->BackwardInPlace(pass, dy_RI, inside_RI);
  if (norm_) norm_->BackwardInPlace(pass, dy_RI, state);
}

}  // namespace deepnet
