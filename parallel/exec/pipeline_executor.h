// Interprets a Schedule: the loop at the heart of a training step.
//
// Example, four ranks:
//   ASSIGN_OR_RETURN(const Schedule schedule, WithTransfers(compute_only, placement));
//   RETURN_IF_ERROR(RunSchedule(schedule, placement, stage, pipeline_comm,
//                               {.limits = MakeTimeLimits(run.parallel(), step == 0)}));
#pragma once

#include <functional>

#include "absl/status/status.h"

#include "parallel/comm/communicator.h"
#include "parallel/comm/pulse.h"
#include "parallel/exec/stage.h"
#include "parallel/exec/trace.h"
#include "parallel/exec/watchdog.h"
#include "parallel/plan/boundary_buffers.h"
#include "parallel/plan/partition.h"
#include "parallel/plan/schedule.h"

namespace deepnet {

struct ExecutorOptions {
  // A receive is started when what needs it is this many computing actions ahead, or nearer (>= 0).
  // More hides longer messages and needs more memory; the planner counts kLookAhead.
  int look_ahead = kLookAhead;
  TimeLimits limits = {};
  RankTrace* trace = nullptr;    // what happened is added to it; null: nothing is recorded
  Watchdog* watchdog = nullptr;  // told of every action; null: nobody watches
  Pulse* pulse = nullptr;        // likewise
  // Told of an error before the job is ended with it, because ending it may not return. Default: a
  // line on stderr.
  std::function<void(const absl::Status& status)> report = {};
};

// Takes the actions of rank comm.rank() in order. Collective over `comm`, the ranks of one
// pipeline. `schedule` has its transfers and has passed CheckSchedule with `placement`.
//
// A receive offers its memory look_ahead computing actions early and is waited for by the action
// that needs its data; a send runs in the background and never holds its rank up, however far it is
// ahead of its peer. Its memory is released as soon as it is seen to be gone, between two actions.
// All are finished when this returns OK. So a rank waits for data and for nothing else, which is
// what Simulate assumes, and for ever only if CheckSchedule would have said so. How much memory
// messages take at once: parallel/plan/boundary_buffers.h.
//
// Messages: one per tensor of a crossing, MessageTag (message_box.h) says under which tag. On one
// rank there are none and nothing is spent on them.
//
// Any error ends the whole job: it is reported, then comm.Abort is called with its exit code. Where
// that returns (ranks are threads), or there is one rank only, the Status comes back with rank and
// action in front:
//   - the stage's own, code and payload kept;
//   - DeadlineExceeded, ExitCode::kHang: a message did not move for limits.message. Names rank,
//     chunk, microbatch, action and peer, and shows where both stand in the schedule;
//   - Unavailable, ExitCode::kPeerLost: the peer of a message is gone; named in the same way;
//   - Aborted: another rank ended the job;
//   - InvalidArgument: a schedule for another number of ranks, or without the transfers it needs.
absl::Status RunSchedule(const Schedule& schedule, const Placement& placement, Stage& stage,
                         Communicator& comm, const ExecutorOptions& options = {});

// The same of one rank alone, which needs no placement.
absl::Status RunSchedule(const Schedule& schedule, Stage& stage, Communicator& comm);

}  // namespace deepnet
