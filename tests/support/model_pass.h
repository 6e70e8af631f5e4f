// A forward and a backward pass of a tiny model by any Ops: what implementations are compared by.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "parallel/plan/inventory.h"
#include "proto/model.pb.h"
#include "trainer/kernels/ops.h"

namespace deepnet::testing {

// Models that together reach every operation: each residual scheme, with other norms, activations,
// tyings, positions and dropouts by turns.
std::vector<ModelSpec> OpsVariants();

struct ModelPass {
  LossSums loss;
  at::Tensor gradient;  // float64, on the CPU
  Inventory inventory;
};

// Weights are drawn from `seed`, with gains and biases away from 1 and 0.
ModelPass ForwardBackward(const ModelSpec& spec, Ops& ops, uint64_t seed = 5);

// Expects that losses, and each tensor's gradient over the largest element that `expected` has in
// it, differ by at most `tolerance`.
void ExpectClose(const ModelPass& got, const ModelPass& expected, double tolerance);

// Relative error of the whole gradient.
double GradientError(const ModelPass& got, const ModelPass& exact);

}  // namespace deepnet::testing
