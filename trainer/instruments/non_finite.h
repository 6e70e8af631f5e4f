// Finds where in a step that was not finite the first such value appeared.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

#include "parallel/exec/pipeline_executor.h"
#include "proto/report.pb.h"
#include "trainer/data/microbatch.h"
#include "trainer/rank_context.h"

namespace deepnet {

// Computes the gradient of `step` once more, looking at every sub-layer in the forward passes of
// all microbatches and at every gradient after each backward pass. `batch` and `step` are those of
// a step whose update was not made, so that weights and dropout, and with them all values, are what
// they were. Changes nothing but the gradient, which every step clears.
//
// Forward passes come before backward passes, whatever the schedule; of several microbatches the
// one counts that fails earliest in the model. In the former the place that is first in the chain
// counts, then the loss; in the latter the sub-layer that a backward pass comes to first, by the
// last of its parameters whose gradient is not finite. So the place is the same on every layout; of
// several ranks with the same place the lowest is named.
//
// Collective over context.world; every rank gets the same record, without a step.
absl::StatusOr<NonFiniteRecord> LocateNonFinite(const StepBatch& batch, int64_t step,
                                                RankContext& context,
                                                const ExecutorOptions& options = {});

// Returns "first in the forward pass of encoder.layers.3.self_attn: branch (rank 2 on host-b)".
std::string NonFiniteLine(const NonFiniteRecord& record);

}  // namespace deepnet
