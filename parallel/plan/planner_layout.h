// A candidate of the planner's search as a Plan, with its bytes and its simulated seconds.
#pragma once

#include "absl/status/statusor.h"

#include "parallel/plan/planner_draft.h"
#include "parallel/plan/planner_request.h"
#include "parallel/plan/simulator.h"
#include "proto/plan.pb.h"

namespace deepnet {

// The plan of `layout` for one replica (stages of the others are missing), whose every rank
// recomputes as little as lets it fit; what fits nowhere takes the least memory. `timeline`, if
// given, gets the simulated step. Errors as CheckLayout's and MakeDraft's.
absl::StatusOr<Plan> LayOut(const Request& request, const Layout& layout,
                            Simulation* timeline = nullptr);

// The stage that needs most; whether it has as much.
const StagePlan& Fullest(const Plan& plan);
bool Fits(const Request& request, const Plan& plan);

}  // namespace deepnet
