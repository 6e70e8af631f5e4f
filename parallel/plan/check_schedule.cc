// Three passes: over each rank's list alone; over what each rank sends to another and what that one
// receives; and one that lets every rank run as far as its dependencies allow, in turns, until
// nobody moves: whoever is not at its end then would wait for ever, because an action that is done
// stays done. A transfer happens when both its ranks are at it.
//
// A schedule that passes can be run over lanes that match in order, with receives posted as
// message_order.h says: whatever stands before a message in its lane was made and sent before the
// action that needs the message, so those receives have nothing left to wait for by then.

#include "parallel/plan/check_schedule.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/plan/message_order.h"
#include "parallel/plan/simulator.h"

namespace deepnet {
namespace {

constexpr char kNoCut[] = "there is no cut between ranks here";

class Checker {
 public:
  Checker(const Schedule& schedule, const PipelineShape& shape,
          const std::optional<Placement>& owners)
      : schedule_(schedule),
        shape_(shape),
        num_chunks_(shape.num_ranks * shape.virtual_pipeline_size),
        owners_(owners.value_or(Placement{std::vector<int>(num_chunks_, -1)})),
        has_transfers_(HasTransfers(schedule)) {}

  absl::Status Run() {
    if (static_cast<int>(schedule_.actions.size()) != shape_.num_ranks) {
      return InvalidArgument("schedule: ", schedule_.actions.size(), " ranks listed, expected ",
                             shape_.num_ranks);
    }
    if (owners_.NumChunks() != num_chunks_) {
      return InvalidArgument("schedule: ", owners_.NumChunks(), " chunks placed, expected ",
                             num_chunks_);
    }
    RETURN_IF_ERROR(CheckLists());
    RETURN_IF_ERROR(CheckComplete());
    if (has_transfers_) RETURN_IF_ERROR(CheckLanes());
    return CheckProgress();
  }

 private:
  template <typename... Parts>
  static absl::Status Offence(int rank, const Action& action, const Parts&... parts) {
    return InvalidArgument("schedule: rank ", rank, ", action ", ToText(action), ": ", parts...);
  }

