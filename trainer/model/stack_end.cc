#include "trainer/model/stack_end.h"

#include <ATen/ATen.h>

#include "parallel/base/check.h"
#include "trainer/model/scheme.h"

namespace deepnet {

StackEndStep::StackEndStep(const ModelSpec& spec, const Parameters& parameters, int stack)
    : width_(spec.width()), second_(EndOf(spec) == StackEnd::kSecondNorm) {
  const std::string name = StackName(stack);
  switch (EndOf(spec)) {
    case StackEnd::kNorm:
      norm_.emplace(spec, parameters, name + kFinalNorm);
      return;
    case StackEnd::kSecondNorm:
      norm_.emplace(spec, parameters, name + kFinalNorm, SecondNormEpsilon(spec));
      return;
    case StackEnd::kScaledShift:
      modulation_.emplace(parameters, stack == 0 ? name + kFinalScale : "", name + kFinalShift);
      return;
    case StackEnd::kNothing:
      DEEPNET_CHECK(false) << "nothing stands there";
  }
}

NormState StackEndStep::MakeState(const Ops& ops, int64_t capacity) const {
  if (norm_) return norm_->MakeState(ops, capacity);
  return {at::zeros({capacity, width_}, ops.Stream()), {}};
}

void StackEndStep::Forward(const PassContext& pass, const Stream& stream, NormState& state) const {
  if (second_) return AddSecond(pass, stream, state);
  if (norm_) return norm_->ForwardStream(pass, stream, state);
  const int64_t rows = pass.rows->count;
  if (pass.keep) pass.ops->Copy(rows, stream.value_RD, state.xhat_RD);
  modulation_->Forward(pass, stream.value_RD, stream.value_RD);
  if (!stream.operand_RD.is_same(stream.value_RD)) {
    pass.ops->Copy(rows, stream.value_RD, stream.operand_RD);
  }
}

// The second stream becomes its norm: nobody reads it any more.
void StackEndStep::AddSecond(const PassContext& pass, const Stream& stream,
                             NormState& state) const {
  const int64_t rows = pass.rows->count;
  norm_->Forward(pass, pass.second_RD, pass.second_RD, state);
  pass.ops->Add(stream.value_RD.narrow(0, 0, rows), pass.second_RD.narrow(0, 0, rows));
  if (!stream.operand_RD.is_same(stream.value_RD)) {
    pass.ops->Copy(rows, stream.value_RD, stream.operand_RD);
  }
}

void StackEndStep::Backward(const PassContext& pass, const at::Tensor& dstream_RD,
                            NormState& state) const {
  if (second_) {
    pass.ops->Copy(pass.rows->count, dstream_RD, pass.second_RD);
    return norm_->BackwardInPlace(pass, pass.second_RD, state);
  }
  if (norm_) return norm_->BackwardInPlace(pass, dstream_RD, state);
  modulation_->BackwardInPlace(pass, dstream_RD, state.xhat_RD);
}

}  // namespace deepnet
