#include "parallel/exec/message_box.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/check.h"
#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/plan/schedule.h"
#include "parallel/plan/schedule_text.h"

namespace deepnet {
namespace {

constexpr int kShownAround = 6;  // actions on either side of the one that is marked

// Actions of one rank around `marked`, between the two marks.
std::string RankText(const Schedule& schedule, int rank, const Action& marked, char open,
                     char close) {
  const std::vector<Action>& actions = schedule.actions[rank];
  const int at =
      static_cast<int>(std::find(actions.begin(), actions.end(), marked) - actions.begin());
  const int first = std::max(0, at - kShownAround);
  const int last = std::min(static_cast<int>(actions.size()) - 1, at + kShownAround);
  std::string text = absl::StrFormat("  rank %d:%s", rank, first > 0 ? " ..." : "");
  for (int i = first; i <= last; ++i) {
    absl::StrAppend(&text, " ");
    if (i == at) text += open;
    absl::StrAppend(&text, ToText(actions[i]));
    if (i == at) text += close;
  }
  if (last + 1 < static_cast<int>(actions.size())) absl::StrAppend(&text, " ...");
  return text;
}

}  // namespace

int MessageTag(int cut, bool backward, int tensor) {
  const int tag = ((cut - 1) * 2 + (backward ? 1 : 0)) * kMaxTensors + tensor;
  DEEPNET_CHECK(cut >= 1 && tensor < kMaxTensors && tag < Communicator::kNumTags)
      << "cut " << cut << ", tensor " << tensor;
  return tag;
}

absl::StatusOr<Route> RouteOf(const Action& transfer, const Placement& placement) {
  const bool backward = transfer.op == Op::kSendBackward || transfer.op == Op::kReceiveBackward;
  const bool send = transfer.op == Op::kSendForward || transfer.op == Op::kSendBackward;
  const bool towards_end = send != backward;  // the neighbour is chunk + 1, else chunk - 1
  const int cut = transfer.chunk + (towards_end ? 1 : 0);
  if (cut >= placement.NumChunks() || !placement.Crosses(cut)) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToText(transfer), " is not between two ranks of the placement"));
  }
  const Boundary boundary = backward ? (send ? Boundary::kInputGradient : Boundary::kOutputGradient)
                                     : (send ? Boundary::kOutput : Boundary::kInput);
  return Route{.cut = cut,
               .peer = placement.rank_of_chunk[towards_end ? cut : cut - 1],
               .backward = backward,
               .send = send,
               .boundary = boundary};
}

MessageBox::MessageBox(const Schedule& schedule, const Placement& placement, Stage& stage,
                       Communicator& comm, const ExecutorOptions& options)
    : schedule_(schedule), placement_(placement), stage_(stage), comm_(comm), options_(options) {}

bool MessageBox::Message::Done() const {
  return std::all_of(parts.begin(), parts.end(), [](const auto& part) { return part->Done(); });
}

absl::Status MessageBox::Start(const Action& transfer) {
  Message message{.action = transfer, .start = SecondsNow()};
  ASSIGN_OR_RETURN(message.route, RouteOf(transfer, placement_));
  RETURN_IF_ERROR(StartParts(message));
  (message.route.send ? sends_ : receives_).push_back(std::move(message));
  return absl::OkStatus();
}

absl::Status MessageBox::StartParts(Message& message) {
  const Route& route = message.route;
  int tensor = 0;
  for (const Buffer& buffer :
       stage_.Buffers(route.boundary, message.action.chunk, message.action.microbatch)) {
    const int tag = MessageTag(route.cut, route.backward, tensor++);
    Communicator::TransferOr part =
        route.send ? comm_.Send(buffer, route.peer, tag) : comm_.Receive(buffer, route.peer, tag);
    if (!part.ok()) return Explain(part.status(), message, message.action);
    message.parts.push_back(*std::move(part));
    message.bytes += buffer.bytes;
  }
  return absl::OkStatus();
}

