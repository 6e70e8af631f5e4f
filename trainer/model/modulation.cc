#include "trainer/model/modulation.h"

namespace deepnet {

Modulation::Modulation(const Parameters& parameters, const std::string& scale,
                       const std::string& shift) {
  if (!scale.empty()) {
    scale_G_ = parameters.Get(scale);
    dscale_G_ = parameters.Gradient(scale);
  }
  if (!shift.empty()) {
    shift_1_ = parameters.Get(shift);
    dshift_1_ = parameters.Gradient(shift);
  }
}

void Modulation::Forward(const PassContext& pass, const at::Tensor& x_RD,
                         const at::Tensor& y_RD) const {
  pass.ops->Modulate({.rows = pass.rows->count,
                      .x_RD = x_RD,
                      .scale_G = scale_G_,
                      .shift_1 = shift_1_,
                      .y_RD = y_RD});
}

void Modulation::BackwardInPlace(const PassContext& pass, const at::Tensor& dy_RD,
                                 const at::Tensor& x_RD) const {
  pass.ops->ModulateBackward({.rows = pass.rows->count,
                              .dy_RD = dy_RD,
                              .x_RD = x_RD,
                              .scale_G = scale_G_,
                              .shift_1 = shift_1_,
                              .dx_RD = dy_RD,
                              .dscale_G = dscale_G_,
                              .dshift_1 = dshift_1_});
}

}  // namespace deepnet
