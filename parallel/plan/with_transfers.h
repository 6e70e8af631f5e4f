// Inserts communication into a compute-only schedule.
#pragma once

#include "absl/status/statusor.h"

#include "parallel/plan/placement.h"
#include "parallel/plan/schedule.h"

namespace deepnet {

// `compute` with SF/RF at every forward and SB/RB at every backward crossing between ranks
// (schedule.h). All transfers stand in one global causal order: a send follows the action that
// produced its data, and the receive goes into the peer's list at the same moment, before whatever
// that rank does next. Hence running every rank's list in order cannot deadlock, even if a send
// blocks until its receive is reached and the other way round: the earliest transfer of the order
// that is not done has both its ranks at it.
//
// The receive is as early as that order allows, so an executor that posts receives and sends in
// the background loses nothing.
//
// InvalidArgument, as from CheckSchedule, if `compute` has transfers already, has owners other than
// the placement's, or waits for ever (rank and action named).
absl::StatusOr<Schedule> WithTransfers(const Schedule& compute, const Placement& placement);

}  // namespace deepnet
