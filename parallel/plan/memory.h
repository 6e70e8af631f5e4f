// Bytes that a rank needs for its part of a model, by what they hold.
#pragma once

#include <cstdint>

#include "parallel/plan/inventory.h"
#include "proto/plan.pb.h"

namespace deepnet {

// What of the run, besides the layers, decides memory.
struct MemoryRules {
  int64_t operand_bytes = 4;       // of one element of a product's operand: 4 or 2
  int num_packed_copies = 2;       // of every multiplied matrix: forward and backward layout
  int num_gradient_partials = 1;   // float32 sums alive at once, of the virtual replicas' tree
  int num_microbatches_alive = 1;  // between forward and backward
};

// Rules of `compute` with one partial sum and one microbatch alive. What is still left to the
// program is taken at its larger form.
MemoryRules MakeMemoryRules(const ComputeSpec& compute);

// What layers [first, end) of `inventory` need on one rank:
//   weights         4 bytes per parameter; a tied one once per rank
//   working_copies  packed copies of every matrix that is multiplied (embeddings that are only
//                   looked up have none)
//   gradients       4 bytes per parameter, use and partial sum: each use of a tied one has its own
//   moments         8 bytes per parameter
//   activations     what each layer keeps, and each boundary tensor that stays on the rank (the
//                   encoder memory), for every microbatch alive
//   workspace       gradients of one encoder and one decoder layer's activations and of boundary
//                   tensors; for the output layer also logits and their gradient, at most
//                   kLogitRows rows
MemoryEstimate EstimateMemory(const Inventory& inventory, int first, int end,
                              const MemoryRules& rules);

// Rows of logits that exist at once.
inline constexpr int64_t kLogitRows = 512;

}  // namespace deepnet