  absl::Status CheckLists() {
    std::vector<int> next_forward(num_chunks_, 0), next_weight(num_chunks_, 0);
    for (int rank = 0; rank < shape_.num_ranks; ++rank) {
      for (const Action& action : schedule_.actions[rank]) {
        RETURN_IF_ERROR(CheckPlace(rank, action));
        if (action.op == Op::kForward) {
          RETURN_IF_ERROR(CheckAscending(rank, action, next_forward));
        } else if (IsWeightPass(action.op)) {
          RETURN_IF_ERROR(CheckAscending(rank, action, next_weight));
        }
        RETURN_IF_ERROR(CheckOnce(rank, action));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckPlace(int rank, const Action& action) {
    if (action.chunk < 0 || action.chunk >= num_chunks_) {
      return Offence(rank, action, "there are only ", num_chunks_, " chunks");
    }
    if (action.microbatch < 0 || action.microbatch >= shape_.num_microbatches) {
      return Offence(rank, action, "there are only ", shape_.num_microbatches, " microbatches");
    }
    if (IsTransfer(action.op)) {
      const int other = OtherEnd(action).chunk;
      if (other < 0 || other >= num_chunks_) return Offence(rank, action, kNoCut);
    }
    int& owner = owners_.rank_of_chunk[action.chunk];
    if (owner < 0) owner = rank;
    if (owner == rank) return absl::OkStatus();
    return Offence(rank, action, "the chunk belongs to rank ", owner);
  }

  bool Seen(Op op, int chunk, int mb) const { return seen_.contains({op, chunk, mb}); }

  absl::Status CheckOnce(int rank, const Action& action) {
    if (!seen_.insert(action).second) return Offence(rank, action, "a second time");
    const auto seen = [&](Op op) { return Seen(op, action.chunk, action.microbatch); };
    if (seen(Op::kBackward) && (seen(Op::kBackwardInput) || seen(Op::kBackwardWeight))) {
      return Offence(rank, action, "a backward pass is either one B or one I and one W");
    }
    return absl::OkStatus();
  }

  static absl::Status CheckAscending(int rank, const Action& action, std::vector<int>& next) {
    if (action.microbatch + 1 < next[action.chunk]) {
      const char* what = action.op == Op::kForward ? "forwards" : "weight gradients";
      return Offence(rank, action, what, " must come in ascending microbatch order");
    }
    next[action.chunk] = action.microbatch + 1;
    return absl::OkStatus();
  }

  absl::Status CheckComplete() const {
    for (int chunk = 0; chunk < num_chunks_; ++chunk) {
      for (int mb = 0; mb < shape_.num_microbatches; ++mb) {
        const bool split =
            Seen(Op::kBackwardInput, chunk, mb) && Seen(Op::kBackwardWeight, chunk, mb);
        if (!Seen(Op::kForward, chunk, mb) || !(Seen(Op::kBackward, chunk, mb) || split)) {
          return InvalidArgument("schedule: chunk ", chunk, ", microbatch ", mb,
                                 ": needs one F and either one B or one I and one W");
        }
        RETURN_IF_ERROR(CheckTransfers(chunk, mb));
      }
    }
    return absl::OkStatus();
  }

  // The cut before `chunk` must have all four transfers, or none where both sides are on one rank.
  absl::Status CheckTransfers(int chunk, int mb) const {
    if (!has_transfers_ || chunk == 0) return absl::OkStatus();
    const bool wanted = owners_.Crosses(chunk);
    for (const Op op : {Op::kReceiveForward, Op::kSendBackward}) {
      for (const Action& action : {Action{op, chunk, mb}, OtherEnd({op, chunk, mb})}) {
        if (seen_.contains(action) == wanted) continue;
        return InvalidArgument("schedule: action ", ToText(action), ": ",
                               wanted ? "is missing" : kNoCut);
      }
    }
    return absl::OkStatus();
  }

  // Messages from one rank to another are matched in order: the sends of one list must be the
  // receives of the other.
  absl::Status CheckLanes() const {
    using Lane = std::pair<int, int>;                     // from, to
    std::map<Lane, std::vector<Action>> sends, receives;  // as the sender names them
    for (int rank = 0; rank < shape_.num_ranks; ++rank) {
      for (const Action& action : schedule_.actions[rank]) {
        if (!IsTransfer(action.op)) continue;
        const int peer = owners_.rank_of_chunk[OtherEnd(action).chunk];
        if (IsSend(action.op)) sends[{rank, peer}].push_back(action);
        if (IsReceive(action.op)) receives[{peer, rank}].push_back(OtherEnd(action));
      }
    }
    for (const auto& [lane, sent] : sends) {
      const std::vector<Action>& received = receives[lane];
      const auto [first, other] = std::mismatch(sent.begin(), sent.end(), received.begin());
      if (first == sent.end()) continue;
      // Rank `to` receives what `other` sends before what `first` sends, although it is sent later.
      const auto& [from, to] = lane;
      return InvalidArgument("schedule: messages from rank ", from, " to rank ", to,
                             " cross: rank ", from, " has ", ToText(*first), " before ",
                             ToText(*other), ", but rank ", to, " has ", ToText(OtherEnd(*other)),
                             " before ", ToText(OtherEnd(*first)));
    }
    return absl::OkStatus();
  }

  const Action* Next(int rank) const {
    const std::vector<Action>& actions = schedule_.actions[rank];
    return position_[rank] < actions.size() ? &actions[position_[rank]] : nullptr;
  }

  // Takes the next action of `rank` if it can be taken; a send together with its receive.
  bool Step(int rank, ScheduleProgress& progress) {
    const Action* action = Next(rank);
    if (action == nullptr) return false;
    if (progress.WaitsFor(*action)) return false;
    if (IsTransfer(action->op)) {
      const Action receive = OtherEnd(*action);
      const int peer = owners_.rank_of_chunk[receive.chunk];
      const Action* at = Next(peer);
      if (at == nullptr || *at != receive) return false;
      progress.done.insert(receive);
      ++position_[peer];
    }
    progress.done.insert(*action);
    ++position_[rank];
    return true;
  }

  absl::Status CheckProgress() {
    ScheduleProgress progress{num_chunks_, has_transfers_ ? &owners_ : nullptr};
    position_.assign(shape_.num_ranks, 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < shape_.num_ranks; ++rank) {
        while (Step(rank, progress)) moved = true;
      }
    }
    for (int rank = 0; rank < shape_.num_ranks; ++rank) {
      const Action* stuck = Next(rank);
      if (stuck == nullptr) continue;
      const std::optional<Action> needed = progress.WaitsFor(*stuck);
      const Action other = needed ? *needed : OtherEnd(*stuck);
      return Offence(rank, *stuck, "waits for ever: ", ToText(other), " of rank ",
                     owners_.rank_of_chunk[other.chunk], " comes later or never");
    }
    return absl::OkStatus();
  }

  const Schedule& schedule_;
  const PipelineShape shape_;
  const int num_chunks_;
  Placement owners_;  // -1 until a chunk's first action
  const bool has_transfers_;
  absl::flat_hash_set<Action> seen_;
  std::vector<size_t> position_;  // [rank] in its list
};

struct Event {
  double time;
  bool starts;
  int rank;
  Action action;
};

}  // namespace

absl::Status CheckSchedule(const Schedule& schedule, const PipelineShape& shape,
                           const std::optional<Placement>& owners) {
  if (shape.num_ranks < 1 || shape.num_microbatches < 1 || shape.virtual_pipeline_size < 1) {
    return absl::InvalidArgumentError("schedule: ranks, microbatches and chunks must be positive");
  }
  return Checker(schedule, shape, owners).Run();
}

// The order is that of a simulated step in which F, I and W take one unit each: an action enters
// its rank's list when it starts; when it ends, its send and the receive enter both lists.
absl::StatusOr<Schedule> WithTransfers(const Schedule& compute, const Placement& placement) {
  if (HasTransfers(compute)) {
    const int ranks = std::max(1, placement.NumRanks());
    const PipelineShape shape{.num_ranks = ranks,
                              .num_microbatches = std::max(1, NumMicrobatches(compute)),
                              .virtual_pipeline_size = placement.NumChunks() / ranks};
    RETURN_IF_ERROR(CheckSchedule(compute, shape, placement));
    return compute;
  }
  const std::vector<ChunkCost> costs(placement.NumChunks(),
                                     {.forward = 1, .backward_input = 1, .backward_weight = 1});
  ASSIGN_OR_RETURN(const Simulation simulation, Simulate(compute, placement, costs));
  std::vector<Event> events;
  for (int rank = 0; rank < placement.NumRanks(); ++rank) {
    for (const auto& [action, start, end] : simulation.timeline[rank]) {
      events.push_back({start, true, rank, action});
      events.push_back({end, false, rank, action});
    }
  }
  // Ends come first: what they bring stands before what it is for.
  std::ranges::sort(events, {},
                    [](const Event& e) { return std::tuple(e.time, e.starts, e.rank); });

  Schedule schedule;
  schedule.actions.resize(compute.actions.size());
  for (const Event& event : events) {
    if (event.starts) {
      schedule.actions[event.rank].push_back(event.action);
    } else if (const std::optional<Action> send = SendBehind(event.action, placement)) {
      const Action receive = OtherEnd(*send);
      schedule.actions[event.rank].push_back(*send);
      schedule.actions[placement.rank_of_chunk[receive.chunk]].push_back(receive);
    }
  }
  return schedule;
}

}  // namespace deepnet
