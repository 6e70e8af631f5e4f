// What stands behind the last layer of a stack, where a scheme has something there: pre-norm
// schemes a normalisation, R_FIXUP trained numbers, RESIDUAL_DUAL the norm of its second stream. It
// belongs to no sub-layer.
//
// Letters: R rows, D width.
#pragma once

#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "proto/model.pb.h"
#include "trainer/kernels/ops.h"
#include "trainer/model/modulation.h"
#include "trainer/model/norm.h"
#include "trainer/model/parameters.h"
#include "trainer/model/pass.h"

namespace deepnet {

class StackEndStep {
 public:
  // `stack`: 0 encoder, 1 decoder. EndOf(spec) is not kNothing.
  StackEndStep(const ModelSpec& spec, const Parameters& parameters, int stack);

  NormState MakeState(const Ops& ops, int64_t capacity) const;
  // The stream behind the step, in place and in both types.
  void Forward(const PassContext& pass, const Stream& stream, NormState& state) const;
  // `dstream_RD` (stream): gradient behind the step on entry, before it on return; pass.second_RD,
  // where there is one: that of the second stream on return.
  void Backward(const PassContext& pass, const at::Tensor& dstream_RD, NormState& state) const;

 private:
  void AddSecond(const PassContext& pass, const Stream& stream, NormState& state) const;

  int64_t width_;
  bool second_;  // the norm is that of the second stream
  std::optional<NormLayer> norm_;
  std::optional<Modulation> modulation_;  // keeps the stream where a norm keeps normalised rows
};

}  // namespace deepnet
