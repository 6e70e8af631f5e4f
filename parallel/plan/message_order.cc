#include "parallel/plan/message_order.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <set>

namespace deepnet {
namespace {

constexpr int kNever = std::numeric_limits<int>::max();

// The use that a rank has for the data of one receive.
struct Use {
  int needed_by = kNever;
  int earliest = 0;  // computing actions of the rank before which the data cannot have been made
};

// The uses that one rank has for what it receives.
class Uses {
 public:
  explicit Uses(const std::vector<Action>& actions) {
    for (const Action& action : actions) {
      if (action.chunk >= std::ssize(place_of_chunk_)) place_of_chunk_.resize(action.chunk + 1, -1);
      int& place = place_of_chunk_[action.chunk];
      if (place < 0) place = num_own_chunks_++;
      num_microbatches_ = std::max(num_microbatches_, action.microbatch + 1);
    }
    uses_.resize(2 * static_cast<size_t>(num_own_chunks_) * num_microbatches_);
    std::vector<int> passes_done_behind(num_microbatches_, 0);
    int number = 0;  // of a computing action
    for (const Action& action : actions) {
      if (IsTransfer(action.op)) continue;
      if (action.op != Op::kBackwardWeight) {
        int& earliest = passes_done_behind[action.microbatch];
        uses_[Cell(action.op != Op::kForward, action.chunk, action.microbatch)] = {number,
                                                                                   earliest};
        earliest = number + 1;
      }
      ++number;
    }
  }

  Use Of(const Action& receive) const {
    if (receive.chunk >= std::ssize(place_of_chunk_) || place_of_chunk_[receive.chunk] < 0)
      return {};
    if (receive.microbatch >= num_microbatches_) return {};
    return uses_[Cell(receive.op == Op::kReceiveBackward, receive.chunk, receive.microbatch)];
  }

 private:
  size_t Cell(bool backward, int chunk, int microbatch) const {
    const int row = 2 * place_of_chunk_[chunk] + (backward ? 1 : 0);
    return static_cast<size_t>(row) * num_microbatches_ + microbatch;
  }

