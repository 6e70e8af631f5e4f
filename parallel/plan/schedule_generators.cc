#include "parallel/plan/schedule_generators.h"

#include <algorithm>
#include <array>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <queue>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

constexpr std::string_view kSingleStage = "single_stage";
constexpr std::string_view kOldSingleStage = "trivial";  // its name in checkpoints of version 0.1
constexpr int kAny = std::numeric_limits<int>::max();

constexpr std::array<ScheduleKind, 7> kKinds = {{
    {.name = kSingleStage},
    {.name = "gpipe"},
    {.name = "1f1b"},
    {.name = "interleaved", .max_virtual_pipeline_size = kAny},
    {.name = "zb-h1", .splits_backward = true},
    {.name = "zb-interleaved", .splits_backward = true, .max_virtual_pipeline_size = kAny},
    {.name = "zb-v",
     .v_shaped = true,
     .splits_backward = true,
     .min_virtual_pipeline_size = 2,
     .max_virtual_pipeline_size = 2},
}};

// Returns the most microbatches that a rank holds under a schedule that splits its backward.
int MostAlive(const ScheduleKind& kind, const PipelineShape& shape) {
  const int chunks = shape.num_ranks * shape.virtual_pipeline_size;
  if (kind.v_shaped || shape.virtual_pipeline_size == 1) return chunks;
  return chunks + shape.num_ranks - 1;
}

// Returns the forwards of `rank` before its first backward, less one, unless all come first.
int NumAhead(const PipelineShape& shape, int rank) {
  const int behind = shape.num_ranks - 1 - rank;
  if (shape.virtual_pipeline_size == 1) return behind;
  return 2 * behind + (shape.virtual_pipeline_size - 1) * shape.num_ranks;
}

// Groups of num_ranks microbatches visit a rank's chunks in turn, forwards from the first chunk,
// backwards from the last. A rank does some visits forward, then alternates, then drains. Where the
// backward is split, rank r puts each W off by r visits, so that ranks behind get their gradients
// sooner and the drain is filled.
Schedule MakeVisiting(const ScheduleKind& kind, const PipelineShape& shape) {
  const int ranks = shape.num_ranks, laps = shape.virtual_pipeline_size, round = ranks * laps;
  // Surplus microbatches of an incomplete last group included.
  const int num_visits = (shape.num_microbatches + ranks - 1) / ranks * round;
  Schedule schedule;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Action>& actions = schedule.actions.emplace_back();
    const auto add = [&](Op op, int visit) {
      const int lap = visit % round / ranks, mb = visit / round * ranks + visit % ranks;
      if (mb >= shape.num_microbatches) return;  // surplus
      const int place = op == Op::kForward ? lap : laps - 1 - lap;
      actions.push_back({op, place * ranks + rank, mb});
    };
    const int warm_up = kind.name == "gpipe" ? num_visits : NumAhead(shape, rank);
    for (int k = 0; k < num_visits + warm_up; ++k) {
      if (k < num_visits) add(Op::kForward, k);
      if (k < warm_up) continue;
      add(kind.splits_backward ? Op::kBackwardInput : Op::kBackward, k - warm_up);
      if (kind.splits_backward && k - warm_up >= rank) {
        add(Op::kBackwardWeight, k - warm_up - rank);
      }
    }
    if (!kind.splits_backward) continue;
    for (int k = num_visits - rank; k < num_visits; ++k) add(Op::kBackwardWeight, k);
  }
  return schedule;
}

