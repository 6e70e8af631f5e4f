// The schedule depends on costs (zero-bubble ones do), costs on what ranks compute again, and that
// on how many microbatches the schedule keeps in flight. So levels are guessed from the schedule's
// claim first and then corrected, from the second time on only upwards, until nothing changes.
// Where ranks recompute differently, layers are moved to those that recompute less, as long as that
// helps.

#include "parallel/plan/planner_draft.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/plan/boundary_buffers.h"
#include "parallel/plan/check_schedule.h"
#include "parallel/plan/dealing.h"
#include "parallel/plan/partition.h"
#include "parallel/plan/planner_replicas.h"
#include "parallel/plan/schedule_generators.h"

namespace deepnet {
namespace {

constexpr int kMostCorrections = 4;
constexpr int kMostRecuts = 3;

PipelineShape ShapeOf(const Request& request, const Layout& layout) {
  return {
      .num_ranks = layout.stages,
      .num_microbatches = MicrobatchesOf(request.microbatches_per_step, layout.replicas, 0).Count(),
      .chunks_per_rank = layout.chunks_per_rank};
}

// Owners of chunks in a schedule that a user wrote.
Placement OwnersIn(const Schedule& schedule, int num_chunks) {
  Placement placement{std::vector<int>(num_chunks, 0)};
  for (int rank = 0; rank < static_cast<int>(schedule.actions.size()); ++rank) {
    for (const Action& action : schedule.actions[rank]) {
      if (action.chunk < num_chunks) placement.rank_of_chunk[action.chunk] = rank;
    }
  }
  return placement;
}

absl::StatusOr<Placement> PlacementOf(const Request& request, const Layout& layout) {
  if (request.custom.has_value()) {
    return OwnersIn(*request.custom, layout.stages * layout.chunks_per_rank);
  }
  absl::StatusOr<Placement> placement =
      MakeNamedPlacement(layout.schedule, ShapeOf(request, layout));
  RETURN_IF_ERROR(WithExitCode(placement.status(), ExitCode::kBadConfig));
  return placement;
}

absl::StatusOr<Schedule> ScheduleOf(const Request& request, const Layout& layout,
                                    std::span<const ChunkCost> costs) {
  if (!request.custom.has_value()) {
    absl::StatusOr<Schedule> named =
        MakeNamedSchedule(layout.schedule, ShapeOf(request, layout), costs);
    RETURN_IF_ERROR(WithExitCode(named.status(), ExitCode::kBadConfig));
    return named;
  }
  const absl::Status checked = CheckSchedule(*request.custom, ShapeOf(request, layout));
  if (!checked.ok()) return BadField(absl::StrCat("parallel.schedule: ", checked.message()));
  return *request.custom;
}

std::vector<RecomputeChoice> ChooseForAll(const Request& request,
                                          const std::vector<RankUse>& ranks) {
  std::vector<RecomputeChoice> choices;
  choices.reserve(ranks.size());
  for (const RankUse& rank : ranks) choices.push_back(CheapestThatFits(request, rank));
  return choices;
}

// What the named schedule claims to keep in flight, dealt evenly to a rank's chunks.
InFlight ClaimedInFlight(const Request& request, const Layout& layout, const Cuts& cuts) {
  const int chunks = cuts.placement.NumChunks();
  InFlight claimed{.slots = std::vector<int>(chunks, 1),
                   .deferred_bytes = std::vector<int64_t>(cuts.placement.NumRanks(), 0),
                   .moments = {}};
  if (request.custom.has_value()) return claimed;
  const std::vector<int> claims = ClaimedAlive(layout.schedule, ShapeOf(request, layout));
  const bool splits = FindScheduleKind(layout.schedule)->splits_backward;
  for (int c = 0; c < chunks; ++c) {
    const int rank = cuts.placement.rank_of_chunk[c];
    claimed.slots[c] = (claims[rank] + layout.chunks_per_rank - 1) / layout.chunks_per_rank;
    if (!splits) continue;
    for (const PendingMatrices& matrices : cuts.pending[c]) {
      claimed.deferred_bytes[rank] += matrices.bytes;
    }
  }
  return claimed;
}

// Whether other costs would make another schedule.
bool FollowsCosts(const Request& request, const Layout& layout) {
  return !request.custom.has_value() && FindScheduleKind(layout.schedule)->splits_backward;
}

void SetCosts(const Request& request, Draft& draft) {
  draft.costs = MakeChunkCosts(*request.inventory, draft.cuts.ends, draft.cuts.placement,
                               draft.choices, request.rules, request.speeds);
}

// Takes over what ranks need now; whether anything changed.
bool Correct(const Request& request, bool only_upwards, Draft& draft) {
  const std::vector<RecomputeChoice> needed = ChooseForAll(request, draft.ranks);
  bool changed = false;
  for (size_t r = 0; r < needed.size(); ++r) {
    if (needed[r] == draft.choices[r]) continue;
    if (only_upwards && needed[r].level <= draft.choices[r].level) continue;
    draft.choices[r] = needed[r];
    changed = true;
  }
  return changed;
}

// What is counted at cuts stays, if it is known.
void SetRanks(const Request& request, const Layout& layout, Draft& draft) {
  const std::vector<RankUse> before = std::move(draft.ranks);
  draft.ranks = MakeRankUses(request, draft.cuts, draft.in_flight, layout.replicas);
  for (size_t r = 0; r < before.size(); ++r) draft.ranks[r].flow_bytes = before[r].flow_bytes;
}

// `ends` with what every rank must recompute if it keeps as much in flight as the schedule claims.
Draft DraftOf(const Request& request, const Layout& layout, const Placement& placement,
              std::vector<int> ends) {
  Draft draft;
  draft.cuts = MakeCuts(request, placement, std::move(ends));
  draft.in_flight = ClaimedInFlight(request, layout, draft.cuts);
  SetRanks(request, layout, draft);
  draft.choices = ChooseForAll(request, draft.ranks);
  for (size_t r = 0; r < draft.ranks.size(); ++r) draft.ranks[r].recompute = draft.choices[r];
  SetCosts(request, draft);
  return draft;
}

bool AllAlike(const std::vector<RecomputeChoice>& choices) {
  return std::all_of(choices.begin(), choices.end(),
                     [&](const RecomputeChoice& c) { return c.level == choices.front().level; });
}

// Seconds of every layer if its rank goes on recomputing as it does in `draft`.
std::vector<double> TotalsUnder(const Request& request, const Draft& draft) {
  std::vector<double> totals = LayerTotals(*request.inventory, request.speeds);
  for (size_t r = 0; r < draft.ranks.size(); ++r) {
    for (const ChunkUse& chunk : draft.ranks[r].chunks) {
      for (int l = chunk.layers.first; l < chunk.layers.end; ++l) {
        totals[l] += RecomputeFlops(*request.inventory, request.inventory->layers[l],
                                    draft.choices[r].level) /
                     request.speeds.flops_per_second;
      }
    }
  }
  return totals;
}

double SlowestRank(const Draft& draft) {
  std::vector<double> sums(draft.ranks.size(), 0.0);
  for (size_t c = 0; c < draft.costs.size(); ++c) {
    sums[draft.cuts.placement.rank_of_chunk[c]] += draft.costs[c].Total();
  }
  return *std::max_element(sums.begin(), sums.end());
}

// Bytes that the fullest rank lacks.
double Excess(const Request& request, const Draft& draft) {
  double excess = 0;
  for (const RankUse& rank : draft.ranks) {
    const auto need =
        static_cast<double>(EstimateMemory(*request.inventory, rank, request.rules).total());
    excess = std::max(excess, need - request.memory_bytes);
  }
  return excess;
}

bool AllFit(const Request& request, const Draft& draft) { return Excess(request, draft) <= 0; }

// Microbatches of a virtual replica, or of all that a rank adds up by itself.
int MicrobatchesPerSum(const Request& request, const Layout& layout) {
  const int sums = LocalVirtualReplicas(request.virtual_replicas, layout.replicas);
  return std::max(1, ShapeOf(request, layout).num_microbatches / sums);
}

// Schedule and levels that agree with each other.
absl::Status SettleSchedule(const Request& request, const Layout& layout, Draft& draft) {
  for (int round = 0; round < kMostCorrections; ++round) {
    ASSIGN_OR_RETURN(draft.schedule, ScheduleOf(request, layout, draft.costs));
    draft.in_flight =
        CountInFlight(draft.schedule, draft.cuts.pending, MicrobatchesPerSum(request, layout));
    SetRanks(request, layout, draft);
    if (!Correct(request, /*only_upwards=*/round > 0, draft)) break;
    SetCosts(request, draft);
    if (!FollowsCosts(request, layout)) break;
  }
  for (size_t r = 0; r < draft.ranks.size(); ++r) draft.ranks[r].recompute = draft.choices[r];
  return absl::OkStatus();
}

// Simulates the schedule and counts what lies at cuts meanwhile.
absl::Status CountFlow(const Request& request, Draft& draft) {
  const Cuts& cuts = draft.cuts;
  absl::StatusOr<Simulation> simulation =
      Simulate(draft.schedule, cuts.placement, draft.costs, request.speeds.network);
  RETURN_IF_ERROR(WithExitCode(simulation.status(), ExitCode::kBadConfig));
  draft.simulation = *std::move(simulation);
  const std::vector<int64_t> bytes =
      BoundaryBufferBytes(*request.inventory, cuts.ends, cuts.placement, cuts.crossings,
                          request.rules.operand_bytes, draft.simulation, request.speeds.network);
  for (size_t r = 0; r < bytes.size(); ++r) draft.ranks[r].flow_bytes = bytes[r];
  return absl::OkStatus();
}

}  // namespace

PlacementShape ShapeName(const Request& request, const Layout& layout) {
  if (request.custom.has_value()) return request.placement;
  return FindScheduleKind(layout.schedule)->v_shaped ? V : LOOPED;
}

absl::Status CheckLayout(const Request& request, const Layout& layout) {
  const int64_t chunks = int64_t{layout.stages} * layout.chunks_per_rank;
  if (layout.stages > request.NumLayers()) {
    return BadField(absl::StrCat("parallel.pipeline_parallel_size: ", layout.stages,
                                 " stages, but the model has only ", request.NumLayers(),
                                 " layers to cut between"));
  }
  if (chunks > request.NumLayers()) {
    return BadField(absl::StrCat("parallel.chunks_per_rank: ", layout.stages, " x ",
                                 layout.chunks_per_rank, " chunks, but the model has only ",
                                 request.NumLayers(), " layers to cut between"));
  }
  if (request.num_ranks != 0 && layout.NumRanks() != request.num_ranks) {
    return BadField(absl::StrCat("parallel: pipeline_parallel_size ", layout.stages,
                                 " x data_parallel_size ", layout.replicas, " = ",
                                 layout.NumRanks(), " ranks, but cluster has ", request.num_ranks));
  }
  RETURN_IF_ERROR(CheckReplicas(request, layout));
  RETURN_IF_ERROR(PlacementOf(request, layout).status());
  const PlacementShape made = ShapeName(request, layout);
  if (request.placement != PLACEMENT_UNSPECIFIED && request.placement != made) {
    return BadField(absl::StrCat("parallel.placement: schedule \"", layout.schedule, "\" is ",
                                 PlacementShape_Name(made), ", not ",
                                 PlacementShape_Name(request.placement)));
  }
  return absl::OkStatus();
}

absl::StatusOr<Draft> MakeCoarseDraft(const Request& request, const Layout& layout, bool refine) {
  ASSIGN_OR_RETURN(const Placement placement, PlacementOf(request, layout));
  if (!layout.ends.empty()) return DraftOf(request, layout, placement, layout.ends);
  std::vector<double> totals = LayerTotals(*request.inventory, request.speeds);
  Draft best = DraftOf(request, layout, placement, PartitionForRanks(totals, placement, refine));
  for (int round = 0; round < kMostRecuts && !AllAlike(best.choices); ++round) {
    totals = TotalsUnder(request, best);
    Draft next = DraftOf(request, layout, placement, PartitionForRanks(totals, placement, refine));
    if (SlowestRank(next) >= SlowestRank(best) || Excess(request, next) > Excess(request, best)) {
      break;
    }
    best = std::move(next);
  }
  return best;
}

absl::StatusOr<Draft> MakeDraft(const Request& request, const Layout& layout) {
  ASSIGN_OR_RETURN(Draft draft, MakeCoarseDraft(request, layout, /*refine=*/true));
  RETURN_IF_ERROR(SettleSchedule(request, layout, draft));
  if (AllFit(request, draft)) {
    RETURN_IF_ERROR(CountFlow(request, draft));
    if (AllFit(request, draft)) return draft;
    // What lies at cuts is too much for the levels that were chosen without knowing it.
    RETURN_IF_ERROR(SettleSchedule(request, layout, draft));
  }
  RETURN_IF_ERROR(CountFlow(request, draft));
  return draft;
}

}  // namespace deepnet
