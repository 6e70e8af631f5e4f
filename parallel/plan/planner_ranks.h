// What the ranks of one layout need, and how much each has to compute again to have it.
#pragma once

#include <vector>

#include "parallel/plan/crossing.h"
#include "parallel/plan/in_flight.h"
#include "parallel/plan/memory.h"
#include "parallel/plan/placement.h"
#include "parallel/plan/planner_request.h"

namespace deepnet {

// The cuts of one replica.
struct Cuts {
  Placement placement;
  std::vector<int> ends;
  std::vector<Crossing> crossings;     // [chunk]
  std::vector<int64_t> message_bytes;  // [chunk] over both of its cuts, one microbatch
  std::vector<std::vector<PendingMatrices>> pending;  // [chunk] see memory.h
};
Cuts MakeCuts(const Request& request, Placement placement, std::vector<int> ends);

// Everything but the recomputation of each rank, [rank].
std::vector<RankUse> MakeRankUses(const Request& request, const Cuts& cuts,
                                  const InFlight& in_flight, int replicas);

// The cheapest of NONE, FFN, GEMM and LAYER with which `rank` fits (or the request's own); LAYER
// with the segment that needs least, also if that does not fit.
RecomputeChoice CheapestThatFits(const Request& request, RankUse rank);

}  // namespace deepnet
