#include "parallel/exec/pipeline_executor.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

constexpr int kShownAround = 6;  // actions on either side of the one that is marked

// Returns the actions of one rank around `marked`, which stands between the two marks.
std::string RankText(const Schedule& schedule, int rank, const Action& marked, const char* open,
                     const char* close) {
  const std::vector<Action>& actions = schedule.actions[rank];
  const int at =
      static_cast<int>(std::find(actions.begin(), actions.end(), marked) - actions.begin());
  const int first = std::max(0, at - kShownAround);
  const int last = std::min(static_cast<int>(actions.size()) - 1, at + kShownAround);
  std::string text = absl::StrFormat("  rank %d:%s", rank, first > 0 ? " ..." : "");
  for (int i = first; i <= last; ++i) {
    absl::StrAppend(&text, " ", i == at ? open : "", ToText(actions[i]), i == at ? close : "");
  }
  if (last + 1 < static_cast<int>(actions.size())) absl::StrAppend(&text, " ...");
  return text;
}

// One rank's way through its actions.
class Execution {
 public:
  Execution(const Schedule& schedule, const Placement& placement, Stage& stage, Communicator& comm,
            const ExecutorOptions& options)
      : schedule_(schedule),
        placement_(placement),
        stage_(stage),
        comm_(comm),
        options_(options),
        actions_(schedule.actions[comm.rank()]),
        posts_(MessagesTo(comm.rank(), schedule, placement, options.look_ahead)) {
    PostBehindOwnWork(comm.rank(), schedule, placement, posts_);
    // Lanes are independent: only the order inside of each is given.
    std::stable_sort(posts_.begin(), posts_.end(), [](const auto& a, const auto& b) {
      return a.posted_behind < b.posted_behind;
    });
  }

  absl::Status Run() {
    for (const Action& action : actions_) {
      if (options_.heartbeat != nullptr) {
        options_.heartbeat->Act(absl::StrCat("action ", ToText(action)));
      }
      RETURN_IF_ERROR(At(action, Guarded([&] { return Execute(action); })));
    }
    if (!actions_.empty()) RETURN_IF_ERROR(At(actions_.back(), ReleaseSent(/*wait=*/true)));
    return absl::OkStatus();
  }

 private:
  struct Message {
    Action action;
    Route route;
    std::unique_ptr<Transfer> transfer;  // of all tensors
    TraceSpan span;
  };

  absl::Status At(const Action& action, const absl::Status& status) const {
    return WithPrefix(absl::StrCat("rank ", comm_.rank(), ", action ", ToText(action)), status);
  }

  // Posts the receives that are due behind the computing actions that are done.
  absl::Status StartReceives() {
    for (; next_post_ < posts_.size(); ++next_post_) {
      const LaneMessage& message = posts_[next_post_];
      if (message.posted_behind > computed_) break;
      RETURN_IF_ERROR(Start(OtherEnd(message.send)));
    }
    return absl::OkStatus();
  }

  absl::Status Guarded(absl::FunctionRef<absl::Status()> work) const {
    return options_.guard ? options_.guard(work) : work();
  }

  absl::Status Execute(const Action& action) {
    const auto& [op, chunk, microbatch] = action;
    // Sends start before memory is offered to what is still to come.
    if (!IsSend(op)) RETURN_IF_ERROR(StartReceives());
    RETURN_IF_ERROR(ReleaseSent(/*wait=*/false));
    if (IsSend(op)) return Start(action);
    if (IsReceive(op)) return absl::OkStatus();  // started; who needs the data waits for it
    if (const auto receive = ReceiveBefore(action, placement_)) {
      RETURN_IF_ERROR(AwaitReceived(*receive, action));
    }
    ++computed_;
    const TraceSpan span(options_.trace, {.kind = TraceKind::kCompute, .action = action});
    if (op == Op::kForward) return stage_.Forward(chunk, microbatch);
    if (op == Op::kBackward) return stage_.Backward(chunk, microbatch);
    return op == Op::kBackwardInput ? stage_.BackwardInput(chunk, microbatch)
                                    : stage_.BackwardWeight(chunk, microbatch);
  }

  // Starts a send or a receive. Does not wait.
  absl::Status Start(const Action& transfer) {
    ASSIGN_OR_RETURN(const Route route, RouteOf(transfer, placement_));
    Message message{.action = transfer, .route = route};
    const std::vector<Buffer> buffers =
        stage_.Buffers(route.boundary, transfer.chunk, transfer.microbatch);
    DEEPNET_CHECK_LE(buffers.size(), static_cast<size_t>(kMaxTensors));
    int64_t bytes = 0;
    for (const Buffer& buffer : buffers) bytes += buffer.bytes;
    message.span = {options_.trace,
                    {.kind = route.send ? TraceKind::kSend : TraceKind::kReceive,
                     .action = transfer,
                     .peer = route.peer,
                     .bytes = bytes}};
    const int tag = MessageTag(route.cut, route.backward, /*tensor=*/0);
    const auto direction =
        route.send ? Communicator::Direction::kSend : Communicator::Direction::kReceive;
    Communicator::TransferOr started = comm_.StartMessages(direction, buffers, route.peer, tag);
    if (!started.ok()) return Explain(started.status(), message, transfer);
    message.transfer = *std::move(started);
    (route.send ? sends_ : receives_).push_back(std::move(message));
    return absl::OkStatus();
  }

