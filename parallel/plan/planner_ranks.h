// What the ranks of one layout need, and how much each has to compute again to have it.
#pragma once

#include <span>
#include <vector>

#include "parallel/plan/crossing.h"
#include "parallel/plan/memory.h"
#include "parallel/plan/placement.h"
#include "parallel/plan/planner_request.h"
#include "parallel/plan/schedule.h"

namespace deepnet {

// What a schedule keeps in flight.
struct InFlight {
  std::vector<int> slots;               // [chunk] most microbatches between F and the end of B or I
  std::vector<int64_t> deferred_bytes;  // [rank] most between I and the end of W, all chunks
  std::vector<std::vector<std::vector<int>>> moments;  // [rank] RankUse::moments; empty: not known
};

// Of `schedule`, which has passed CheckSchedule. pending_bytes[c]: of one microbatch of chunk c.
InFlight CountInFlight(const Schedule& schedule, std::span<const int64_t> pending_bytes);

// The cuts of one replica.
struct Cuts {
  Placement placement;
  std::vector<int> ends;
  std::vector<Crossing> crossings;     // [chunk]
  std::vector<int64_t> message_bytes;  // [chunk] over both of its cuts, one microbatch
  std::vector<int64_t> pending_bytes;  // [chunk] see memory.h
};
Cuts MakeCuts(const Request& request, Placement placement, std::vector<int> ends);

// Everything but the recomputation of each rank, [rank].
std::vector<RankUse> MakeRankUses(const Request& request, const Cuts& cuts,
                                  const InFlight& in_flight, int replicas);

// The cheapest of NONE, FFN, GEMM and LAYER with which `rank` fits (or the request's own); LAYER
// with the segment that needs least, also if that does not fit.
RecomputeChoice CheapestThatFits(const Request& request, RankUse rank);

}  // namespace deepnet
