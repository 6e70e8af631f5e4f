// No event queue: a rank's order is fixed and a link's order is that of its sender, so times follow
// from one walk along the dependencies. A rank on the work list takes actions until one lacks its
// input; the message that brings it puts the rank back on the list.

#include "parallel/plan/simulator.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "parallel/base/status_macros.h"

namespace deepnet {

double ChunkCost::Seconds(Op op) const {
  if (op == Op::kForward) return forward;
  return (op == Op::kBackwardWeight ? 0 : backward_input) +
         (op == Op::kBackwardInput ? 0 : backward_weight);
}

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// One direction of one cut between ranks.
struct Hop {
  int peer = -1;                     // rank that receives
  double* wire_free_at = nullptr;    // of the ordered pair of ranks, one for all its cuts
  double latency = 0, transfer = 0;  // seconds
};

class Walk {
 public:
  // Without `network` every message arrives the moment it is made.
  Walk(const Schedule& schedule, const Placement& placement, std::span<const ChunkCost> costs,
       const Network* network)
      : schedule_(schedule),
        placement_(placement),
        costs_(costs),
        num_microbatches_(NumMicrobatches(schedule)),
        forward_hops_(costs.size()),
        backward_hops_(costs.size()),
        cells_(costs.size() * num_microbatches_),
        position_(schedule.actions.size(), 0),
        free_at_(schedule.actions.size(), 0),
        queued_(schedule.actions.size(), true) {
    for (int c = 1; c < placement.NumChunks(); ++c) {
      if (!placement.Crosses(c)) continue;
      const int before = placement.rank_of_chunk[c - 1], after = placement.rank_of_chunk[c];
      forward_hops_[c - 1] = MakeHop(before, after, costs[c].forward_bytes, network);
      backward_hops_[c] = MakeHop(after, before, costs[c].backward_bytes, network);
    }
  }

  // Times of all actions go to `timeline` if there is one. Fails if a rank waits for ever.
  absl::Status Run(std::vector<std::vector<TimedAction>>* timeline) {
    const int num_ranks = static_cast<int>(position_.size());
    for (int rank = num_ranks - 1; rank >= 0; --rank) list_.push_back(rank);
    while (!list_.empty()) {
      const int rank = list_.back();
      list_.pop_back();
      queued_[rank] = false;
      Advance(rank, timeline);
    }
    for (int rank = 0; rank < num_ranks; ++rank) {
      if (position_[rank] == schedule_.actions[rank].size()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("schedule: rank ", rank, ", action ",
                       ToText(schedule_.actions[rank][position_[rank]]), ": waits for ever"));
    }
    return absl::OkStatus();
  }

  double Makespan() const { return *std::max_element(free_at_.begin(), free_at_.end()); }

 private:
  // The times at which the inputs of an action are there.
  struct Cell {
    double input = kNever;            // outputs of the chunk before, on this rank
    double output_gradient = kNever;  // gradients of the chunk behind, on this rank
    double forward = kNever;          // end of F
    double input_gradient = kNever;   // end of I
  };

  Cell& At(int chunk, int mb) {
    return cells_[static_cast<size_t>(chunk) * num_microbatches_ + mb];
  }

  Hop MakeHop(int from, int to, double bytes, const Network* network) {
    Hop hop{.peer = to, .wire_free_at = &wires_[{from, to}]};
    if (network == nullptr) return hop;
    const Link& link = network->Between(from, to);
    hop.latency = link.latency_seconds;
    hop.transfer = bytes / link.bytes_per_second;
    return hop;
  }

  double ReadyAt(const Action& action) {
    const Cell& cell = At(action.chunk, action.microbatch);
    switch (action.op) {
      case Op::kForward:
        return action.chunk == 0 ? 0 : cell.input;
      case Op::kBackward:
      case Op::kBackwardInput:
        if (action.chunk + 1 == placement_.NumChunks()) return cell.forward;
        return std::max(cell.forward, cell.output_gradient);
      case Op::kBackwardWeight:
        return cell.input_gradient;
      default:
        return 0;
    }
  }

  void Advance(int rank, std::vector<std::vector<TimedAction>>* timeline) {
    const std::vector<Action>& actions = schedule_.actions[rank];
    for (size_t& at = position_[rank]; at < actions.size(); ++at) {
      const Action& action = actions[at];
      if (IsTransfer(action.op)) continue;
      const double ready = ReadyAt(action);
      if (ready == kNever) return;
      const double start = std::max(ready, free_at_[rank]);
      const double end = free_at_[rank] = start + costs_[action.chunk].Seconds(action.op);
      if (timeline != nullptr) (*timeline)[rank].push_back({action, start, end});
      Finish(action, end);
    }
  }

