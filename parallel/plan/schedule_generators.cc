#include "parallel/plan/schedule_generators.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "parallel/base/check.h"
#include "parallel/base/status_macros.h"

namespace deepnet {

Schedule MakeSingleStage(int num_microbatches) {
  return MakeOneForwardOneBackward({.num_microbatches = num_microbatches});
}

Schedule MakeGPipe(const PipelineShape& shape) {
  DEEPNET_CHECK_EQ(shape.virtual_pipeline_size, 1);
  Schedule schedule;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    std::vector<Action>& actions = schedule.actions.emplace_back();
    for (const Op op : {Op::kForward, Op::kBackward}) {
      for (int mb = 0; mb < shape.num_microbatches; ++mb) actions.push_back({op, rank, mb});
    }
  }
  return schedule;
}

Schedule MakeOneForwardOneBackward(const PipelineShape& shape) {
  DEEPNET_CHECK_EQ(shape.virtual_pipeline_size, 1);
  Schedule schedule;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    const int num_ahead = std::min(shape.num_ranks - rank, shape.num_microbatches);
    std::vector<Action>& actions = schedule.actions.emplace_back();
    for (int mb = 0; mb < num_ahead; ++mb) actions.push_back({Op::kForward, rank, mb});
    for (int mb = 0; mb < shape.num_microbatches; ++mb) {
      actions.push_back({Op::kBackward, rank, mb});
      const int next = num_ahead + mb;  // the slot that the backward just freed
      if (next < shape.num_microbatches) actions.push_back({Op::kForward, rank, next});
    }
  }
  return schedule;
}

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

absl::StatusOr<const ScheduleKind*> FindFor(std::string_view name, const PipelineShape& shape) {
  const ScheduleKind* kind = FindScheduleKind(name);
  if (kind == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallel.schedule: \"", std::string(name), "\" is unknown; known: ",
                     absl::StrJoin(kKinds, ", ", [](std::string* out, const ScheduleKind& k) {
                       absl::StrAppend(out, std::string(k.name));
                     })));
  }
  if (shape.num_ranks < 1 || shape.num_microbatches < 1 || shape.virtual_pipeline_size < 1) {
    return absl::InvalidArgumentError("schedule: ranks, microbatches and chunks must be positive");
  }
  if (kind->name == kSingleStage && shape.num_ranks != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parallel.schedule: \"single_stage\" is for one stage, not ", shape.num_ranks));
  }
  if (shape.virtual_pipeline_size < kind->min_virtual_pipeline_size ||
      shape.virtual_pipeline_size > kind->max_virtual_pipeline_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallel.virtual_pipeline_size: \"", std::string(name), "\" needs ",
                     kind->min_virtual_pipeline_size, ", not ", shape.virtual_pipeline_size));
  }
  return kind;
}

// Returns the most microbatches that a rank holds under a schedule that splits its backward.
int MostAlive(const PipelineShape& shape, std::string_view name) {
  const int chunks = shape.num_ranks * shape.virtual_pipeline_size;
  if (name == "zb-v" || shape.virtual_pipeline_size == 1) return chunks;
  return chunks + shape.num_ranks - 1;
}

// `best`, or a greedy schedule that takes less time. Which patience is good is a matter of luck, so
// two are tried.
Schedule FasterThan(Schedule best, const PipelineShape& shape, int max_alive,
                    const Placement& placement, std::span<const ChunkCost> costs) {
  double best_takes = Simulate(best, placement, costs)->makespan;
  for (const double patience : {0.0, 0.25}) {
    Schedule greedy = MakeGreedy(
        placement, costs,
        {.num_microbatches = shape.num_microbatches, .max_alive = max_alive, .patience = patience});
    const double takes = Simulate(greedy, placement, costs)->makespan;
    if (takes >= best_takes) continue;
    best_takes = takes;
    best = std::move(greedy);
  }
  return best;
}

}  // namespace

std::span<const ScheduleKind> ScheduleKinds() { return kKinds; }

