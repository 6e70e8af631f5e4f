// The learning rate over updates, a pure function.
#pragma once

#include <cstdint>

#include "proto/optim.pb.h"

namespace deepnet {

// Rate of update number `update` >= 1. Up to warmup_steps: linear from initial_rate, reaching
// `rate` at warmup_steps. After: INVERSE_SQRT rate * sqrt(warmup_steps / update) (fairseq), COSINE
// half a cosine down to final_rate at decay_steps, CONSTANT rate. warmup_steps 0: no warm-up;
// INVERSE_SQRT then falls from update 1.
double LearningRate(const OptimSpec& optim, int64_t update);

}  // namespace deepnet
