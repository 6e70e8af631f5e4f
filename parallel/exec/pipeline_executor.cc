#include "parallel/exec/pipeline_executor.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/exec/message_box.h"
#include "parallel/plan/schedule_text.h"

namespace deepnet {
namespace {

bool IsReceive(Op op) { return op == Op::kReceiveForward || op == Op::kReceiveBackward; }

// The receive whose data `compute` needs, if they come from another rank.
Action ReceiveFor(const Action& compute) {
  const bool forward = compute.op == Op::kForward;
  return {forward ? Op::kReceiveForward : Op::kReceiveBackward, compute.chunk, compute.microbatch};
}

// `status` with where it happened in front; code and payloads (exit codes) stay.
absl::Status At(const absl::Status& status, int rank, const Action& action) {
  if (status.ok()) return status;
  absl::Status placed(status.code(), absl::StrCat("rank ", rank, ", action ", ToText(action), ": ",
                                                  status.message()));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { placed.SetPayload(url, payload); });
  return placed;
}

// One rank's way through its actions.
class Execution {
 public:
  Execution(const Schedule& schedule, const Placement& placement, Stage& stage, Communicator& comm,
            const ExecutorOptions& options)
      : actions_(schedule.actions[comm.rank()]),
        stage_(stage),
        rank_(comm.rank()),
        options_(options),
        box_(schedule, placement, stage, comm, options) {}

  absl::Status Run() {
    for (at_ = 0; at_ < NumActions(); ++at_) {
      const Action& action = actions_[at_];
      Watch(action);
      RETURN_IF_ERROR(At(StartReceives(at_ + options_.look_ahead), rank_, action));
      RETURN_IF_ERROR(At(box_.ReleaseSent(), rank_, action));
      RETURN_IF_ERROR(At(Take(action), rank_, action));
    }
    if (!actions_.empty()) RETURN_IF_ERROR(At(box_.AwaitSent(), rank_, actions_.back()));
    return absl::OkStatus();
  }

 private:
  int NumActions() const { return static_cast<int>(actions_.size()); }

  void Watch(const Action& action) {
    if (options_.watchdog == nullptr) return;
    options_.watchdog->Begin(absl::StrCat("rank ", rank_, ", action ", ToText(action)),
                             options_.limits.message + options_.limits.grace);
  }

  // Whether this rank computes what `receive` is a gradient of before it gets there.
  bool ForwardAhead(const Action& receive, int position) const {
    const Action forward{Op::kForward, receive.chunk, receive.microbatch};
    return std::find(actions_.begin() + at_, actions_.begin() + position, forward) !=
           actions_.begin() + position;
  }

  // Offers memory to all receives up to `last`, in order. Not to a gradient of what is still to be
  // computed here: it cannot come before, and the stage may not know of it yet.
  absl::Status StartReceives(int last) {
    for (; next_receive_ <= std::min(last, NumActions() - 1); ++next_receive_) {
      const Action& action = actions_[next_receive_];
      if (!IsReceive(action.op)) continue;
      if (action.op == Op::kReceiveBackward && ForwardAhead(action, next_receive_)) break;
      RETURN_IF_ERROR(box_.Start(action));
    }
    return absl::OkStatus();
  }

  absl::Status Take(const Action& action) {
    switch (action.op) {
      case Op::kForward:
        RETURN_IF_ERROR(box_.AwaitReceived(ReceiveFor(action), action));
        return Compute(action, &Stage::Forward);
      case Op::kBackward:
        RETURN_IF_ERROR(box_.AwaitReceived(ReceiveFor(action), action));
        return Compute(action, &Stage::Backward);
      case Op::kBackwardInput:
        RETURN_IF_ERROR(box_.AwaitReceived(ReceiveFor(action), action));
        return Compute(action, &Stage::BackwardInput);
      case Op::kBackwardWeight:
        return Compute(action, &Stage::BackwardWeight);
      case Op::kSendForward:
      case Op::kSendBackward:
        return box_.Start(action);
      case Op::kReceiveForward:
      case Op::kReceiveBackward:
        return absl::OkStatus();  // StartReceives did; whoever needs the data waits for them
    }
    return absl::InternalError("unknown operation");
  }

  absl::Status Compute(const Action& action, absl::Status (Stage::*work)(int, int)) {
    if (options_.trace == nullptr) return (stage_.*work)(action.chunk, action.microbatch);
    const double start = SecondsNow();
    absl::Status status = (stage_.*work)(action.chunk, action.microbatch);
    options_.trace->events.push_back(
        {.kind = TraceKind::kCompute, .action = action, .start = start, .end = SecondsNow()});
    return status;
  }

  const std::vector<Action>& actions_;
  Stage& stage_;
  const int rank_;
  const ExecutorOptions& options_;
  MessageBox box_;
  int at_ = 0;            // position of the action that is taken
  int next_receive_ = 0;  // receives before it have been started
};

void Report(const absl::Status& status, const ExecutorOptions& options) {
  if (options.report) return options.report(status);
  std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
}

}  // namespace

absl::Status RunSchedule(const Schedule& schedule, const Placement& placement, Stage& stage,
                         Communicator& comm, const ExecutorOptions& options) {
  if (static_cast<int>(schedule.actions.size()) != comm.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("schedule for ", schedule.actions.size(), " ranks, run by ", comm.size()));
  }
  Execution execution(schedule, placement, stage, comm, options);
  absl::Status status = execution.Run();
  if (options.watchdog != nullptr) options.watchdog->End();
  // Messages are still under way here: the job ends before they are dropped.
  if (!status.ok() && !absl::IsAborted(status) && comm.size() > 1) {
    Report(status, options);
    comm.Abort(static_cast<int>(GetExitCode(status)));
  }
  return status;
}

absl::Status RunSchedule(const Schedule& schedule, Stage& stage, Communicator& comm) {
  return RunSchedule(schedule, Placement{}, stage, comm);
}

int ReceivesAlive(const Schedule& schedule, int rank, int look_ahead) {
  const std::vector<Action>& actions = schedule.actions[rank];
  std::map<std::pair<Op, int>, int> alive;  // by kind of receive and chunk
  int most = 0;
  size_t next = 0;
  for (size_t at = 0; at < actions.size(); ++at) {
    for (; next < std::min(at + look_ahead + 1, actions.size()); ++next) {
      const Action& action = actions[next];
      if (IsReceive(action.op)) most = std::max(most, ++alive[{action.op, action.chunk}]);
    }
    if (IsTransfer(actions[at].op) || actions[at].op == Op::kBackwardWeight) continue;
    const Action receive = ReceiveFor(actions[at]);
    const auto found = alive.find({receive.op, receive.chunk});
    if (found != alive.end()) --found->second;
  }
  return most;
}

}  // namespace deepnet
