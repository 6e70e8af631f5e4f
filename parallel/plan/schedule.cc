#include "parallel/plan/schedule.h"

#include <algorithm>

#include "parallel/base/check.h"

namespace deepnet {

int NumMicrobatches(const Schedule& schedule) {
  int count = 0;
  for (const std::vector<Action>& actions : schedule.actions) {
    for (const Action& action : actions) count = std::max(count, action.microbatch + 1);
  }
  return count;
}

int PeakAlive(const Schedule& schedule, int rank) {
  int alive = 0, peak = 0;
  for (const Action& action : schedule.actions[rank]) {
    if (action.op == Op::kForward) ++alive;
    if (IsWeightPass(action.op)) --alive;
    peak = std::max(peak, alive);
  }
  return peak;
}

bool HasTransfers(const Schedule& schedule) {
  const auto transfers = [](const Action& action) { return IsTransfer(action.op); };
  return std::any_of(schedule.actions.begin(), schedule.actions.end(), [&](const auto& actions) {
    return std::any_of(actions.begin(), actions.end(), transfers);
  });
}

std::optional<Action> ScheduleProgress::WaitsFor(const Action& action,
                                                 const Placement* transfers) const {
  const int chunk = action.chunk, mb = action.microbatch;
  const auto received_at = [&](int cut) { return transfers != nullptr && transfers->Crosses(cut); };
  const auto need = [&](Op op, int of_chunk) -> std::optional<Action> {
    if (Done(op, of_chunk, mb)) return std::nullopt;
    return Action{op, of_chunk, mb};
  };
  switch (action.op) {
    case Op::kForward:
      if (chunk == 0) return std::nullopt;
      return received_at(chunk) ? need(Op::kReceiveForward, chunk) : need(Op::kForward, chunk - 1);
    case Op::kBackward:
    case Op::kBackwardInput:
      if (!Done(Op::kForward, chunk, mb)) return Action{Op::kForward, chunk, mb};
      if (chunk + 1 == num_chunks_) return std::nullopt;
      if (received_at(chunk + 1)) return need(Op::kReceiveBackward, chunk);
      if (GradientDone(chunk + 1, mb)) return std::nullopt;
      return Action{action.op, chunk + 1, mb};
    case Op::kBackwardWeight:
      return need(Op::kBackwardInput, chunk);
    case Op::kSendForward:
      return need(Op::kForward, chunk);
    case Op::kSendBackward:
      if (GradientDone(chunk, mb)) return std::nullopt;
      return Action{Op::kBackward, chunk, mb};
    case Op::kReceiveForward:
    case Op::kReceiveBackward:
      return OtherEnd(action);
  }
  return std::nullopt;
}

Action OtherEnd(const Action& transfer) {
  switch (transfer.op) {
    case Op::kSendForward:
      return {Op::kReceiveForward, transfer.chunk + 1, transfer.microbatch};
    case Op::kReceiveForward:
      return {Op::kSendForward, transfer.chunk - 1, transfer.microbatch};
    case Op::kSendBackward:
      return {Op::kReceiveBackward, transfer.chunk - 1, transfer.microbatch};
    case Op::kReceiveBackward:
      return {Op::kSendBackward, transfer.chunk + 1, transfer.microbatch};
    default:
      DEEPNET_CHECK(false) << "computes, transfers nothing";
  }
  return transfer;
}

}  // namespace deepnet
