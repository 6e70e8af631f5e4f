// What to tell whoever asked for something that does not fit.
#pragma once

#include "absl/status/status.h"

#include "parallel/plan/planner_request.h"
#include "proto/plan.pb.h"

namespace deepnet {

// ResourceExhausted (ExitCode::kDoesNotFit) about `closest`, the best that `request` allows: which
// rank needs what and has what, and the nearest layout that fits: on the ranks that there are if
// there is any, else on more of them (the fewest, doubling), or with smaller microbatches.
absl::Status DoesNotFit(const Request& request, const Plan& closest);

}  // namespace deepnet
