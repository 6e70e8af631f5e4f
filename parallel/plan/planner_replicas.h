// Which numbers of replicas can run, and which of them the planner chooses by itself.
#pragma once

#include "absl/status/status.h"

#include "parallel/plan/planner_draft.h"
#include "parallel/plan/planner_request.h"

namespace deepnet {

// Every replica needs a microbatch, and a schedule that a user wrote equally many on all replicas.
// If the request leaves the number of replicas open, it must also share the microbatches evenly and
// divide the virtual replicas, so that results have the bits of any other number of ranks.
// InvalidArgument (kBadConfig) naming the field.
absl::Status CheckReplicas(const Request& request, const Layout& layout);

}  // namespace deepnet
