// PRE_LN's normalisation at the end of a stack: the one norm that belongs to no sub-layer.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "proto/model.pb.h"
#include "trainer/kernels/ops.h"
#include "trainer/model/parameters.h"
#include "trainer/model/residual.h"

namespace deepnet {

class FinalNorm {
 public:
  // `name`: "encoder.layer_norm" or "decoder.layer_norm".
  FinalNorm(const ModelSpec& spec, const Parameters& parameters, const std::string& name);

  NormState MakeState(const Ops& ops, int64_t capacity) const;
  // stream <- LN(stream), in both types.
  void Forward(const PassContext& pass, const Stream& stream, NormState& state) const;
  // `dstream_RD` (stream): gradient behind the norm on entry, before it on return.
  void Backward(const PassContext& pass, const at::Tensor& dstream_RD, NormState& state) const;

 private:
  int64_t width_;
  double epsilon_;
  NormParameters norm_;
};

}  // namespace deepnet
