#include "parallel/plan/schedule_generators.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "parallel/base/check.h"
#include "parallel/base/status_macros.h"
#include "parallel/plan/greedy_schedule.h"
#include "parallel/plan/interleaved_schedule.h"
#include "parallel/plan/zero_bubble_v.h"

namespace deepnet {
namespace {

constexpr int kAny = std::numeric_limits<int>::max();

constexpr std::array<ScheduleKind, 7> kKinds = {{
    {.name = "trivial"},
    {.name = "gpipe"},
    {.name = "1f1b"},
    {.name = "interleaved", .max_chunks_per_rank = kAny},
    {.name = "zb-h1", .splits_backward = true},
    {.name = "zb-interleaved", .splits_backward = true, .max_chunks_per_rank = kAny},
    {.name = "zb-v",
     .v_shaped = true,
     .splits_backward = true,
     .min_chunks_per_rank = 2,
     .max_chunks_per_rank = 2},
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
  if (shape.num_ranks < 1 || shape.num_microbatches < 1 || shape.chunks_per_rank < 1) {
    return absl::InvalidArgumentError("schedule: ranks, microbatches and chunks must be positive");
  }
  if (name == "trivial" && shape.num_ranks != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallel.schedule: \"trivial\" is for one stage, not ", shape.num_ranks));
  }
  if (shape.chunks_per_rank < kind->min_chunks_per_rank ||
      shape.chunks_per_rank > kind->max_chunks_per_rank) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallel.chunks_per_rank: \"", std::string(name), "\" needs ",
                     kind->min_chunks_per_rank, ", not ", shape.chunks_per_rank));
  }
  return kind;
}

// What a rank holds at most under a schedule that splits its backward.
int MostAlive(const PipelineShape& shape, std::string_view name) {
  const int chunks = shape.num_ranks * shape.chunks_per_rank;
  if (name == "zb-v" || shape.chunks_per_rank == 1) return chunks;
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
  const auto found = std::find_if(kKinds.begin(), kKinds.end(),
                                  [&](const ScheduleKind& kind) { return kind.name == name; });
  return found == kKinds.end() ? nullptr : &*found;
}

absl::StatusOr<Placement> MakeNamedPlacement(std::string_view name, const PipelineShape& shape) {
  ASSIGN_OR_RETURN(const ScheduleKind* kind, FindFor(name, shape));
  return kind->v_shaped ? MakeV(shape.num_ranks, shape.chunks_per_rank)
                        : MakeLooped(shape.num_ranks, shape.chunks_per_rank);
}

std::vector<int> ClaimedAlive(std::string_view name, const PipelineShape& shape) {
  std::vector<int> claims;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    int claim = shape.num_microbatches;  // gpipe
    if (name == "trivial") claim = 1;
    if (name == "1f1b") claim = shape.num_ranks - rank;
    if (name == "interleaved") claim = NumInterleavedAhead(shape, rank) + 1;
    if (FindScheduleKind(name)->splits_backward) claim = MostAlive(shape, name);
    claims.push_back(std::min(claim, shape.num_microbatches * shape.chunks_per_rank));
  }
  return claims;
}

absl::StatusOr<Schedule> MakeNamedSchedule(std::string_view name, const PipelineShape& shape,
                                           std::span<const ChunkCost> costs) {
  ASSIGN_OR_RETURN(const Placement placement, MakeNamedPlacement(name, shape));
  if (name == "trivial") return MakeTrivial(shape.num_microbatches);
  if (name == "gpipe") return MakeGPipe(shape);
  if (name == "1f1b") return MakeOneForwardOneBackward(shape);
  if (name == "interleaved") return MakeInterleaved(shape);
  Schedule fixed = name == "zb-v" ? MakeZeroBubbleV(shape) : MakeZeroBubbleInterleaved(shape);
  if (costs.empty()) return fixed;
  return FasterThan(std::move(fixed), shape, MostAlive(shape, name), placement, costs);
}

}  // namespace deepnet
