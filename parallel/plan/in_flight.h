// How much a schedule keeps in flight on each rank: microbatches between their passes, and weight
// gradients that were put off.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/plan/memory.h"
#include "parallel/plan/schedule.h"

namespace deepnet {

struct InFlight {
  std::vector<int> slots;               // [chunk] most microbatches between F and the end of B or I
  std::vector<int64_t> deferred_bytes;  // [rank] of the buffers that hold what waits from I to W
  std::vector<std::vector<std::vector<int>>> moments;  // [rank] RankUse::moments; empty: not known
};

// Of `schedule`, which has passed CheckSchedule, with pending[c] of one microbatch of chunk c.
//
// Deferred weight gradients are taken as a stage really runs them: a chunk computes those of a
// virtual replica before its first backward pass of the next one, wherever the schedule has them
// (TransformerStage). `per_sum`: microbatches of a virtual replica. Their buffers are lent to all
// chunks of a rank, but only for matrices of the same shape, so each shape counts at its own peak.
InFlight CountInFlight(const Schedule& schedule,
                       std::span<const std::vector<PendingMatrices>> pending, int per_sum);

}  // namespace deepnet
