// Interprets a Schedule: the loop at the heart of a training step.
//
// Example, four ranks:
//   ASSIGN_OR_RETURN(const Schedule schedule, WithTransfers(compute_only, placement));
//   RETURN_IF_ERROR(RunSchedule(schedule, placement, stage, pipeline_comm,
//                               {.comm_timeout = CommTimeout(run.parallel(), step == 0)}));
#pragma once

#include <functional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/comm/communicator.h"
#include "parallel/comm/heartbeat.h"
#include "parallel/exec/stage.h"
#include "parallel/exec/trace.h"
#include "parallel/plan/message_order.h"
#include "parallel/plan/partition.h"
#include "parallel/plan/schedule.h"

namespace deepnet {

struct ExecutorOptions {
  // A receive is posted when what needs it, or a later message of its sender, is this many
  // computing actions ahead, or nearer (>= 0; message_order.h), and this rank has taken all actions
  // on which the data depend. More hides longer messages and needs more memory; the planner counts
  // kLookAhead.
  int look_ahead = kLookAhead;
  absl::Duration comm_timeout = absl::Seconds(300);  // longest wait for one message (CommTimeout)
  RankTrace* trace = nullptr;      // what happened is added to it; null: nothing is recorded
  Heartbeat* heartbeat = nullptr;  // told of every action; null: nobody is told
  // Calls what it is given and returns its status, or an exception of the stage as one; empty:
  // exceptions pass, and drop what is under way.
  std::function<absl::Status(absl::FunctionRef<absl::Status()>)> guard = {};
};

// Takes the actions of rank comm.rank() in order. Collective over `comm`, the ranks of one
// pipeline. `schedule` has its transfers and has passed CheckSchedule with `placement`; one rank
// alone needs none.
//
// A receive offers its memory look_ahead computing actions early and is waited for by the action
// that needs its data; a send runs in the background and never holds its rank up. Its memory is
// released as soon as it is seen to be gone, between two actions. Lanes are in order
// (message_order.h), so the communicator need not know tags. All messages are finished when this
// returns OK. So a rank waits for data only, as Simulate assumes, and for ever only if
// CheckSchedule would have said so. parallel/plan/boundary_bytes.h says how much memory messages
// take at once.
//
// A boundary is sent as one message per tensor, with MessageTag. On one rank there are no messages
// and nothing is spent on them.
//
// Any error ends the whole job: it is reported, then comm.Abort is called with its exit code. Where
// that returns (ranks are threads), or there is one rank only, the Status comes back with rank and
// action in front:
//   - the stage's own, code and payload kept;
//   - DeadlineExceeded, ExitCode::kHang: a message did not move for comm_timeout. Names rank,
//     chunk, microbatch, action and peer, and shows where both stand in the schedule;
//   - Unavailable, ExitCode::kPeerLost: the peer of a message is gone; named in the same way;
//   - Aborted: another rank ended the job;
//   - InvalidArgument: a schedule for another number of ranks, or without the transfers it needs.
absl::Status RunSchedule(const Schedule& schedule, const Placement& placement, Stage& stage,
                         Communicator& comm, const ExecutorOptions& options = {});

// Tensors that one microbatch may send over one cut in one direction.
inline constexpr int kMaxTensors = 4;

// Returns the tag of tensor `tensor` (its place in Stage::Buffers) over the cut before chunk `cut`
// >= 1: ((cut - 1) * 2 + (backward ? 1 : 0)) * kMaxTensors + tensor. It names no microbatch, since
// messages with one tag stay in order. 4,095 cuts fit below Communicator::kNumTags. The pipeline's
// communicator carries nothing else while a schedule runs.
int MessageTag(int cut, bool backward, int tensor);

// The way of a transfer: which cut, which rank, which of the stage's buffers.
struct Route {
  int cut = 0;
  int peer = 0;
  bool backward = false;
  bool send = false;
  Boundary boundary = Boundary::kInput;

  friend bool operator==(const Route&, const Route&) = default;
};

// InvalidArgument if `transfer` is not between two ranks.
absl::StatusOr<Route> RouteOf(const Action& transfer, const Placement& placement);

// Returns two lines that show where rank `rank` and its peer stand in the schedule: some actions
// around `reason`, which is marked [like this], and around the peer's side of `transfer`, marked
// <like this>.
std::string PositionText(const Schedule& schedule, int rank, const Action& reason, int peer,
                         const Action& transfer);

}  // namespace deepnet
