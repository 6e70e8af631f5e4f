// Trained factors and shifts that some residual schemes put on streams, branches and heads:
// y = scale * (x - shift).
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "trainer/kernels/ops.h"
#include "trainer/model/parameters.h"
#include "trainer/model/pass.h"

namespace deepnet {

class Modulation {
 public:
  // Names of the parameters; empty: there is none of the kind.
  Modulation(const Parameters& parameters, const std::string& scale, const std::string& shift);

  // x, y: stream or operand; y may be x.
  void Forward(const PassContext& pass, const at::Tensor& x_RD, const at::Tensor& y_RD) const;
  // `dy_RD` (stream or operand): gradient of y on entry, of x on return. `x_RD`: as it went in;
  // read only if there is a scale.
  void BackwardInPlace(const PassContext& pass, const at::Tensor& dy_RD,
                       const at::Tensor& x_RD) const;

 private:
  at::Tensor scale_G_, dscale_G_, shift_1_, dshift_1_;
};

}  // namespace deepnet
