// One candidate of the planner's search on its way to a Plan: cuts, placement, what each rank
// computes again, schedule, costs.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/plan/planner_ranks.h"
#include "parallel/plan/planner_request.h"
#include "parallel/plan/simulator.h"

namespace deepnet {

struct Layout {
  int stages = 1, replicas = 1;
  std::string schedule = "trivial";  // a name; ignored if the request has a schedule of its own
  int chunks_per_rank = 1;
  std::vector<int> ends = {};  // of chunks; empty: cut by cost

  int64_t NumRanks() const { return int64_t{stages} * replicas; }
  friend bool operator==(const Layout&, const Layout&) = default;
};

// Whether `layout` can run at all, whatever it needs: chunks, ranks, microbatches, virtual
// replicas, placement. InvalidArgument (kBadConfig) naming the field if not.
absl::Status CheckLayout(const Request& request, const Layout& layout);

// Where the layout's chunks lie.
PlacementShape ShapeName(const Request& request, const Layout& layout);

struct Draft {
  Cuts cuts;
  std::vector<RecomputeChoice> choices;  // [rank]
  std::vector<ChunkCost> costs;          // [chunk]
  Schedule schedule;
  InFlight in_flight;
  std::vector<RankUse> ranks;  // with their choices
  Simulation simulation;       // of the schedule
};

// `layout`, which has passed CheckLayout, with a schedule and what each rank must recompute under
// it, simulated. Fails if a schedule that a user wrote does not pass CheckSchedule.
absl::StatusOr<Draft> MakeDraft(const Request& request, const Layout& layout);

// The same without a schedule: by what schedules of this name claim to keep in flight, and without
// counting what lies at cuts. `refine`:
// see PartitionForRanks.
absl::StatusOr<Draft> MakeCoarseDraft(const Request& request, const Layout& layout, bool refine);

}  // namespace deepnet