const ScheduleKind* FindScheduleKind(std::string_view name) {
  if (name == kOldSingleStage) name = kSingleStage;
  const auto found = std::find_if(kKinds.begin(), kKinds.end(),
                                  [&](const ScheduleKind& kind) { return kind.name == name; });
  return found == kKinds.end() ? nullptr : &*found;
}

absl::StatusOr<Placement> MakeNamedPlacement(std::string_view name, const PipelineShape& shape) {
  ASSIGN_OR_RETURN(const ScheduleKind* kind, FindFor(name, shape));
  return kind->v_shaped ? MakeV(shape.num_ranks, shape.virtual_pipeline_size)
                        : MakeLooped(shape.num_ranks, shape.virtual_pipeline_size);
}

std::vector<int> ClaimedAlive(std::string_view name, const PipelineShape& shape) {
  const ScheduleKind& kind = *FindScheduleKind(name);
  std::vector<int> claims;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    int claim = shape.num_microbatches;  // gpipe
    if (kind.name == kSingleStage) claim = 1;
    if (name == "1f1b") claim = shape.num_ranks - rank;
    if (name == "interleaved") claim = NumInterleavedAhead(shape, rank) + 1;
    if (kind.splits_backward) claim = MostAlive(shape, name);
    claims.push_back(std::min(claim, shape.num_microbatches * shape.virtual_pipeline_size));
  }
  return claims;
}

absl::StatusOr<Schedule> MakeNamedSchedule(std::string_view name, const PipelineShape& shape,
                                           std::span<const ChunkCost> costs) {
  ASSIGN_OR_RETURN(const Placement placement, MakeNamedPlacement(name, shape));
  if (FindScheduleKind(name)->name == kSingleStage) return MakeSingleStage(shape.num_microbatches);
  if (name == "gpipe") return MakeGPipe(shape);
  if (name == "1f1b") return MakeOneForwardOneBackward(shape);
  if (name == "interleaved") return MakeInterleaved(shape);
  Schedule fixed = name == "zb-v" ? MakeZeroBubbleV(shape) : MakeZeroBubbleInterleaved(shape);
  if (costs.empty()) return fixed;
  return FasterThan(std::move(fixed), shape, MostAlive(shape, name), placement, costs);
}

namespace {

// The list of a rank whose chunks are visited in turn by groups of num_ranks microbatches, forwards
// from its first chunk on, backwards from its last.
class VisitingRank {
 public:
  VisitingRank(const PipelineShape& shape, int rank) : shape_(shape), rank_(rank) {}

  // Surplus microbatches of an incomplete last group included.
  int NumVisits() const {
    const int num_groups = (shape_.num_microbatches + shape_.num_ranks - 1) / shape_.num_ranks;
    return num_groups * Round();
  }
  void Add(Op op, int visit) {
    const int lap = visit % Round() / shape_.num_ranks;
    const int mb = visit / Round() * shape_.num_ranks + visit % shape_.num_ranks;
    if (mb >= shape_.num_microbatches) return;  // surplus
    const int place = op == Op::kForward ? lap : shape_.virtual_pipeline_size - 1 - lap;
    actions_.push_back({op, place * shape_.num_ranks + rank_, mb});
  }
  std::vector<Action> Take() { return std::move(actions_); }

 private:
  int Round() const {
    return shape_.num_ranks * shape_.virtual_pipeline_size;
  }  // a group, all chunks

  const PipelineShape shape_;
  const int rank_;
  std::vector<Action> actions_;
};

}  // namespace

int NumInterleavedAhead(const PipelineShape& shape, int rank) {
  const int behind = shape.num_ranks - 1 - rank;
  if (shape.virtual_pipeline_size == 1) return behind;
  return 2 * behind + (shape.virtual_pipeline_size - 1) * shape.num_ranks;
}

