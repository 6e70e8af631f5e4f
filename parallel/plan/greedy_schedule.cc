#include "parallel/plan/greedy_schedule.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "parallel/base/check.h"

namespace deepnet {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

class Greedy {
 public:
  Greedy(const Placement& placement, std::span<const ChunkCost> costs, const GreedyOptions& options)
      : placement_(placement),
        costs_(costs),
        options_(options),
        chunks_(placement.NumChunks()),
        ranks_(placement.NumRanks()) {
    for (Chunk& chunk : chunks_) {
      chunk.input_at.assign(options.num_microbatches, kNever);
      chunk.gradient_at.assign(options.num_microbatches, kNever);
    }
    std::fill(chunks_.front().input_at.begin(), chunks_.front().input_at.end(), 0.0);
    for (int c = placement.NumChunks() - 1; c >= 0; --c) {  // nearest to the loss first
      ranks_[placement.rank_of_chunk[c]].chunks.push_back(c);
    }
  }

  Schedule Run() {
    schedule_.actions.resize(ranks_.size());
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) wake_.push({0.0, rank});
    while (!wake_.empty()) {
      const auto [now, rank] = wake_.top();
      wake_.pop();
      if (ranks_[rank].free_at > now) continue;  // another call comes when it is free
      if (const std::optional<Action> action = Choose(rank, now)) Take(rank, *action, now);
    }
    for (const Chunk& chunk : chunks_) {
      DEEPNET_CHECK_EQ(chunk.next_weight, options_.num_microbatches);
    }
    return std::move(schedule_);
  }

 private:
  struct Chunk {
    std::vector<double> input_at, gradient_at;  // [microbatch] when they are on this rank
    int next_forward = 0, next_backward = 0, next_weight = 0;
  };
  struct Rank {
    std::vector<int> chunks;  // from last to first
    double free_at = 0;
    int alive = 0;
  };

  std::optional<Action> Choose(int rank, double now) const {
    if (const auto action = ChooseBackward(rank, now)) return action;
    if (const auto action = ChooseForward(rank, now)) return action;
    return ChooseWeight(rank, now);
  }

  std::optional<Action> ChooseBackward(int rank, double now) const {
    for (const int c : ranks_[rank].chunks) {
      const Chunk& chunk = chunks_[c];
      const int mb = chunk.next_backward;
      if (mb < chunk.next_forward && chunk.gradient_at[mb] <= now) {
        return Action{Op::kBackwardInput, c, mb};
      }
    }
    return std::nullopt;
  }

  // A chunk leaves one place to each chunk of the rank behind it: so the chunk nearest to the loss
  // always finds a place in the end, and nobody waits for ever.
  std::optional<Action> ChooseForward(int rank, double now) const {
    int places = options_.max_alive - ranks_[rank].alive;
    for (const int c : ranks_[rank].chunks) {
      const Chunk& chunk = chunks_[c];
      const int mb = chunk.next_forward;
      const bool left = mb < options_.num_microbatches;
      if (left && places > 0 && chunk.input_at[mb] <= now) return Action{Op::kForward, c, mb};
      if (left) --places;
    }
    return std::nullopt;
  }

  std::optional<Action> ChooseWeight(int rank, double now) const {
    for (const int c : ranks_[rank].chunks) {
      const Chunk& chunk = chunks_[c];
      if (chunk.next_weight == chunk.next_backward) continue;
      const double soon = now + options_.patience * costs_[c].backward_weight;
      if (GradientComesBefore(rank, soon)) return std::nullopt;  // and calls when it does
      return Action{Op::kBackwardWeight, c, chunk.next_weight};
    }
    return std::nullopt;
  }

  bool GradientComesBefore(int rank, double when) const {
    return std::any_of(ranks_[rank].chunks.begin(), ranks_[rank].chunks.end(), [&](int c) {
      const Chunk& chunk = chunks_[c];
      return chunk.next_backward < chunk.next_forward &&
             chunk.gradient_at[chunk.next_backward] < when;
    });
  }

  void Take(int rank, const Action& action, double now) {
    Chunk& chunk = chunks_[action.chunk];
    const ChunkCost& cost = costs_[action.chunk];
    double end = now;
    if (action.op == Op::kForward) {
      end += cost.forward;
      ++chunk.next_forward;
      ++ranks_[rank].alive;
      if (action.chunk + 1 < placement_.NumChunks()) {
        Arrive(action.chunk + 1, chunks_[action.chunk + 1].input_at[action.microbatch], end);
      } else {
        chunk.gradient_at[action.microbatch] = end;
      }
    } else if (action.op == Op::kBackwardWeight) {
      end += cost.backward_weight;
      ++chunk.next_weight;
      --ranks_[rank].alive;
    } else {
      end += cost.backward_input;
      ++chunk.next_backward;
      if (action.chunk > 0) {
        Arrive(action.chunk - 1, chunks_[action.chunk - 1].gradient_at[action.microbatch], end);
      }
    }
    schedule_.actions[rank].push_back(action);
    ranks_[rank].free_at = end;
    wake_.push({end, rank});
  }

  void Arrive(int chunk, double& at, double when) {
    at = when;
    wake_.push({when, placement_.rank_of_chunk[chunk]});
  }

  const Placement& placement_;
  const std::span<const ChunkCost> costs_;
  const GreedyOptions options_;
  std::vector<Chunk> chunks_;
  std::vector<Rank> ranks_;
  Schedule schedule_;
  using Call = std::pair<double, int>;  // when to look at which rank
  std::priority_queue<Call, std::vector<Call>, std::greater<>> wake_;
};

}  // namespace

Schedule MakeGreedy(const Placement& placement, std::span<const ChunkCost> costs,
                    const GreedyOptions& options) {
  DEEPNET_CHECK_EQ(static_cast<int>(costs.size()), placement.NumChunks());
  return Greedy(placement, costs, options).Run();
}

}  // namespace deepnet
