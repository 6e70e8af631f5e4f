// Interprets a Schedule: the loop at the heart of a training step.
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
  // Computing actions by which receives are posted ahead (message_order.h). More hides longer
  // messages and needs more memory; the planner counts kLookAhead.
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
// A receive is waited for by the action that needs its data; a send runs in the background, and its
// memory is released as soon as it is seen to be gone, between two actions. So a rank waits for
// data only, as Simulate assumes. Lanes are in order (message_order.h), so the communicator need
// not know tags. All messages are finished when this returns OK.
//
// A boundary is sent as one message per tensor, with MessageTag.
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
// >= 1. It names no microbatch, since messages with one tag stay in order. 4,095 cuts fit below
// Communicator::kNumTags. The pipeline's communicator carries nothing else while a schedule runs.
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

// Returns the way of `transfer`; InvalidArgument if it is not between two ranks.
absl::StatusOr<Route> RouteOf(const Action& transfer, const Placement& placement);

// Returns two lines that show where rank `rank` and its peer stand in the schedule: actions around
// `reason`, marked [like this], and around the peer's side of `transfer`, marked <like this>.
std::string PositionText(const Schedule& schedule, int rank, const Action& reason, int peer,
                         const Action& transfer);

}  // namespace deepnet
