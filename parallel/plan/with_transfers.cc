// The order is that of a simulated step in which F, I and W take one unit each: an action enters
// its rank's list when it starts; when it ends and produced something for another rank, the send
// and the receive enter both lists at that moment.

#include "parallel/plan/with_transfers.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"

#include "parallel/base/status_macros.h"
#include "parallel/plan/schedule_progress.h"
#include "parallel/plan/schedule_text.h"
#include "parallel/plan/simulator.h"

namespace deepnet {
namespace {

// An action starts or ends. Ends come first: what they bring stands before what it is for.
struct Event {
  double time;
  bool starts;
  int rank;
  Action action;

  friend bool operator<(const Event& a, const Event& b) {
    return std::tie(a.time, a.starts, a.rank) < std::tie(b.time, b.starts, b.rank);
  }
};

// The send that follows `action`, if what it made goes to another rank.
bool MakesSend(const Action& action, const Placement& placement, Action* send) {
  const bool forward = action.op == Op::kForward;
  if (action.op == Op::kBackwardWeight) return false;
  *send = {forward ? Op::kSendForward : Op::kSendBackward, action.chunk, action.microbatch};
  const int cut = forward ? action.chunk + 1 : action.chunk;
  return cut < placement.NumChunks() && placement.Crosses(cut);
}

absl::Status CheckComputeOnly(const Schedule& schedule) {
  for (size_t rank = 0; rank < schedule.actions.size(); ++rank) {
    for (const Action& action : schedule.actions[rank]) {
      if (!IsTransfer(action.op)) continue;
      return absl::InvalidArgumentError(absl::StrCat("schedule: rank ", rank, ", action ",
                                                     ToText(action), ": transfers already"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Schedule> WithTransfers(const Schedule& compute, const Placement& placement) {
  RETURN_IF_ERROR(CheckComputeOnly(compute));
  const std::vector<ChunkCost> costs(placement.NumChunks(),
                                     {.forward = 1, .backward_input = 1, .backward_weight = 1});
  ASSIGN_OR_RETURN(const Simulation simulation, Simulate(compute, placement, costs));
  std::vector<Event> events;
  for (int rank = 0; rank < placement.NumRanks(); ++rank) {
    for (const TimedAction& timed : simulation.timeline[rank]) {
      events.push_back({timed.start, true, rank, timed.action});
      events.push_back({timed.end, false, rank, timed.action});
    }
  }
  std::sort(events.begin(), events.end());

  Schedule schedule;
  schedule.actions.resize(compute.actions.size());
  for (const Event& event : events) {
    Action send;
    if (event.starts) {
      schedule.actions[event.rank].push_back(event.action);
    } else if (MakesSend(event.action, placement, &send)) {
      const Action receive = OtherEnd(send);
      schedule.actions[event.rank].push_back(send);
      schedule.actions[placement.rank_of_chunk[receive.chunk]].push_back(receive);
    }
  }
  return schedule;
}

}  // namespace deepnet
