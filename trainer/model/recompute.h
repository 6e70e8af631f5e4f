// What a layer keeps from its forward to its backward pass, level by level, as numbers.
//
// A level names what is not kept but computed again in the backward pass, with the same kernels on
// the same numbers, so that every level gives the same bits (docs/design/recomputation.md):
//
//   NONE   nothing
//   FFN    the feed-forward block's inner rows, by its first product
//   GEMM   also queries, keys and values of every attention, by theirs
//   LAYER  all but the stream that enters a segment of layers, by running the segment again
//
// Pure. Tests hold these figures to the bytes that layers allocate, and the planner's, which knows
// layers by the Inventory alone (parallel/plan/memory.h), to these.
#pragma once

#include <cstdint>

#include "parallel/plan/inventory.h"
#include "parallel/plan/recompute_choice.h"
#include "proto/data.pb.h"
#include "proto/model.pb.h"
#include "proto/plan.pb.h"

namespace deepnet {

// Memory of tensors whose operand type is not known yet.
struct ActivationBytes {
  int64_t bytes = 0;     // of float32 state (streams, statistics) and masks
  int64_t operands = 0;  // elements that have the type of the products' operands

  int64_t Total(int64_t operand_bytes) const { return bytes + operands * operand_bytes; }
  friend bool operator==(const ActivationBytes&, const ActivationBytes&) = default;
};

// What one layer of `kind` (kEncoder or kDecoder) keeps of a full microbatch. LAYER with segments
// of one; with segments of k, every k-th layer keeps this and the others nothing.
ActivationBytes KeptBytes(const ModelSpec& model, const MicrobatchSpec& microbatch, LayerKind kind,
                          Recompute level);

// What recomputation needs once per rank for each kind of layer it has, whatever the number of
// microbatches in flight.
//
//   FFN, GEMM  outputs of products for one layer at a time, in the Workspace of the stack's rows;
//              a decoder's cross-attention also uses the source's
//   LAYER      what the layers of one segment keep at NONE, and the stream that runs through them
//              (with bfloat16 products in both types, and once more as the first branch's input)
ActivationBytes RecomputeBytes(const ModelSpec& model, const MicrobatchSpec& microbatch,
                               LayerKind kind, const RecomputeChoice& choice, DataType operand);

// Operands that one layer's deferred weight gradients hold (trainer/model/deferred_weights.h) from
// BackwardInput to BackwardWeight. Decoder layers of one chunk hold the memory once more, together.
int64_t DeferredOperands(const ModelSpec& model, const MicrobatchSpec& microbatch, LayerKind kind);

}  // namespace deepnet
