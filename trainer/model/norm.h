// Trained parts that stand between products: normalisations, and factors and shifts.
//
// Letters: R rows, D features.
#pragma once

#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "trainer/kernels/ops.h"
#include "trainer/model/parameters.h"
#include "trainer/model/pass.h"

namespace deepnet {

// LayerNorm, RMSNorm or BatchNorm, as the model says, alone or at the end of the fused residual
// step (trainer/model/residual.h).
class NormLayer {
 public:
  // Parameters `name`.weight and, except for RMSNorm, `name`.bias. `epsilon`: the model's if not
  // given.
  NormLayer(const BuildContext& build, const std::string& name, std::optional<double> epsilon = {});

  NormState MakeState(const Ops& ops, int64_t capacity) const;

  // Runs a step that ends in this norm, whose part of the arguments, rows and state are filled in
  // here. Nothing is kept in inference.
  void Run(const PassContext& pass, ResidualNormArgs args, const NormState& state) const;
  void RunBackward(const PassContext& pass, ResidualNormGradArgs args, NormState& state) const;

  // y = N(x), of either type each; y may be x where the types are equal.
  void Forward(const PassContext& pass, const at::Tensor& x_RD, const at::Tensor& y_RD,
               const NormState& state) const;
  // Writes y (operand) once more, with the same bits.
  void Output(const PassContext& pass, const NormState& state, const at::Tensor& y_RD) const;
  // `dy_RD` (residual or operand): gradient of y on entry, of x on return.
  void BackwardInPlace(const PassContext& pass, const at::Tensor& dy_RD, NormState& state) const;
  // dx (residual) += the gradient of x.
  void BackwardInto(const PassContext& pass, const at::Tensor& dy_RD, NormState& state,
                    const at::Tensor& dx_RD) const;

  // stream <- N(stream), in both types.
  void ForwardStream(const PassContext& pass, const ResidualStream& stream,
                     const NormState& state) const;

 private:
  bool centred_, over_rows_;
  double epsilon_;
  TrainedTensor gain_D_, bias_D_;  // bias undefined with RMSNorm
};

// Trained factors and a trained shift that some residual schemes put on streams, branches and
// heads: y = scale * (x - shift).
class ScaleShift {
 public:
  // `scale`, `shift`: names of the parameters; empty: y has no such part.
  ScaleShift(const Parameters& parameters, const std::string& scale, const std::string& shift);

  // x, y: residual or operand; y may be x.
  void Forward(const PassContext& pass, const at::Tensor& x_RD, const at::Tensor& y_RD) const;
  // `dy_RD` (residual or operand): gradient of y on entry, of x on return. `x_RD`: as given to
  // Forward; read only if there is a scale.
  void BackwardInPlace(const PassContext& pass, const at::Tensor& dy_RD,
                       const at::Tensor& x_RD) const;

 private:
  TrainedTensor scale_G_, shift_1_;
};

}  // namespace deepnet
