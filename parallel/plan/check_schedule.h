// Checks that a schedule, generated or written by hand, computes a step and ends; and inserts the
// transfers that a compute-only schedule implies.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/plan/partition.h"
#include "parallel/plan/schedule.h"

namespace deepnet {

// OK, or InvalidArgument with the first offence and the rank and action where it stands:
//   - completeness: every chunk and microbatch has one F and either one B or one I and one W;
//   - one owner: all actions of a chunk are on one rank, that of `owners` if given, else whichever
//     has the first;
//   - forwards, and weight gradients (B or W), of a chunk come in ascending microbatch order, so
//     that a sum over microbatches, or over those of a virtual replica, is a left fold;
//   - transfers: either none at all (they are implied), or every cut between ranks has its send and
//     its receive, once each way and microbatch;
//   - messages from one rank to another stand in one order in both lists (message_order.h): the
//     first two that cross are named;
//   - dependencies can be met: F needs F of the chunk before; B and I need their own F and the
//     B or I of the chunk behind; W needs its own I. With transfers, data of another rank arrive by
//     a receive, and a send blocks until its receive is reached (the strictest transport). A rank
//     that waits for ever is named with the action it is stuck at.
absl::Status CheckSchedule(const Schedule& schedule, const PipelineShape& shape,
                           const std::optional<Placement>& owners = std::nullopt);

// Returns `compute` with its transfers (schedule.h), or as it is if it has them. All stand in one
// global causal order: a send follows the action that produced its data, and the receive goes into
// the peer's list at the same moment, before whatever that rank does next. Hence running every
// rank's list in order cannot deadlock, even if sends and receives block until both are reached:
// the earliest transfer of the order that is not done has both its ranks at it.
//
// Fails as CheckSchedule does, or if `compute` has owners other than the placement's.
absl::StatusOr<Schedule> WithTransfers(const Schedule& compute, const Placement& placement);

}  // namespace deepnet
