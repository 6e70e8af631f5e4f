// Which configs there are, and the fastest that fits.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/plan/candidate.h"
#include "parallel/plan/planner_request.h"
#include "proto/plan.pb.h"

namespace deepnet {

// Every config that the request leaves open and that can run, in order of stages, schedules,
// chunks. Schedules considered unasked: "single_stage" on one stage, else all but "gpipe", with 2,
// 4 and 8 chunks a rank where they take any number. InvalidArgument (kBadConfig) naming the field
// if there is none.
absl::StatusOr<std::vector<ParallelConfig>> ListConfigs(const Request& request);

// About what MakeOneReplica would find, without making or simulating a schedule.
struct CoarseEstimate {
  double seconds = 0;  // of a step
  bool fits = false;
};
CoarseEstimate EstimateCoarsely(const Request& request, const ParallelConfig& config);

struct Found {
  std::optional<Plan> best;     // of least step_seconds among those that fit
  std::optional<Plan> closest;  // if none fits: that of the smallest fullest rank
};

// Simulates configs in order of their coarse estimates, most promising first, until kMaxSimulated
// are done that fit or their actions add up to kMaxActions (at least one is always done).
// Deterministic; ties go to the config listed first.
absl::StatusOr<Found> FindBest(const Request& request, const std::vector<ParallelConfig>& configs);

inline constexpr int kMaxSimulated = 24;
inline constexpr int64_t kMaxActions = 800'000;

}  // namespace deepnet