  void Finish(const Action& action, double end) {
    const int chunk = action.chunk, mb = action.microbatch;
    if (action.op == Op::kForward) {
      At(chunk, mb).forward = end;
      if (chunk + 1 < placement_.NumChunks()) {
        At(chunk + 1, mb).input = Deliver(forward_hops_[chunk], end);
      }
    } else if (action.op != Op::kBackwardWeight) {
      At(chunk, mb).input_gradient = end;
      if (chunk > 0) At(chunk - 1, mb).output_gradient = Deliver(backward_hops_[chunk], end);
    }
  }

  // Returns the time at which the data made at `end` have passed `hop`; wakes the rank that waits
  // for them.
  double Deliver(const Hop& hop, double end) {
    if (hop.peer < 0) return end;
    if (!queued_[hop.peer]) {
      queued_[hop.peer] = true;
      list_.push_back(hop.peer);
    }
    *hop.wire_free_at = std::max(end, *hop.wire_free_at) + hop.transfer;
    return *hop.wire_free_at + hop.latency;
  }

  const Schedule& schedule_;
  const Placement& placement_;
  const std::span<const ChunkCost> costs_;
  const int num_microbatches_;
  std::map<std::pair<int, int>, double> wires_;    // when they are free, from one rank to another
  std::vector<Hop> forward_hops_, backward_hops_;  // [chunk] from it to the next, to the one before
  std::vector<Cell> cells_;                        // [chunk][microbatch]
  std::vector<size_t> position_;                   // [rank]
  std::vector<double> free_at_;                    // [rank]
  std::vector<char> queued_;                       // [rank]
  std::vector<int> list_;                          // ranks that may be able to move
};

// Checks what the walk takes for granted.
absl::Status CheckPlaces(const Schedule& schedule, const Placement& placement) {
  for (int rank = 0; rank < std::ssize(schedule.actions); ++rank) {
    for (const Action& action : schedule.actions[rank]) {
      if (action.microbatch >= 0 && action.chunk >= 0 && action.chunk < placement.NumChunks() &&
          placement.rank_of_chunk[action.chunk] == rank) {
        continue;
      }
      return absl::InvalidArgumentError(absl::StrCat("schedule: rank ", rank, ", action ",
                                                     ToText(action), ": not of this placement"));
    }
  }
  return absl::OkStatus();
}

void AddUp(Simulation& simulation) {
  double sum = 0;
  for (const std::vector<TimedAction>& actions : simulation.timeline) {
    double& busy = simulation.busy.emplace_back(0);
    for (const TimedAction& timed : actions) busy += timed.end - timed.start;
    sum += busy;
  }
  const double available = simulation.makespan * static_cast<double>(simulation.busy.size());
  simulation.bubble = available > 0 ? std::max(0.0, 1 - sum / available) : 0;
}

}  // namespace

absl::StatusOr<Simulation> Simulate(const Schedule& schedule, const Placement& placement,
                                    std::span<const ChunkCost> costs, const Network& network) {
  DEEPNET_CHECK_EQ(static_cast<int>(costs.size()), placement.NumChunks());
  if (static_cast<int>(schedule.actions.size()) != placement.NumRanks()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "schedule: ", schedule.actions.size(), " ranks listed, expected ", placement.NumRanks()));
  }
  RETURN_IF_ERROR(CheckPlaces(schedule, placement));
  Simulation simulation;
  simulation.timeline.resize(schedule.actions.size());
  for (size_t rank = 0; rank < schedule.actions.size(); ++rank) {
    simulation.timeline[rank].reserve(schedule.actions[rank].size());
  }
  Walk walk(schedule, placement, costs, &network);
  RETURN_IF_ERROR(walk.Run(&simulation.timeline));
  simulation.makespan = walk.Makespan();
  AddUp(simulation);
  Walk without_communication(schedule, placement, costs, nullptr);
  RETURN_IF_ERROR(without_communication.Run(nullptr));
  if (simulation.makespan > 0) {
    simulation.exposed_communication = 1 - without_communication.Makespan() / simulation.makespan;
  }
  return simulation;
}

}  // namespace deepnet