  absl::Status AwaitReceived(const Action& receive, const Action& reason) {
    const auto found =
        std::find_if(receives_.begin(), receives_.end(),
                     [&](const Message& message) { return message.action == receive; });
    if (found == receives_.end()) {
      return InvalidArgument("no ", ToText(receive), " stands before it");
    }
    RETURN_IF_ERROR(Await(*found, reason));
    receives_.erase(found);
    return absl::OkStatus();
  }

  // Gives the stage back what is gone, without waiting, or with `wait` everything that is still to
  // be sent.
  absl::Status ReleaseSent(bool wait) {
    for (auto sent = sends_.begin(); sent != sends_.end();) {
      if (!wait && !sent->transfer->Done()) {
        ++sent;
        continue;
      }
      const Action action = sent->action;
      RETURN_IF_ERROR(Await(*sent, action));
      stage_.Release(sent->route.boundary, action.chunk, action.microbatch);
      sent = sends_.erase(sent);
    }
    return absl::OkStatus();
  }

  absl::Status Await(Message& message, const Action& reason) {
    TraceSpan wait;
    if (!message.transfer->Done()) {
      wait = {options_.trace,
              {.kind = TraceKind::kWait, .action = reason, .peer = message.route.peer}};
    }
    const absl::Status status = message.transfer->Wait(options_.comm_timeout);
    if (!status.ok()) return Explain(status, message, reason);
    wait.End();
    message.span.End();
    return absl::OkStatus();
  }

  absl::Status Explain(const absl::Status& status, const Message& message,
                       const Action& reason) const {
    const bool late = absl::IsDeadlineExceeded(status);
    if (!late && !absl::IsUnavailable(status)) return status;
    std::string text = absl::StrFormat(
        "chunk %d, microbatch %d: %s %s rank %d", message.action.chunk, message.action.microbatch,
        ToText(message.action), message.route.send ? "to" : "from", message.route.peer);
    if (late) {
      absl::StrAppendFormat(&text, " has not moved for %s (parallel.comm_timeout_seconds)",
                            absl::FormatDuration(options_.comm_timeout));
    } else {
      absl::StrAppend(&text, " is lost: ", status.message());
    }
    absl::StrAppend(
        &text, "\n",
        PositionText(schedule_, comm_.rank(), reason, message.route.peer, message.action));
    return WithExitCode(absl::Status(status.code(), text),
                        late ? ExitCode::kHang : ExitCode::kPeerLost);
  }

  const Schedule& schedule_;
  const Placement& placement_;
  Stage& stage_;
  Communicator& comm_;
  const ExecutorOptions& options_;
  const std::vector<Action>& actions_;
  std::vector<LaneMessage> posts_;  // what it receives, in the order in which it posts
  size_t next_post_ = 0;            // those before it have been started
  int computed_ = 0;                // computing actions that are done
  std::vector<Message> receives_;   // started, not yet used; in order
  std::vector<Message> sends_;      // under way; in order
};

}  // namespace

int MessageTag(int cut, bool backward, int tensor) {
  const int tag = ((cut - 1) * 2 + (backward ? 1 : 0)) * kMaxTensors + tensor;
  DEEPNET_CHECK(cut >= 1 && tensor < kMaxTensors && tag < Communicator::kNumTags)
      << "cut " << cut << ", tensor " << tensor;
  return tag;
}

absl::StatusOr<Route> RouteOf(const Action& transfer, const Placement& placement) {
  const bool send = IsSend(transfer.op), backward = !IsForward(transfer.op);
  const int neighbour = OtherEnd(transfer).chunk;
  const int cut = std::max(transfer.chunk, neighbour);
  if (!placement.Crosses(cut)) {
    return InvalidArgument(ToText(transfer), " is not between two ranks of the placement");
  }
  const Boundary boundary = backward ? (send ? Boundary::kInputGradient : Boundary::kOutputGradient)
                                     : (send ? Boundary::kOutput : Boundary::kInput);
  return Route{.cut = cut,
               .peer = placement.rank_of_chunk[neighbour],
               .backward = backward,
               .send = send,
               .boundary = boundary};
}

std::string PositionText(const Schedule& schedule, int rank, const Action& reason, int peer,
                         const Action& transfer) {
  return absl::StrCat(RankText(schedule, rank, reason, "[", "]"), "\n",
                      RankText(schedule, peer, OtherEnd(transfer), "<", ">"));
}

absl::Status RunSchedule(const Schedule& schedule, const Placement& placement, Stage& stage,
                         Communicator& comm, const ExecutorOptions& options) {
  if (static_cast<int>(schedule.actions.size()) != comm.size()) {
    return InvalidArgument("schedule for ", schedule.actions.size(), " ranks, run by ",
                           comm.size());
  }
  Execution execution(schedule, placement, stage, comm, options);
  absl::Status status = execution.Run();
  // Messages are still under way here: the job ends before they are dropped.
  if (!status.ok() && !absl::IsAborted(status) && comm.size() > 1) EndJob(comm, status);
  return status;
}

}  // namespace deepnet
