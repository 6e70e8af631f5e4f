// The messages between ranks where the model is cut: the Inventory's boundary tensors, less those
// that the receiving rank has already.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "parallel/plan/inventory.h"
#include "parallel/plan/partition.h"

namespace deepnet {

// The tensors of one microbatch that are sent over the cut before one chunk. Shapes are those of
// the microbatch's capacities, so they are constants of a run.
struct StageMessages {
  std::vector<BoundaryTensor> forward;   // values, in the order of Layer::inputs
  std::vector<BoundaryTensor> backward;  // their gradients, float32, in the order of Layer::inputs
};

// Returns, in element c, the messages over the cut before chunk c, whose last layer is
// chunk_ends[c] - 1. Empty for chunk 0 and where both sides are on one rank.
//
// forward: the inputs of the chunk's first layer. A side input is left out if the rank holds it for
//   this microbatch already, because one of its earlier chunks takes it as input or produces it: it
//   travels once per rank. It has the type `operand_type`, the stream its own.
// backward: gradients of all inputs that need one. The gradient of a side input is an accumulator:
//   a left fold over its readers, the last layer first, passes it on, so it is sent over every cut
//   between ranks among them and reaches the chunk that made the tensor exactly once.
std::vector<StageMessages> MakeStageMessages(const Inventory& inventory,
                                             std::span<const int> chunk_ends,
                                             const Placement& placement,
                                             std::string_view operand_type = "float32");

// Bytes of all `tensors`.
int64_t BytesOf(std::span<const BoundaryTensor> tensors);

}  // namespace deepnet
