// The learning rate as a pure function of the update, and of the batch where that is asked for.
#pragma once

#include <cstdint>
#include <string>

#include "proto/data.pb.h"
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

// Returns k, the target tokens of a step over optim.reference_batch_tokens; 1 without that. A step
// counts as its capacity, data.global_microbatches times data.microbatch.max_target_tokens, which
// every step of a run has; text fills some 96 % of it.
double BatchScale(const OptimSpec& optim, const DataSpec& data);

// Returns what LearningRate takes for this batch: the three rates times k or its root
// (optim.rate_scaling), warmup_steps over k, rounded and at least 1; 0 stays 0. The same without
// optim.reference_batch_tokens.
OptimSpec ScaledToBatch(OptimSpec optim, const DataSpec& data);

// Returns a sentence for people about k; empty without optim.reference_batch_tokens.
std::string BatchScaleText(const OptimSpec& optim, const DataSpec& data);

}  // namespace deepnet
