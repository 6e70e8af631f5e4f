#include "parallel/plan/message_order.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "absl/container/flat_hash_map.h"

namespace deepnet {
namespace {

constexpr int kNever = std::numeric_limits<int>::max();

struct Use {
  int needed_by = kNever;
  int earliest = 0;  // computing actions of the rank before which the data cannot have been made
};

// Returns the uses that a rank of these `actions` has for what it receives, by the receive.
absl::flat_hash_map<Action, Use> UsesOf(const std::vector<Action>& actions) {
  absl::flat_hash_map<Action, Use> uses;
  uses.reserve(actions.size());
  absl::flat_hash_map<int, int> passes_done_behind;  // by microbatch
  int number = 0;                                    // of a computing action
  for (const auto& [op, chunk, microbatch] : actions) {
    if (IsTransfer(op)) continue;
    if (op != Op::kBackwardWeight) {
      int& earliest = passes_done_behind[microbatch];
      const Op receive = op == Op::kForward ? Op::kReceiveForward : Op::kReceiveBackward;
      uses[{receive, chunk, microbatch}] = {number, earliest};
      earliest = number + 1;
    }
    ++number;
  }
  return uses;
}

// The ranks of chunks next to those of `rank`.
std::set<int> Neighbours(int rank, const Placement& placement) {
  std::set<int> neighbours;
  for (int cut = 1; cut < placement.NumChunks(); ++cut) {
    const int before = placement.rank_of_chunk[cut - 1], behind = placement.rank_of_chunk[cut];
    if (before == rank) neighbours.insert(behind);
    if (behind == rank) neighbours.insert(before);
  }
  neighbours.erase(rank);
  return neighbours;
}

// Posts each `look_ahead` actions before it or a message behind it is needed, and in order.
void PostAhead(int look_ahead, std::vector<LaneMessage>& lane) {
  int needed_by = kNever;  // by this message or one behind it
  for (auto message = lane.rbegin(); message != lane.rend(); ++message) {
    needed_by = std::min(needed_by, message->needed_by);
    const int due = needed_by == kNever ? kNever : needed_by - look_ahead;
    message->posted_behind = std::max(message->posted_behind, due);
  }
  int posted_behind = 0;  // of the message before it
  for (LaneMessage& message : lane) {
    posted_behind = message.posted_behind = std::max(message.posted_behind, posted_behind);
  }
}

// Returns the number of computing actions of `rank` on which each message depends, by its receive.
// Walks through all lists, each as far as its inputs allow; what they do not get to is not there.
absl::flat_hash_map<Action, int> CountOwnWork(int rank, const Schedule& schedule,
                                              const Placement& placement) {
  const size_t num_ranks = schedule.actions.size();
  absl::flat_hash_map<Action, int> sent_behind;
  std::vector<size_t> position(num_ranks, 0);
  std::vector<int> behind(num_ranks, 0);  // [rank] own actions on which its last action depends
  std::vector<int> list(num_ranks);       // ranks that may be able to move
  std::iota(list.begin(), list.end(), 0);
  while (!list.empty()) {
    const int here = list.back();
    list.pop_back();
    const std::vector<Action>& actions = schedule.actions[here];
    for (size_t& at = position[here]; at < actions.size(); ++at) {
      const Action& action = actions[at];
      if (IsReceive(action.op)) continue;
      if (IsSend(action.op)) {
        const Action receive = OtherEnd(action);
        sent_behind[receive] = behind[here];
        list.push_back(placement.rank_of_chunk[receive.chunk]);
        continue;
      }
      if (const auto receive = ReceiveBefore(action, placement)) {
        const auto sent = sent_behind.find(*receive);
        if (sent == sent_behind.end()) break;  // the send puts this rank on the list again
        behind[here] = std::max(behind[here], sent->second);
      }
      if (here == rank) ++behind[here];
    }
  }
  return sent_behind;
}

}  // namespace

void PostBehindOwnWork(int rank, const Schedule& schedule, const Placement& placement,
                       std::vector<LaneMessage>& messages) {
  if (messages.empty()) return;
  const absl::flat_hash_map<Action, int> sent_behind = CountOwnWork(rank, schedule, placement);
  for (LaneMessage& message : messages) {
    const auto sent = sent_behind.find(OtherEnd(message.send));
    if (sent != sent_behind.end()) {
      message.posted_behind = std::max(message.posted_behind, sent->second);
    }
  }
}

std::vector<LaneMessage> MessagesTo(int rank, const Schedule& schedule, const Placement& placement,
                                    int look_ahead) {
  const absl::flat_hash_map<Action, Use> uses = UsesOf(schedule.actions[rank]);
  std::vector<LaneMessage> messages;
  for (const int from : Neighbours(rank, placement)) {
    std::vector<LaneMessage> lane;  // each posted as early as its data can be made
    int number = 0;
    for (const Action& action : schedule.actions[from]) {
      if (!IsTransfer(action.op)) ++number;
      if (!IsSend(action.op)) continue;
      const Action receive = OtherEnd(action);
      if (placement.rank_of_chunk[receive.chunk] != rank) continue;
      const auto found = uses.find(receive);
      const Use use = found == uses.end() ? Use() : found->second;
      lane.push_back({action, from, number, use.needed_by, use.earliest});
    }
    PostAhead(look_ahead, lane);
    messages.insert(messages.end(), lane.begin(), lane.end());
  }
  return messages;
}

std::optional<Action> SendBehind(const Action& action, const Placement& placement) {
  const bool forward = action.op == Op::kForward;
  const int cut = forward ? action.chunk + 1 : action.chunk;
  if (action.op == Op::kBackwardWeight || !placement.Crosses(cut)) return std::nullopt;
  return Action{forward ? Op::kSendForward : Op::kSendBackward, action.chunk, action.microbatch};
}

std::optional<Action> ReceiveBefore(const Action& action, const Placement& placement) {
  const bool forward = action.op == Op::kForward;
  const int cut = forward ? action.chunk : action.chunk + 1;
  if (action.op == Op::kBackwardWeight || !placement.Crosses(cut)) return std::nullopt;
  return Action{forward ? Op::kReceiveForward : Op::kReceiveBackward, action.chunk,
                action.microbatch};
}

Schedule WithSends(const Schedule& schedule, const Placement& placement) {
  if (HasTransfers(schedule)) return schedule;
  Schedule complete;
  for (const std::vector<Action>& actions : schedule.actions) {
    std::vector<Action>& list = complete.actions.emplace_back();
    for (const Action& action : actions) {
      list.push_back(action);
      if (const auto send = SendBehind(action, placement)) list.push_back(*send);
    }
  }
  return complete;
}

}  // namespace deepnet
