// Lists what a layer keeps from its forward to its backward pass, level by level, a second
// time: tests hold the Inventory's figures (trainer/model/describe.cc) and the bytes that
// layers allocate to these.
#pragma once

#include <cstdint>

#include "parallel/plan/inventory.h"
#include "proto/data.pb.h"
#include "proto/model.pb.h"
#include "proto/plan.pb.h"
#include "trainer/model/architecture.h"

namespace deepnet::testing {

// Returns what one layer of `kind` (kEncoder or kDecoder) keeps of a full microbatch. FULL with
// segments of one; with segments of k, every k-th layer keeps this and the others nothing.
ActivationBytes KeptBytes(const ModelSpec& model, const MicrobatchSpec& microbatch, LayerKind kind,
                          Recompute level);

// Returns what recomputation needs once per rank for each kind of layer it has, whatever the number
// of microbatches in flight.
//
//   SELECTIVE_FFN,
//   SELECTIVE_GEMM  outputs of products for one layer at a time, in the Workspace of the stack's
//                   rows; a decoder's cross-attention also uses the source's
//   FULL            what the layers of one segment keep at NONE, and the stream that runs through
//                   them (with bfloat16 products in both types, and once more as the first branch's
//                   input)
ActivationBytes RecomputeBytes(const ModelSpec& model, const MicrobatchSpec& microbatch,
                               LayerKind kind, const RecomputeChoice& choice, DataType operand);

// Returns the operands that one layer's deferred weight gradients hold
// (trainer/model/deferred_weights.h) from BackwardInput to BackwardWeight. Decoder layers of one
// chunk hold the encoder output once more, together.
int64_t DeferredOperands(const ModelSpec& model, const MicrobatchSpec& microbatch, LayerKind kind);

}  // namespace deepnet::testing
