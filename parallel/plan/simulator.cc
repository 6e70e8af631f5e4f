// No event queue: a rank's order is fixed and a link's order is that of its sender, so times follow
// from one walk along the dependencies. A rank on the work list takes actions until one lacks its
// input; the message that brings it puts the rank back on the list.

#include "parallel/plan/simulator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_map.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"

namespace deepnet {

double ChunkCost::Seconds(Op op) const {
  if (op == Op::kForward) return forward;
  return (op == Op::kBackwardWeight ? 0 : backward_input) +
         (op == Op::kBackwardInput ? 0 : backward_weight);
}

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

absl::Status Bad(size_t rank, const Action& action, const char* what) {
  return InvalidArgument("schedule: rank ", rank, ", action ", ToText(action), ": ", what);
}

class Walk {
 public:
  Walk(const Schedule& schedule, const Placement& placement, std::span<const ChunkCost> costs,
       const Network& network)
      : schedule_(schedule),
        placement_(placement),
        costs_(costs),
        network_(network),
        cells_(costs.size(), std::vector<Cell>(NumMicrobatches(schedule))),
        position_(schedule.actions.size(), 0),
        free_at_(schedule.actions.size(), 0),
        queued_(schedule.actions.size(), true) {}

  // Times of all actions go to `timeline` if there is one. Fails if a rank waits for ever.
  absl::Status Run(std::vector<std::vector<TimedAction>>* timeline) {
    list_.resize(position_.size());
    std::iota(list_.rbegin(), list_.rend(), 0);
    while (!list_.empty()) {
      const int rank = list_.back();
      list_.pop_back();
      queued_[rank] = false;
      Advance(rank, timeline);
    }
    for (size_t rank = 0; rank < position_.size(); ++rank) {
      const std::vector<Action>& actions = schedule_.actions[rank];
      if (position_[rank] == actions.size()) continue;
      return Bad(rank, actions[position_[rank]], "waits for ever");
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

  double ReadyAt(const Action& action) {
    const Cell& cell = cells_[action.chunk][action.microbatch];
    if (action.op == Op::kForward) return action.chunk == 0 ? 0 : cell.input;
    if (action.op == Op::kBackwardWeight) return cell.input_gradient;
    if (action.chunk + 1 == placement_.NumChunks()) return cell.forward;
    return std::max(cell.forward, cell.output_gradient);
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
      cells_[chunk][mb].forward = end;
      if (chunk + 1 == placement_.NumChunks()) return;
      cells_[chunk + 1][mb].input = Deliver(chunk, chunk + 1, costs_[chunk + 1].forward_bytes, end);
    } else if (action.op != Op::kBackwardWeight) {
      cells_[chunk][mb].input_gradient = end;
      if (chunk == 0) return;
      cells_[chunk - 1][mb].output_gradient =
          Deliver(chunk, chunk - 1, costs_[chunk].backward_bytes, end);
    }
  }

  // Returns the time at which what chunk `from` made at `end` is at chunk `to`; wakes the rank that
  // waits for it.
  double Deliver(int from, int to, double bytes, double end) {
    const int rank = placement_.rank_of_chunk[from], peer = placement_.rank_of_chunk[to];
    if (rank == peer) return end;
    if (!queued_[peer]) {
      queued_[peer] = true;
      list_.push_back(peer);
    }
    const Link& link = network_.Between(rank, peer);
    double& free_at = wires_[{rank, peer}];
    free_at = std::max(end, free_at) + bytes / link.bytes_per_second;
    return free_at + link.latency_seconds;
  }

  const Schedule& schedule_;
  const Placement& placement_;
  const std::span<const ChunkCost> costs_;
  const Network network_;
  absl::flat_hash_map<std::pair<int, int>, double> wires_;  // free at; from one rank to another
  std::vector<std::vector<Cell>> cells_;                    // [chunk][microbatch]
  std::vector<size_t> position_;                            // [rank]
  std::vector<double> free_at_;                             // [rank]
  std::vector<char> queued_;                                // [rank]
  std::vector<int> list_;                                   // ranks that may be able to move
};

}  // namespace

absl::StatusOr<Simulation> Simulate(const Schedule& schedule, const Placement& placement,
                                    std::span<const ChunkCost> costs, const Network& network) {
  DEEPNET_CHECK_EQ(static_cast<int>(costs.size()), placement.NumChunks());
  if (static_cast<int>(schedule.actions.size()) != placement.NumRanks()) {
    return InvalidArgument("schedule: ", schedule.actions.size(), " ranks listed, expected ",
                           placement.NumRanks());
  }
  for (int rank = 0; rank < std::ssize(schedule.actions); ++rank) {
    for (const Action& action : schedule.actions[rank]) {
      if (action.microbatch < 0 || action.chunk < 0 || action.chunk >= placement.NumChunks() ||
          placement.rank_of_chunk[action.chunk] != rank) {
        return Bad(rank, action, "not of this placement");
      }
    }
  }
  Simulation simulation;
  simulation.timeline.resize(schedule.actions.size());
  Walk walk(schedule, placement, costs, network);
  RETURN_IF_ERROR(walk.Run(&simulation.timeline));
  simulation.makespan = walk.Makespan();
  double sum = 0;
  for (const std::vector<TimedAction>& actions : simulation.timeline) {
    double& busy = simulation.busy.emplace_back(0);
    for (const TimedAction& timed : actions) busy += timed.end - timed.start;
    sum += busy;
  }
  const double available = simulation.makespan * static_cast<double>(simulation.busy.size());
  simulation.bubble = available > 0 ? std::max(0.0, 1 - sum / available) : 0;
  Walk without_communication(schedule, placement, costs, Network{});  // every link is free
  RETURN_IF_ERROR(without_communication.Run(nullptr));
  if (simulation.makespan > 0) {
    simulation.exposed_communication = 1 - without_communication.Makespan() / simulation.makespan;
  }
  return simulation;
}

}  // namespace deepnet
