// A normalisation with its parameters: LayerNorm, RMSNorm or BatchNorm, as the model says.
//
// The same object serves the fused residual step (trainer/model/residual.h), which fills its
// arguments by Into, and norms that stand alone.
//
// Letters: R rows, D features of what is normalised.
#pragma once

#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "proto/model.pb.h"
#include "trainer/kernels/ops.h"
#include "trainer/model/parameters.h"
#include "trainer/model/pass.h"

namespace deepnet {

class NormLayer {
 public:
  // Parameters `name`.weight and, but for RMSNorm, `name`.bias. `epsilon`: the model's if not
  // given.
  NormLayer(const ModelSpec& spec, const Parameters& parameters, const std::string& name,
            std::optional<double> epsilon = {});

  NormState MakeState(const Ops& ops, int64_t capacity) const;

  // What is this norm's in the arguments of a step that ends in it.
  void Into(ResidualNormArgs& args) const;
  void Into(ResidualNormGradArgs& args) const;

  // y = N(x), of either type each; y may be x where the types are one. Nothing is kept in
  // inference.
  void Forward(const PassContext& pass, const at::Tensor& x_RD, const at::Tensor& y_RD,
               NormState& state) const;
  // y (operand) again, bit for bit.
  void Output(const PassContext& pass, const NormState& state, const at::Tensor& y_RD) const;
  // `dy_RD` (stream or operand): gradient behind the norm on entry, before it on return.
  void BackwardInPlace(const PassContext& pass, const at::Tensor& dy_RD, NormState& state) const;
  // dx (stream) += the gradient before the norm.
  void BackwardInto(const PassContext& pass, const at::Tensor& dy_RD, NormState& state,
                    const at::Tensor& dx_RD) const;

  // stream <- N(stream), in both types, and its backward pass.
  void ForwardStream(const PassContext& pass, const Stream& stream, NormState& state) const;

 private:
  bool centred_, over_rows_;
  double epsilon_;
  at::Tensor gain_D_, bias_D_, dgain_D_, dbias_D_;  // biases undefined with RMSNorm
};

}  // namespace deepnet