  std::vector<int> place_of_chunk_;  // -1: another rank's
  int num_own_chunks_ = 0;
  int num_microbatches_ = 0;
  std::vector<Use> uses_;  // [own chunk][backward][microbatch]
};

// The ranks of chunks next to those of `rank`.
std::set<int> Neighbours(int rank, const Placement& placement) {
  std::set<int> neighbours;
  for (int cut = 1; cut < placement.NumChunks(); ++cut) {
    const int before = placement.rank_of_chunk[cut - 1], behind = placement.rank_of_chunk[cut];
    if (before == behind) continue;
    if (before == rank) neighbours.insert(behind);
    if (behind == rank) neighbours.insert(before);
  }
  return neighbours;
}

// Returns what `from` sends to `rank`, in its order, each posted as early as its data can be made.
std::vector<LaneMessage> LaneOf(int from, int rank, const Schedule& schedule,
                                const Placement& placement, const Uses& uses) {
  std::vector<LaneMessage> lane;
  int number = 0;
  for (const Action& action : schedule.actions[from]) {
    if (!IsTransfer(action.op)) ++number;
    if (!IsSend(action.op)) continue;
    const Action receive = OtherEnd(action);
    if (placement.rank_of_chunk[receive.chunk] != rank) continue;
    const Use use = uses.Of(receive);
    lane.push_back({action, from, number, use.needed_by, use.earliest});
  }
  return lane;
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

// Walks through all lists, each as far as its inputs allow, and counts on how many actions of one
// rank every action depends.
class OwnWork {
 public:
  OwnWork(int rank, const Schedule& schedule, const Placement& placement)
      : rank_(rank),
        schedule_(schedule),
        placement_(placement),
        num_microbatches_(NumMicrobatches(schedule)),
        position_(schedule.actions.size(), 0),
        behind_(schedule.actions.size(), 0),
        sent_behind_(2 * static_cast<size_t>(placement.NumChunks()) * num_microbatches_, kUnsent),
        list_(schedule.actions.size()) {
    std::iota(list_.begin(), list_.end(), 0);
    while (!list_.empty()) {
      const int next = list_.back();
      list_.pop_back();
      Advance(next);
    }
  }

  // Returns the number of the rank's computing actions on which `send` depends, or kUnsent if the
  // lists do not get there.
  int SentBehind(const Action& send) const { return sent_behind_[Cell(OtherEnd(send))]; }

 private:
  static constexpr int kUnsent = -1;

  size_t Cell(const Action& receive) const {
    const int row =
        receive.chunk + (receive.op == Op::kReceiveBackward ? placement_.NumChunks() : 0);
    return static_cast<size_t>(row) * num_microbatches_ + receive.microbatch;
  }

  void Advance(int rank) {
    const std::vector<Action>& actions = schedule_.actions[rank];
    for (size_t& at = position_[rank]; at < actions.size(); ++at) {
      const Action& action = actions[at];
      if (IsReceive(action.op)) continue;
      if (IsSend(action.op)) {
        const Action receive = OtherEnd(action);
        sent_behind_[Cell(receive)] = behind_[rank];
        list_.push_back(placement_.rank_of_chunk[receive.chunk]);
        continue;
      }
      if (const auto receive = ReceiveBefore(action, placement_)) {
        const int sent_behind = sent_behind_[Cell(*receive)];
        if (sent_behind == kUnsent) return;  // the send puts this rank on the list again
        behind_[rank] = std::max(behind_[rank], sent_behind);
      }
      if (rank == rank_) ++behind_[rank];
    }
  }

  const int rank_;
  const Schedule& schedule_;
  const Placement& placement_;
  const int num_microbatches_;
  std::vector<size_t> position_;  // [rank]
  std::vector<int> behind_;       // [rank] actions of rank_ on which its last action depends
  std::vector<int> sent_behind_;  // [backward][chunk that receives][microbatch]
  std::vector<int> list_;         // ranks that may be able to move
};

}  // namespace

void PostBehindOwnWork(int rank, const Schedule& schedule, const Placement& placement,
                       std::vector<LaneMessage>& messages) {
  if (messages.empty()) return;
  const OwnWork work(rank, schedule, placement);
  for (LaneMessage& message : messages) {
    message.posted_behind = std::max(message.posted_behind, work.SentBehind(message.send));
  }
}

std::vector<LaneMessage> MessagesTo(int rank, const Schedule& schedule, const Placement& placement,
                                    int look_ahead) {
  const Uses uses(schedule.actions[rank]);
  std::vector<LaneMessage> messages;
  for (const int from : Neighbours(rank, placement)) {
    std::vector<LaneMessage> lane = LaneOf(from, rank, schedule, placement, uses);
    PostAhead(look_ahead, lane);
    messages.insert(messages.end(), lane.begin(), lane.end());
  }
  return messages;
}

std::optional<Action> SendBehind(const Action& action, const Placement& placement) {
  const bool forward = action.op == Op::kForward;
  const int cut = forward ? action.chunk + 1 : action.chunk;
  if (action.op == Op::kBackwardWeight || cut == placement.NumChunks()) return std::nullopt;
  if (!placement.Crosses(cut)) return std::nullopt;
  return Action{forward ? Op::kSendForward : Op::kSendBackward, action.chunk, action.microbatch};
}

std::optional<Action> ReceiveBefore(const Action& action, const Placement& placement) {
  const bool forward = action.op == Op::kForward;
  const int cut = forward ? action.chunk : action.chunk + 1;
  if (action.op == Op::kBackwardWeight || cut >= placement.NumChunks()) return std::nullopt;
  if (!placement.Crosses(cut)) return std::nullopt;
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