Schedule MakeInterleaved(const PipelineShape& shape) {
  Schedule schedule;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    VisitingRank list(shape, rank);
    const int warm_up = std::min(NumInterleavedAhead(shape, rank), list.NumVisits());
    for (int k = 0; k < list.NumVisits() + warm_up; ++k) {
      if (k < list.NumVisits()) list.Add(Op::kForward, k);
      if (k >= warm_up) list.Add(Op::kBackward, k - warm_up);
    }
    schedule.actions.push_back(list.Take());
  }
  return schedule;
}

Schedule MakeZeroBubbleInterleaved(const PipelineShape& shape) {
  Schedule schedule;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    VisitingRank list(shape, rank);
    const int num = list.NumVisits();
    const int warm_up = std::min(NumInterleavedAhead(shape, rank), num);
    for (int k = 0; k < num + warm_up; ++k) {
      if (k < num) list.Add(Op::kForward, k);
      if (k < warm_up) continue;
      list.Add(Op::kBackwardInput, k - warm_up);
      if (k - warm_up >= rank) list.Add(Op::kBackwardWeight, k - warm_up - rank);
    }
    for (int k = std::max(0, num - rank); k < num; ++k) list.Add(Op::kBackwardWeight, k);
    schedule.actions.push_back(list.Take());
  }
  return schedule;
}

// Rank r owns chunk r, met on the way down the V, and chunk 2 p - 1 - r, met on the way up.

namespace {

// The actions of one chunk, each op with microbatches 0, 1, ...; surplus ones are counted only.
class ChunkActions {
 public:
  ChunkActions(int num_microbatches, int chunk)
      : num_microbatches_(num_microbatches), chunk_(chunk) {}

  int Count(Op op) const { return next_[static_cast<size_t>(op)]; }
  void Add(Op op, std::vector<Action>& list) {
    const int mb = next_[static_cast<size_t>(op)]++;
    if (mb < num_microbatches_) list.push_back({op, chunk_, mb});
  }

 private:
  const int num_microbatches_, chunk_;
  std::array<int, 4> next_ = {};
};

}  // namespace

Schedule MakeZeroBubbleV(const PipelineShape& shape) {
  DEEPNET_CHECK_EQ(shape.virtual_pipeline_size, 2);
  const int p = shape.num_ranks;
  const int num = std::max(shape.num_microbatches, 2 * p - 1);  // surplus ones are left out
  Schedule schedule;
  for (int rank = 0; rank < p; ++rank) {
    ChunkActions down(shape.num_microbatches, rank), up(shape.num_microbatches, 2 * p - 1 - rank);
    std::vector<Action>& list = schedule.actions.emplace_back();
    for (int k = 0; k < 2 * (p - rank) - 1; ++k) down.Add(Op::kForward, list);
    for (int k = 0; k < rank; ++k) {
      up.Add(Op::kForward, list);
      down.Add(Op::kForward, list);
    }
    for (int k = 0; k < p - rank; ++k) {
      for (const Op op : {Op::kForward, Op::kBackwardInput, Op::kBackwardWeight}) up.Add(op, list);
    }
    while (up.Count(Op::kForward) < num) {
      if (down.Count(Op::kForward) < num) down.Add(Op::kForward, list);
      for (const Op op : {Op::kBackwardInput, Op::kBackwardWeight}) down.Add(op, list);
      for (const Op op : {Op::kForward, Op::kBackwardInput, Op::kBackwardWeight}) up.Add(op, list);
    }
    for (int k = 0; k < rank; ++k) {
      down.Add(Op::kBackwardInput, list);
      up.Add(Op::kBackwardInput, list);
    }
    for (int k = 0; k < p - rank; ++k) {
      for (const Op op : {Op::kBackwardInput, Op::kBackwardWeight}) down.Add(op, list);
    }
    while (up.Count(Op::kBackwardWeight) < num) up.Add(Op::kBackwardWeight, list);
    while (down.Count(Op::kBackwardWeight) < num) down.Add(Op::kBackwardWeight, list);
  }
  return schedule;
}

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
