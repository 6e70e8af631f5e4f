// The plan that a config of the planner's task becomes.
#pragma once

#include "absl/status/statusor.h"

#include "parallel/plan/planner_request.h"
#include "proto/plan.pb.h"

namespace deepnet {

// About what MakeOneReplica would find, without making or simulating a schedule.
struct CoarseEstimate {
  double seconds = 0;  // of a step
  bool fits = false;
};
CoarseEstimate EstimateCoarsely(const Request& request, const ParallelConfig& config);

// The plan of `config` for one replica (stages of the others are missing), whose every rank
// recomputes as little as lets it fit; what fits nowhere takes the least memory. Fails as
// CheckConfig does, or if a schedule that a user wrote does not pass CheckSchedule.
absl::StatusOr<Plan> MakeOneReplica(const Request& request, const ParallelConfig& config);

// The stage that needs most; whether it has as much.
const StagePlan& Fullest(const Plan& plan);
bool Fits(const Request& request, const Plan& plan);

}  // namespace deepnet
