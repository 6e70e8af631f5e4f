// Finds where in a step that was not finite the first such value appeared.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

#include "parallel/exec/pipeline_executor.h"
#include "proto/report.pb.h"
#include "trainer/data/microbatch.h"
#include "trainer/rank_context.h"

namespace deepnet {

// Computes the gradient of `step` once more, looking at every sub-layer in the forward passes of
// all microbatches and at every layer's gradient where a backward pass is through with it. `batch`
// and `step` are those of a step whose update was not made, so that the weights are what they were.
// Changes nothing but the gradient, which every step clears.
//
// Forward passes come before backward passes; within the former, the sub-layer that is first in
// chain order counts, then the loss; within the latter, the parameter that is last. Of several
// ranks with the same place, for replicas have the same layers, the lowest is named. `sublayer` is
// empty if every value was finite this time.
//
// Collective over context.world; every rank gets the same record, without a step.
absl::StatusOr<NonFiniteRecord> LocateNonFinite(const StepBatch& batch, int64_t step,
                                                RankContext& context,
                                                const ExecutorOptions& options);

// Returns "first in the forward pass of encoder.layers.3.self_attn: branch (rank 2 on host-b)".
std::string NonFiniteLine(const NonFiniteRecord& record);

}  // namespace deepnet