bool MessageBox::Crosses(const Action& receive) const {
  const int cut = receive.chunk + (receive.op == Op::kReceiveBackward ? 1 : 0);
  return cut < placement_.NumChunks() && placement_.Crosses(cut);
}

absl::Status MessageBox::AwaitReceived(const Action& receive, const Action& reason) {
  if (!Crosses(receive)) return absl::OkStatus();
  const auto found = std::find_if(receives_.begin(), receives_.end(), [&](const Message& message) {
    return message.action == receive;
  });
  if (found == receives_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("no ", ToText(receive), " stands before it"));
  }
  RETURN_IF_ERROR(Await(*found, reason));
  receives_.erase(found);
  return absl::OkStatus();
}

absl::Status MessageBox::ReleaseSent() {
  for (size_t i = 0; i < sends_.size();) {
    if (sends_[i].Done()) {
      RETURN_IF_ERROR(AwaitAndRelease(i, sends_[i].action));
    } else {
      ++i;
    }
  }
  return absl::OkStatus();
}

absl::Status MessageBox::AwaitSent() {
  while (!sends_.empty()) RETURN_IF_ERROR(AwaitAndRelease(0, sends_[0].action));
  return absl::OkStatus();
}

absl::Status MessageBox::AwaitAndRelease(size_t index, const Action& reason) {
  const Message& message = sends_[index];
  RETURN_IF_ERROR(Await(sends_[index], reason));
  stage_.Release(message.route.boundary, message.action.chunk, message.action.microbatch);
  sends_.erase(sends_.begin() + static_cast<std::ptrdiff_t>(index));
  return absl::OkStatus();
}

absl::Status MessageBox::Await(Message& message, const Action& reason) {
  const bool waits = !message.Done();
  const double start = SecondsNow();
  for (const auto& part : message.parts) {
    const absl::Duration left = options_.limits.message - absl::Seconds(SecondsNow() - start);
    const absl::Status status = part->Wait(std::max(left, absl::ZeroDuration()));
    if (!status.ok()) return Explain(status, message, reason);
  }
  if (options_.trace != nullptr && waits) {
    options_.trace->events.push_back({.kind = TraceKind::kWait,
                                      .action = reason,
                                      .peer = message.route.peer,
                                      .start = start,
                                      .end = SecondsNow()});
  }
  Record(message);
  return absl::OkStatus();
}

void MessageBox::Record(const Message& message) {
  if (options_.trace == nullptr) return;
  options_.trace->events.push_back(
      {.kind = message.route.send ? TraceKind::kSend : TraceKind::kReceive,
       .action = message.action,
       .peer = message.route.peer,
       .bytes = message.bytes,
       .start = message.start,
       .end = SecondsNow()});
}

absl::Status MessageBox::Explain(const absl::Status& status, const Message& message,
                                 const Action& reason) const {
  const bool late = absl::IsDeadlineExceeded(status);
  if (!late && !absl::IsUnavailable(status)) return status;
  std::string text = absl::StrFormat("chunk %d, microbatch %d: %s %s rank %d", message.action.chunk,
                                     message.action.microbatch, ToText(message.action),
                                     message.route.send ? "to" : "from", message.route.peer);
  if (late) {
    absl::StrAppendFormat(&text, " has not moved for %s (parallel.step_timeout_seconds)",
                          absl::FormatDuration(options_.limits.message));
  } else {
    absl::StrAppend(&text, " is lost: ", status.message());
  }
  absl::StrAppend(
      &text, "\n",
      PositionText(schedule_, comm_.rank(), reason, message.route.peer, message.action));
  return WithExitCode(absl::Status(status.code(), text),
                      late ? ExitCode::kHang : ExitCode::kPeerLost);
}

std::string PositionText(const Schedule& schedule, int rank, const Action& reason, int peer,
                         const Action& transfer) {
  return absl::StrCat(RankText(schedule, rank, reason, '[', ']'), "\n",
                      RankText(schedule, peer, OtherEnd(transfer), '<', '>'));
}

}  // namespace deepnet
