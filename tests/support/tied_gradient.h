// The gradient of a model on one rank as one tensor: what tests compare where no GradientSums
// (trainer/optim/gradient_sums.h) runs.
#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/kernels/ops.h"
#include "trainer/model/parameters.h"

namespace deepnet::testing {

// Adds the accumulators of a tied tensor's later uses to that of its first one, which
// Parameters::Gradient returns, in the order source, target, output.
void FoldTied(Parameters& parameters, Ops& ops);

// A copy [n] on the CPU of the first uses' accumulators in the order of parameters.weights().
at::Tensor FlatGradient(const Parameters& parameters);

}  // namespace deepnet::testing
