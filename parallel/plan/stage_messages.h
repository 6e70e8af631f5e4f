// What travels between ranks where the model is cut: the Inventory's boundary tensors, less what
// the receiving rank has already.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "parallel/plan/inventory.h"
#include "parallel/plan/partition.h"

namespace deepnet {

// Per microbatch, at the cut before one chunk. Shapes are those of the microbatch's capacities, so
// they are constants of a run.
struct StageMessages {
  std::vector<BoundaryTensor> forward;   // values, in the order of Layer::inputs
  std::vector<BoundaryTensor> backward;  // their gradients, float32, in the order of Layer::inputs

  friend bool operator==(const StageMessages&, const StageMessages&) = default;
};

// Element c: what crosses the cut before chunk c, whose last layer is chunk_ends[c] - 1. Empty for
// chunk 0 and where both sides are on one rank.
//
// forward: the inputs of the chunk's first layer. A tensor other than kHidden (the encoder memory)
//   is left out if the rank holds it for this microbatch already, because an earlier chunk of its
//   takes it as input or produces it: it travels once per rank. It has the type `operand_type`,
//   the hidden stream its own.
// backward: gradients of all inputs that need one. That of the memory is an accumulator which a
// left
//   fold over decoder layers M..1 passes on, so it crosses every decoder cut between ranks and
//   reaches the chunk with the last encoder layer exactly once.
std::vector<StageMessages> MakeStageMessages(const Inventory& inventory,
                                             std::span<const int> chunk_ends,
                                             const Placement& placement,
                                             std::string_view operand_type = "float32");

// Bytes of `tensor`, whose dtype is "float32" or "bfloat16"; of all `tensors`.
int64_t BytesOf(const BoundaryTensor& tensor);
int64_t BytesOf(std::span<const BoundaryTensor> tensors);

}  // namespace deepnet
