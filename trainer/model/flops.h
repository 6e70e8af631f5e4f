// Floating-point operations of training on real tokens: what utilisation counts.
#pragma once

#include "proto/model.pb.h"
#include "trainer/data/microbatch.h"

namespace deepnet {

// Operations of one step's matrix products, attention included, forward three times (forward,
// gradients of inputs, gradients of weights); padding, norms, softmax and the optimizer count
// nothing.
double StepFlops(const ModelSpec& model, const StepBatch& batch);

}  // namespace deepnet
