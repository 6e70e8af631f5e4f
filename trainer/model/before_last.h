// What some schemes put between the inside of a branch and its last matrix: a normalisation
// (SUB_LN, NORMFORMER), a factor for each head (NORMFORMER), a shift (R_FIXUP).
//
// Letters: R rows, I inner features: the width in an attention, the inner width in a feed-forward
// block.
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
#include "trainer/model/scheme.h"

namespace deepnet {

class BeforeLast {
 public:
  // `prefix`: of the layer.
  BeforeLast(const ModelSpec& spec, const Parameters& parameters, const std::string& prefix,
             const SublayerScheme& scheme, SublayerKind kind);

  // Whether the last matrix reads anything but the inside itself.
  bool any() const { return norm_.has_value() || modulation_.has_value(); }
  NormState MakeState(const Ops& ops, int64_t capacity) const;

  // The last matrix's input (operand): `inside_RI` itself, or what is made of it in `scratch_RI`.
  at::Tensor Forward(const PassContext& pass, const at::Tensor& inside_RI,
                     const at::Tensor& scratch_RI, NormState& state) const;
  // The same again, bit for bit.
  at::Tensor Again(const PassContext& pass, const at::Tensor& inside_RI,
                   const at::Tensor& scratch_RI, const NormState& state) const;
  // `dy_RI` (operand): gradient of the last matrix's input on entry, of the inside on return.
  void Backward(const PassContext& pass, const at::Tensor& dy_RI, const at::Tensor& inside_RI,
                NormState& state) const;

 private:
  std::optional<NormLayer> norm_;
  std::optional<Modulation> modulation_;
};

}  // namespace deepnet
