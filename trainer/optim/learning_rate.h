// The learning rate as a pure function of the update.
#pragma once

#include <cstdint>

#include "proto/optim.pb.h"

namespace deepnet {

// Returns the learning rate of update number `update` >= 1. Up to warmup_steps it is linear from
// initial_learning_rate and reaches learning_rate at warmup_steps. After that, INVERSE_SQRT gives
// learning_rate * sqrt(warmup_steps / update) (fairseq), COSINE half a cosine down to
// final_learning_rate at decay_steps, CONSTANT learning_rate, WSD learning_rate and, in the last
// wsd_decay_steps before decay_steps, a line down to final_learning_rate (Megatron-LM). With
// warmup_steps 0 there is no warm-up, and INVERSE_SQRT falls from update 1. SHIFTED_INVERSE_SQRT
// gives learning_rate * sqrt(warmup_steps / (warmup_steps + update)) from update 1 on.
double LearningRate(const OptimSpec& optim, int64_t update);

}  // namespace deepnet
