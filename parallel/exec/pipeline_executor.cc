#include "parallel/exec/pipeline_executor.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <string>
#include <tuple>
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

// A receive of one rank: where it stands, and the number of the first computing action that needs
// it or one behind it that has the same tags.
struct ListedReceive {
  int position = 0;
  int needed_by = std::numeric_limits<int>::max();
};

// In the order in which they are needed; those with the same tags in the order of the list, which
// is that of their messages.
std::vector<ListedReceive> ListReceives(const std::vector<Action>& actions) {
  std::vector<ListedReceive> receives;
  std::map<std::tuple<Op, int, int>, int> users;  // by receive, chunk, microbatch
  int computing = 0;
  for (const Action& action : actions) {
    if (IsTransfer(action.op)) continue;
    const Action receive = ReceiveFor(action);
    if (action.op != Op::kBackwardWeight) {
      users[{receive.op, receive.chunk, receive.microbatch}] = computing;
    }
    ++computing;
  }
  for (int i = 0; i < static_cast<int>(actions.size()); ++i) {
    if (!IsReceive(actions[i].op)) continue;
    ListedReceive& listed = receives.emplace_back(ListedReceive{.position = i});
    const auto user = users.find({actions[i].op, actions[i].chunk, actions[i].microbatch});
    if (user != users.end()) listed.needed_by = user->second;
  }
  std::map<std::pair<Op, int>, int> needed_by;  // by receive and chunk, so far from behind
  for (auto listed = receives.rbegin(); listed != receives.rend(); ++listed) {
    const Action& action = actions[listed->position];
    int& first = needed_by.try_emplace({action.op, action.chunk}, listed->needed_by).first->second;
    first = listed->needed_by = std::min(first, listed->needed_by);
  }
  std::stable_sort(receives.begin(), receives.end(),
                   [](const auto& a, const auto& b) { return a.needed_by < b.needed_by; });
  return receives;
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
        box_(schedule, placement, stage, comm, options),
        receives_(ListReceives(actions_)) {}

  absl::Status Run() {
    for (at_ = 0; at_ < NumActions(); ++at_) {
      const Action& action = actions_[at_];
      Watch(action);
      RETURN_IF_ERROR(At(StartReceives(), rank_, action));
      RETURN_IF_ERROR(At(box_.ReleaseSent(), rank_, action));
      RETURN_IF_ERROR(At(Take(action), rank_, action));
      if (!IsTransfer(action.op)) ++computed_;
    }
    if (!actions_.empty()) RETURN_IF_ERROR(At(box_.AwaitSent(), rank_, actions_.back()));
    return absl::OkStatus();
  }

 private:
  int NumActions() const { return static_cast<int>(actions_.size()); }

  void Watch(const Action& action) {
    if (options_.pulse != nullptr) options_.pulse->Act(absl::StrCat("action ", ToText(action)));
    if (options_.watchdog == nullptr) return;
    options_.watchdog->Begin(absl::StrCat("rank ", rank_, ", action ", ToText(action)),
                             options_.limits.message + options_.limits.grace);
  }

  // Whether this rank computes what `receive` is a gradient of before it gets there.
  bool ForwardAhead(const Action& receive, int position) const {
    if (position <= at_) return false;
    const Action forward{Op::kForward, receive.chunk, receive.microbatch};
    return std::find(actions_.begin() + at_, actions_.begin() + position, forward) !=
           actions_.begin() + position;
  }

  // Offers memory to what is needed soon, in order. Not to a gradient of what is still to be
  // computed here: it cannot come before, and the stage may not know of it yet.
  absl::Status StartReceives() {
    for (; next_receive_ < receives_.size(); ++next_receive_) {
      const ListedReceive& listed = receives_[next_receive_];
      const Action& action = actions_[listed.position];
      if (listed.needed_by - options_.look_ahead > computed_) break;
      if (action.op == Op::kReceiveBackward && ForwardAhead(action, listed.position)) break;
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
  const std::vector<ListedReceive> receives_;
  int at_ = 0;               // position of the action that is taken
  int computed_ = 0;         // computing actions before it
  size_t next_receive_ = 0;  // receives before it have been started
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

}  // namespace deepnet
