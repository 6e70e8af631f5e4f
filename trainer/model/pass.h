// What every part of a layer is given in a pass, besides its own tensors.
//
// Letters: R rows, D width.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "trainer/kernels/ops.h"

namespace deepnet {

// The residual stream of one stack: rows in stream type and, for products, in operand type. Both
// are one tensor where the types are.
struct Stream {
  at::Tensor value_RD;
  at::Tensor operand_RD;
};

class DeferredWeights;
class SublayerProbe;

struct PassContext {
  Ops* ops = nullptr;
  const PackedRows* rows = nullptr;  // of this stack
  uint64_t seed = 0;
  int64_t step = 0;  // steps taken before this pass
  bool keep = true;  // training: dropout on, state kept for the backward pass
  // Backward: weight gradients go here instead of being computed; null: they are computed.
  DeferredWeights* deferred = nullptr;
  // Forward: told what sub-layers do to their stream; null: nobody asks.
  SublayerProbe* probe = nullptr;
  // B2T: what entered the layer, and in the backward pass the gradient that goes back there
  // (stream). Undefined elsewhere.
  at::Tensor layer_input_RD;
  // RESIDUAL_DUAL: the second stream, and in the backward pass its gradient, which every layer of
  // the stack reads and none changes (stream). Undefined elsewhere, and where layers run again.
  at::Tensor second_RD;
};

}  // namespace deepnet