// Rank r owns chunk r, met on the way down the V, and chunk 2 p - 1 - r, met on the way up. The
// order wants 2 p - 1 microbatches; with fewer the surplus is left out.
Schedule MakeZeroBubbleV(const PipelineShape& shape) {
  constexpr Op F = Op::kForward, I = Op::kBackwardInput, W = Op::kBackwardWeight;
  enum Way { kDown, kUp };
  const int p = shape.num_ranks;
  const int num = std::max(shape.num_microbatches, 2 * p - 1);
  Schedule schedule;
  for (int rank = 0; rank < p; ++rank) {
    std::vector<Action>& actions = schedule.actions.emplace_back();
    std::array<std::array<int, 4>, 2> done = {};  // microbatches of each way and op
    const auto count = [&](Way way, Op op) -> int& { return done[way][static_cast<size_t>(op)]; };
    const auto add = [&](Way way, std::initializer_list<Op> ops) {
      for (const Op op : ops) {
        const int mb = count(way, op)++;
        if (mb >= shape.num_microbatches) continue;  // surplus
        actions.push_back({op, way == kDown ? rank : 2 * p - 1 - rank, mb});
      }
    };
    for (int k = 0; k < 2 * (p - rank) - 1; ++k) add(kDown, {F});
    for (int k = 0; k < rank; ++k) {
      add(kUp, {F});
      add(kDown, {F});
    }
    for (int k = 0; k < p - rank; ++k) add(kUp, {F, I, W});
    while (count(kUp, F) < num) {
      if (count(kDown, F) < num) add(kDown, {F});
      add(kDown, {I, W});
      add(kUp, {F, I, W});
    }
    for (int k = 0; k < rank; ++k) {
      add(kDown, {I});
      add(kUp, {I});
    }
    for (int k = 0; k < p - rank; ++k) add(kDown, {I, W});
    while (count(kUp, W) < num) add(kUp, {W});
    while (count(kDown, W) < num) add(kDown, {W});
  }
  return schedule;
}

constexpr double kNever = std::numeric_limits<double>::infinity();

class Greedy {
 public:
  Greedy(const Placement& placement, std::span<const ChunkCost> costs, const GreedyOptions& options)
      : placement_(placement),
        costs_(costs),
        options_(options),
        chunks_(placement.NumChunks()),
        ranks_(placement.NumRanks()) {
    for (ChunkState& chunk : chunks_) {
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
      std::optional<Action> action = ChooseBackward(rank, now);
      if (!action) action = ChooseForward(rank, now);
      if (!action) action = ChooseWeight(rank, now);
      if (action) Start(rank, *action, now);
    }
    for (const ChunkState& chunk : chunks_) {
      DEEPNET_CHECK_EQ(chunk.next_weight, options_.num_microbatches);
    }
    return std::move(schedule_);
  }

 private:
  struct ChunkState {
    std::vector<double> input_at, gradient_at;  // [microbatch] when they are on this rank
    int next_forward = 0, next_backward = 0, next_weight = 0;
  };
  struct RankState {
    std::vector<int> chunks;  // from last to first
    double free_at = 0;
    int alive = 0;
  };

  std::optional<Action> ChooseBackward(int rank, double now) const {
    for (const int c : ranks_[rank].chunks) {
      const ChunkState& chunk = chunks_[c];
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
      const ChunkState& chunk = chunks_[c];
      const int mb = chunk.next_forward;
      const bool left = mb < options_.num_microbatches;
      if (left && places > 0 && chunk.input_at[mb] <= now) return Action{Op::kForward, c, mb};
      if (left) --places;
    }
    return std::nullopt;
  }

  std::optional<Action> ChooseWeight(int rank, double now) const {
    for (const int c : ranks_[rank].chunks) {
      const ChunkState& chunk = chunks_[c];
      if (chunk.next_weight == chunk.next_backward) continue;
      const double soon = now + options_.patience * costs_[c].backward_weight;
      if (GradientComesBefore(rank, soon)) return std::nullopt;  // and calls when it does
      return Action{Op::kBackwardWeight, c, chunk.next_weight};
    }
    return std::nullopt;
  }

  bool GradientComesBefore(int rank, double when) const {
    return std::any_of(ranks_[rank].chunks.begin(), ranks_[rank].chunks.end(), [&](int c) {
      const ChunkState& chunk = chunks_[c];
      return chunk.next_backward < chunk.next_forward &&
             chunk.gradient_at[chunk.next_backward] < when;
    });
  }

  void Start(int rank, const Action& action, double now) {
    ChunkState& chunk = chunks_[action.chunk];
    const double end = now + costs_[action.chunk].Seconds(action.op);
    if (action.op == Op::kForward) {
      ++chunk.next_forward;
      ++ranks_[rank].alive;
      if (action.chunk + 1 < placement_.NumChunks()) {
        Arrive(action.chunk + 1, chunks_[action.chunk + 1].input_at[action.microbatch], end);
      } else {
        chunk.gradient_at[action.microbatch] = end;
      }
    } else if (action.op == Op::kBackwardWeight) {
      ++chunk.next_weight;
      --ranks_[rank].alive;
    } else {
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
  std::vector<ChunkState> chunks_;
  std::vector<RankState> ranks_;
  Schedule schedule_;
  using Call = std::pair<double, int>;  // when to look at which rank
  std::priority_queue<Call, std::vector<Call>, std::greater<>> wake_;
};

}  // namespace

std::span<const ScheduleKind> ScheduleKinds() { return kKinds; }

const ScheduleKind* FindScheduleKind(std::string_view name) {
  if (name == kOldSingleStage) name = kSingleStage;
  const auto found = std::find_if(kKinds.begin(), kKinds.end(),
                                  [&](const ScheduleKind& kind) { return kind.name == name; });
  return found == kKinds.end() ? nullptr : &*found;
}

std::string UnknownSchedule(std::string_view name) {
  return absl::StrCat("parallel.schedule: \"", std::string(name), "\" is unknown; known: ",
                      absl::StrJoin(kKinds, ", ", [](std::string* out, const ScheduleKind& kind) {
                        absl::StrAppend(out, std::string(kind.name));
                      }));
}

absl::StatusOr<Placement> MakeNamedPlacement(std::string_view name, const PipelineShape& shape) {
  const ScheduleKind* kind = FindScheduleKind(name);
  if (kind == nullptr) return ConfigError(UnknownSchedule(name));
  const int ranks = shape.num_ranks, chunks = shape.virtual_pipeline_size;
  if (ranks < 1 || shape.num_microbatches < 1 || chunks < 1) {
    return ConfigError("schedule: ranks, microbatches and chunks must be positive");
  }
  if (kind->name == kSingleStage && ranks != 1) {
    return ConfigError("parallel.schedule: \"single_stage\" is for one stage, not ", ranks);
  }
  if (chunks < kind->min_virtual_pipeline_size || chunks > kind->max_virtual_pipeline_size) {
    return ConfigError("parallel.virtual_pipeline_size: \"", std::string(name), "\" needs ",
                       kind->min_virtual_pipeline_size, ", not ", chunks);
  }
  return kind->v_shaped ? MakeV(ranks, chunks) : MakeLooped(ranks, chunks);
}

std::vector<int> ClaimedAlive(std::string_view name, const PipelineShape& shape) {
  const ScheduleKind& kind = *FindScheduleKind(name);
  std::vector<int> claims;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    const int all = shape.num_microbatches * shape.virtual_pipeline_size;
    const int most = kind.splits_backward ? MostAlive(kind, shape) : NumAhead(shape, rank) + 1;
    claims.push_back(kind.name == "gpipe" ? all : std::min(most, all));
  }
  return claims;
}

absl::StatusOr<Schedule> MakeNamedSchedule(std::string_view name, const PipelineShape& shape,
                                           std::span<const ChunkCost> costs) {
  ASSIGN_OR_RETURN(const Placement placement, MakeNamedPlacement(name, shape));
  const ScheduleKind& kind = *FindScheduleKind(name);
  Schedule best = kind.v_shaped ? MakeZeroBubbleV(shape) : MakeVisiting(kind, shape);
  if (costs.empty() || !kind.splits_backward) return best;
  double best_takes = Simulate(best, placement, costs)->makespan;
  for (const double patience : {0.0, 0.25}) {  // which is better is a matter of luck
    Schedule greedy = MakeGreedy(placement, costs,
                                 {.num_microbatches = shape.num_microbatches,
                                  .max_alive = MostAlive(kind, shape),
                                  .patience = patience});
    const double takes = Simulate(greedy, placement, costs)->makespan;
    if (takes >= best_takes) continue;
    best_takes = takes;
    best = std::move(greedy);
  }
  return best;
}

Schedule MakeGreedy(const Placement& placement, std::span<const ChunkCost> costs,
                    const GreedyOptions& options) {
  DEEPNET_CHECK_EQ(static_cast<int>(costs.size()), placement.NumChunks());
  return Greedy(placement, costs, options).Run();
}

}  // namespace deepnet
