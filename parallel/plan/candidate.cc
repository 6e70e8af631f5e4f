// The schedule depends on costs (zero-bubble ones do), costs on what ranks compute again, and that
// on how many microbatches the schedule keeps in flight. So levels are guessed from the schedule's
// claim first and then corrected, from the second time on only upwards, until nothing changes.
// Where ranks recompute differently, layers are moved to those that recompute less, as long as that
// helps.

#include "parallel/plan/candidate.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/plan/boundary_buffers.h"
#include "parallel/plan/check_schedule.h"
#include "parallel/plan/partition.h"
#include "parallel/plan/schedule_generators.h"
#include "parallel/plan/shard.h"

namespace deepnet {
namespace {

constexpr RecomputeChoice kCheapestFirst[] = {{NONE, 1}, {SELECTIVE_FFN, 1}, {SELECTIVE_GEMM, 1}};
constexpr int kSegments[] = {1, 2, 4, 8, 16};

bool UsesParameter(const Layer& layer, int parameter) {
  return std::find(layer.parameters.begin(), layer.parameters.end(), parameter) !=
         layer.parameters.end();
}

bool IsInside(int layer, const RankUse& rank) {
  return std::any_of(rank.chunks.begin(), rank.chunks.end(), [&](const ChunkUse& chunk) {
    return layer >= chunk.layers.first && layer < chunk.layers.end;
  });
}

// Only layers outside of stacks have tied parameters.
std::vector<int> LayersOutsideStacks(const Inventory& inventory) {
  std::vector<int> layers;
  for (int l = 0; l < static_cast<int>(inventory.layers.size()); ++l) {
    if (inventory.layers[l].stack < 0) layers.push_back(l);
  }
  return layers;
}

// Bytes of the uses that layers elsewhere have of this rank's tied parameters.
int64_t ForeignBytes(const Inventory& inventory, const std::vector<int>& outside,
                     const RankUse& rank) {
  int64_t bytes = 0;
  std::vector<int> counted;
  for (const int here : outside) {
    if (!IsInside(here, rank)) continue;
    for (const int p : inventory.layers[here].parameters) {
      if (std::find(counted.begin(), counted.end(), p) != counted.end()) continue;
      counted.push_back(p);
      const auto elsewhere = std::count_if(outside.begin(), outside.end(), [&](int l) {
        return !IsInside(l, rank) && UsesParameter(inventory.layers[l], p);
      });
      bytes += elsewhere * 4 * inventory.parameters[p].NumElements();
    }
  }
  return bytes;
}

// Buffers of the tree over `folds` virtual replicas on one rank, besides the gradient itself: log2
// of them.
int PartialSums(int folds) {
  int buffers = 0;
  for (; folds > 1; folds /= 2) ++buffers;
  return buffers;
}

}  // namespace

Cuts MakeCuts(const Request& request, Placement placement, std::vector<int> ends) {
  const std::string type = request.rules.operand_bytes == 2 ? "bfloat16" : "float32";
  Cuts cuts{.placement = std::move(placement), .ends = std::move(ends)};
  cuts.messages = MakeStageMessages(*request.inventory, cuts.ends, cuts.placement, type);
  const int chunks = cuts.placement.NumChunks();
  const auto bytes = [&](int chunk) {
    if (chunk >= chunks) return int64_t{0};
    const StageMessages& crossing = cuts.messages[chunk];
    return BytesOf(crossing.forward) + BytesOf(crossing.backward);
  };
  for (int c = 0, first = 0; c < chunks; first = cuts.ends[c++]) {
    cuts.message_bytes.push_back(bytes(c) + bytes(c + 1));
    cuts.pending.push_back(
        MakePendingMatrices(*request.inventory, {first, cuts.ends[c]}, request.rules));
  }
  return cuts;
}

std::vector<RankUse> MakeRankUses(const Request& request, const Cuts& cuts,
                                  const InFlight& in_flight, int replicas) {
  const int folds = LocalVirtualReplicas(request.virtual_replicas, replicas);
  const std::vector<int> outside = LayersOutsideStacks(*request.inventory);
  std::vector<RankUse> ranks(cuts.placement.NumRanks());
  for (int c = 0, first = 0; c < cuts.placement.NumChunks(); first = cuts.ends[c++]) {
    ranks[cuts.placement.rank_of_chunk[c]].chunks.push_back(
        {.layers = {first, cuts.ends[c]},
         .slots = in_flight.slots[c],
         .message_bytes = cuts.message_bytes[c]});
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    RankUse& rank = ranks[r];
    rank.deferred_bytes = in_flight.deferred_bytes[r];
    if (!in_flight.peaks.empty()) rank.peaks = in_flight.peaks[r];
    rank.partial_sums = request.one_sum_per_rank ? 0 : PartialSums(folds);
    rank.num_replicas = replicas;
    rank.foreign_bytes = ForeignBytes(*request.inventory, outside, rank);
  }
  return ranks;
}

RecomputeChoice CheapestThatFits(const Request& request, RankUse rank) {
  if (request.recompute.has_value()) return *request.recompute;
  MemoryEstimate memory = EstimateMemory(*request.inventory, rank, request.rules);
  const auto needs = [&](const RecomputeChoice& choice) {
    rank.recompute = choice;
    UpdateRecompute(*request.inventory, rank, request.rules, memory);
    return memory.total();
  };
  for (const RecomputeChoice& choice : kCheapestFirst) {
    if (static_cast<double>(needs(choice)) <= request.memory_bytes) return choice;
  }
  RecomputeChoice least{FULL, kSegments[0]};
  int64_t least_bytes = needs(least);
  for (const int segment : kSegments) {
    const int64_t bytes = needs({FULL, segment});
    if (bytes < least_bytes) {
      least = {FULL, segment};
      least_bytes = bytes;
    }
  }
  // Where few microbatches are in flight SELECTIVE_GEMM may need less than whole segments do.
  return needs({SELECTIVE_GEMM, 1}) < least_bytes ? RecomputeChoice{SELECTIVE_GEMM, 1} : least;
}

// The schedule depends on costs (zero-bubble ones do), costs on what ranks compute again, and that
// on how many microbatches the schedule keeps in flight. So levels are guessed from the schedule's
// claim first and then corrected, from the second time on only upwards, until nothing changes.
// Where ranks recompute differently, layers are moved to those that recompute less, as long as that
// helps.

namespace {

constexpr int kMaxCorrections = 4;
constexpr int kMaxRecuts = 3;

PipelineShape PipelineShapeOf(const Request& request, const ParallelConfig& config) {
  return {
      .num_ranks = config.stages,
      .num_microbatches = MicrobatchesOf(request.global_microbatches, config.replicas, 0).Count(),
      .virtual_pipeline_size = config.virtual_pipeline_size};
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

absl::StatusOr<Placement> PlacementOf(const Request& request, const ParallelConfig& config) {
  if (request.custom.has_value()) {
    return OwnersIn(*request.custom, config.stages * config.virtual_pipeline_size);
  }
  absl::StatusOr<Placement> placement =
      MakeNamedPlacement(config.schedule, PipelineShapeOf(request, config));
  RETURN_IF_ERROR(WithExitCode(placement.status(), ExitCode::kBadConfig));
  return placement;
}

absl::StatusOr<Schedule> ScheduleOf(const Request& request, const ParallelConfig& config,
                                    std::span<const ChunkCost> costs) {
  if (!request.custom.has_value()) {
    absl::StatusOr<Schedule> named =
        MakeNamedSchedule(config.schedule, PipelineShapeOf(request, config), costs);
    RETURN_IF_ERROR(WithExitCode(named.status(), ExitCode::kBadConfig));
    return named;
  }
  const absl::Status checked = CheckSchedule(*request.custom, PipelineShapeOf(request, config));
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

// Returns what the named schedule claims to keep in flight, shared evenly among a rank's chunks.
InFlight ClaimedInFlight(const Request& request, const ParallelConfig& config, const Cuts& cuts) {
  const int chunks = cuts.placement.NumChunks();
  InFlight claimed{.slots = std::vector<int>(chunks, 1),
                   .deferred_bytes = std::vector<int64_t>(cuts.placement.NumRanks(), 0),
                   .peaks = {}};
  if (request.custom.has_value()) return claimed;
  const std::vector<int> claims = ClaimedAlive(config.schedule, PipelineShapeOf(request, config));
  const bool splits = FindScheduleKind(config.schedule)->splits_backward;
  for (int c = 0; c < chunks; ++c) {
    const int rank = cuts.placement.rank_of_chunk[c];
    claimed.slots[c] =
        (claims[rank] + config.virtual_pipeline_size - 1) / config.virtual_pipeline_size;
    if (!splits) continue;
    for (const PendingMatrices& matrices : cuts.pending[c]) {
      claimed.deferred_bytes[rank] += matrices.bytes;
    }
  }
  return claimed;
}

// Returns whether the schedule depends on the costs of the chunks.
bool FollowsCosts(const Request& request, const ParallelConfig& config) {
  return !request.custom.has_value() && FindScheduleKind(config.schedule)->splits_backward;
}

void SetCosts(const Request& request, Candidate& candidate) {
  candidate.costs =
      MakeChunkCosts(*request.inventory, candidate.cuts.ends, candidate.cuts.placement,
                     candidate.choices, request.rules, request.speeds);
}

// Takes over what ranks need now; whether anything changed.
bool Correct(const Request& request, bool only_upwards, Candidate& candidate) {
  const std::vector<RecomputeChoice> needed = ChooseForAll(request, candidate.ranks);
  bool changed = false;
  for (size_t r = 0; r < needed.size(); ++r) {
    if (needed[r] == candidate.choices[r]) continue;
    if (only_upwards && needed[r].level <= candidate.choices[r].level) continue;
    candidate.choices[r] = needed[r];
    changed = true;
  }
  return changed;
}

// Sets candidate.ranks; boundary_bytes that were counted before stay.
void SetRanks(const Request& request, const ParallelConfig& config, Candidate& candidate) {
  const std::vector<RankUse> before = std::move(candidate.ranks);
  candidate.ranks = MakeRankUses(request, candidate.cuts, candidate.in_flight, config.replicas);
  for (size_t r = 0; r < before.size(); ++r)
    candidate.ranks[r].boundary_bytes = before[r].boundary_bytes;
}

// `ends` with what every rank must recompute if it keeps as much in flight as the schedule claims.
Candidate ClaimedCandidate(const Request& request, const ParallelConfig& config,
                           const Placement& placement, std::vector<int> ends) {
  Candidate candidate;
  candidate.cuts = MakeCuts(request, placement, std::move(ends));
  candidate.in_flight = ClaimedInFlight(request, config, candidate.cuts);
  SetRanks(request, config, candidate);
  candidate.choices = ChooseForAll(request, candidate.ranks);
  for (size_t r = 0; r < candidate.ranks.size(); ++r)
    candidate.ranks[r].recompute = candidate.choices[r];
  SetCosts(request, candidate);
  return candidate;
}

bool AllAlike(const std::vector<RecomputeChoice>& choices) {
  return std::all_of(choices.begin(), choices.end(),
                     [&](const RecomputeChoice& c) { return c.level == choices.front().level; });
}

// Seconds of every layer if its rank goes on recomputing as it does in `candidate`.
std::vector<double> TotalsUnder(const Request& request, const Candidate& candidate) {
  std::vector<double> totals = LayerTotals(*request.inventory, request.speeds);
  for (size_t r = 0; r < candidate.ranks.size(); ++r) {
    for (const ChunkUse& chunk : candidate.ranks[r].chunks) {
      for (int l = chunk.layers.first; l < chunk.layers.end; ++l) {
        totals[l] += request.inventory->layers[l].recompute_flops[candidate.choices[r].level] /
                     request.speeds.flops_per_second;
      }
    }
  }
  return totals;
}

double SlowestRank(const Candidate& candidate) {
  std::vector<double> sums(candidate.ranks.size(), 0.0);
  for (size_t c = 0; c < candidate.costs.size(); ++c) {
    sums[candidate.cuts.placement.rank_of_chunk[c]] += candidate.costs[c].Total();
  }
  return *std::max_element(sums.begin(), sums.end());
}

// Bytes that the fullest rank lacks.
double Excess(const Request& request, const Candidate& candidate) {
  double excess = 0;
  for (const RankUse& rank : candidate.ranks) {
    const auto need =
        static_cast<double>(EstimateMemory(*request.inventory, rank, request.rules).total());
    excess = std::max(excess, need - request.memory_bytes);
  }
  return excess;
}

bool AllFit(const Request& request, const Candidate& candidate) {
  return Excess(request, candidate) <= 0;
}

// Microbatches of a virtual replica, or of all that a rank adds up by itself.
int MicrobatchesPerSum(const Request& request, const ParallelConfig& config) {
  const int sums = LocalVirtualReplicas(request.virtual_replicas, config.replicas);
  return std::max(1, PipelineShapeOf(request, config).num_microbatches / sums);
}

// Schedule and levels that agree with each other.
absl::Status SettleSchedule(const Request& request, const ParallelConfig& config,
                            Candidate& candidate) {
  for (int round = 0; round < kMaxCorrections; ++round) {
    ASSIGN_OR_RETURN(candidate.schedule, ScheduleOf(request, config, candidate.costs));
    candidate.in_flight = CountInFlight(candidate.schedule, candidate.cuts.pending,
                                        MicrobatchesPerSum(request, config));
    SetRanks(request, config, candidate);
    if (!Correct(request, /*only_upwards=*/round > 0, candidate)) break;
    SetCosts(request, candidate);
    if (!FollowsCosts(request, config)) break;
  }
  for (size_t r = 0; r < candidate.ranks.size(); ++r)
    candidate.ranks[r].recompute = candidate.choices[r];
  return absl::OkStatus();
}

// Simulates the schedule and counts what lies at cuts meanwhile.
absl::Status CountBoundary(const Request& request, Candidate& candidate) {
  const Cuts& cuts = candidate.cuts;
  absl::StatusOr<Simulation> simulation =
      Simulate(candidate.schedule, cuts.placement, candidate.costs, request.speeds.network);
  RETURN_IF_ERROR(WithExitCode(simulation.status(), ExitCode::kBadConfig));
  candidate.simulation = *std::move(simulation);
  const std::vector<int64_t> bytes = BoundaryBufferBytes(
      *request.inventory, cuts.ends, cuts.placement, cuts.messages, request.rules.operand_bytes,
      candidate.simulation, request.speeds.network);
  for (size_t r = 0; r < bytes.size(); ++r) candidate.ranks[r].boundary_bytes = bytes[r];
  return absl::OkStatus();
}

}  // namespace

PlacementShape ShapeName(const Request& request, const ParallelConfig& config) {
  if (request.custom.has_value()) return request.placement;
  return FindScheduleKind(config.schedule)->v_shaped ? V : LOOPED;
}

absl::Status CheckConfig(const Request& request, const ParallelConfig& config) {
  const int64_t chunks = int64_t{config.stages} * config.virtual_pipeline_size;
  if (config.stages > request.NumLayers()) {
    return BadField(absl::StrCat("parallel.pipeline_parallel_size: ", config.stages,
                                 " stages, but the model has only ", request.NumLayers(),
                                 " layers to cut between"));
  }
  if (chunks > request.NumLayers()) {
    return BadField(absl::StrCat("parallel.virtual_pipeline_size: ", config.stages, " x ",
                                 config.virtual_pipeline_size, " chunks, but the model has only ",
                                 request.NumLayers(), " layers to cut between"));
  }
  if (request.num_ranks != 0 && config.NumRanks() != request.num_ranks) {
    return BadField(absl::StrCat("parallel: pipeline_parallel_size ", config.stages,
                                 " x data_parallel_size ", config.replicas, " = ",
                                 config.NumRanks(), " ranks, but cluster has ", request.num_ranks));
  }
  RETURN_IF_ERROR(CheckReplicas(request, config));
  RETURN_IF_ERROR(PlacementOf(request, config).status());
  const PlacementShape made = ShapeName(request, config);
  if (request.placement != PLACEMENT_UNSPECIFIED && request.placement != made) {
    return BadField(absl::StrCat("parallel.placement: schedule \"", config.schedule, "\" is ",
                                 PlacementShape_Name(made), ", not ",
                                 PlacementShape_Name(request.placement)));
  }
  return absl::OkStatus();
}

absl::StatusOr<Candidate> MakeCoarseCandidate(const Request& request, const ParallelConfig& config,
                                              bool refine) {
  ASSIGN_OR_RETURN(const Placement placement, PlacementOf(request, config));
  if (!config.ends.empty()) return ClaimedCandidate(request, config, placement, config.ends);
  std::vector<double> totals = LayerTotals(*request.inventory, request.speeds);
  Candidate best =
      ClaimedCandidate(request, config, placement, PartitionForRanks(totals, placement, refine));
  for (int round = 0; round < kMaxRecuts && !AllAlike(best.choices); ++round) {
    totals = TotalsUnder(request, best);
    Candidate next =
        ClaimedCandidate(request, config, placement, PartitionForRanks(totals, placement, refine));
    if (SlowestRank(next) >= SlowestRank(best) || Excess(request, next) > Excess(request, best)) {
      break;
    }
    best = std::move(next);
  }
  return best;
}

absl::StatusOr<Candidate> MakeCandidate(const Request& request, const ParallelConfig& config) {
  ASSIGN_OR_RETURN(Candidate candidate, MakeCoarseCandidate(request, config, /*refine=*/true));
  RETURN_IF_ERROR(SettleSchedule(request, config, candidate));
  if (AllFit(request, candidate)) {
    RETURN_IF_ERROR(CountBoundary(request, candidate));
    if (AllFit(request, candidate)) return candidate;
    // The boundary buffers do not fit beside the levels that were chosen without knowing them.
    RETURN_IF_ERROR(SettleSchedule(request, config, candidate));
  }
  RETURN_IF_ERROR(CountBoundary(request, candidate));
  return candidate;
}

namespace {

// Fails for sizes that the planner does not choose by itself, because results would have other bits
// than with other sizes. A user who asks for such a size gets it.
absl::Status CheckChosenReplicas(const Request& request, const ParallelConfig& config) {
  const std::string asked = absl::StrCat("; with parallel.data_parallel_size: ", config.replicas,
                                         " it runs, with other rounding");
  if (request.global_microbatches % config.replicas != 0) {
    return BadField(absl::StrCat("data.global_microbatches: ", request.global_microbatches,
                                 " cannot be dealt evenly to data_parallel_size ", config.replicas,
                                 asked));
  }
  if (request.virtual_replicas % config.replicas != 0) {
    return BadField(absl::StrCat("optim.virtual_replicas: ", request.virtual_replicas,
                                 " is not a multiple of data_parallel_size ", config.replicas,
                                 asked));
  }
  if (request.virtual_replicas == 0 &&
      !std::has_single_bit(static_cast<unsigned>(config.replicas))) {
    return BadField(absl::StrCat("parallel.data_parallel_size: ", config.replicas,
                                 " would be optim.virtual_replicas, which is a power of two",
                                 asked));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckReplicas(const Request& request, const ParallelConfig& config) {
  const int microbatches = request.global_microbatches;
  if (microbatches < config.replicas) {
    return BadField(absl::StrCat("parallel.data_parallel_size: ", config.replicas,
                                 " replicas, but a step has only ", microbatches,
                                 " microbatches (data.global_microbatches)"));
  }
  if (request.custom.has_value() && microbatches % config.replicas != 0) {
    return BadField(absl::StrCat("parallel.schedule: is for one number of microbatches, but ",
                                 microbatches, " cannot be dealt evenly to data_parallel_size ",
                                 config.replicas));
  }
  if (request.replicas != 0) return absl::OkStatus();
  return CheckChosenReplicas(request, config);
}

namespace {

void AddChunks(const Candidate& candidate, Plan& plan) {
  for (int c = 0, first = 0; c < candidate.cuts.placement.NumChunks();
       first = candidate.cuts.ends[c++]) {
    const int rank = candidate.cuts.placement.rank_of_chunk[c];
    const RecomputeChoice& choice = candidate.choices[rank];
    const ChunkCost& cost = candidate.costs[c];
    ChunkPlan& chunk = *plan.add_chunks();
    chunk.set_rank(rank);
    chunk.set_first_layer(first);
    chunk.set_end_layer(candidate.cuts.ends[c]);
    chunk.set_recompute(choice.level);
    if (choice.level == FULL) chunk.set_recompute_segment(choice.segment);
    chunk.set_forward_seconds(cost.forward);
    chunk.set_backward_input_seconds(cost.backward_input);
    chunk.set_backward_weight_seconds(cost.backward_weight);
    chunk.set_kept_bytes(static_cast<int64_t>(cost.kept_bytes));
    chunk.set_pending_bytes(static_cast<int64_t>(cost.pending_bytes));
    chunk.set_forward_bytes(static_cast<int64_t>(cost.forward_bytes));
    chunk.set_backward_bytes(static_cast<int64_t>(cost.backward_bytes));
    chunk.set_slots(candidate.in_flight.slots[c]);
  }
}

constexpr double kTrainingPerForward = 3.0;  // operations: forward, gradients of inputs, of weights

void AddStages(const Request& request, const Candidate& candidate, Plan& plan) {
  for (int r = 0; r < plan.pipeline_parallel_size(); ++r) {
    StagePlan& stage = *plan.add_stages();
    stage.set_rank(r);
    *stage.mutable_memory() = EstimateMemory(*request.inventory, candidate.ranks[r], request.rules);
    double flops = 0;
    for (const ChunkUse& chunk : candidate.ranks[r].chunks) {
      for (int l = chunk.layers.first; l < chunk.layers.end; ++l) {
        flops += kTrainingPerForward * request.inventory->layers[l].forward_flops;
      }
    }
    stage.set_flops_per_step(flops * request.global_microbatches / plan.data_parallel_size());
    stage.set_busy_seconds(candidate.simulation.busy[r]);
    stage.set_peak_alive(PeakAlive(candidate.schedule, r));
  }
}

// Returns the slowest rank's seconds of exchanging gradients that its last backward passes do not
// hide.
double ExposedExchange(const Request& request, const Candidate& candidate, const Plan& plan) {
  double worst = 0;
  for (int r = 0; r < plan.pipeline_parallel_size(); ++r) {
    const MemoryEstimate& memory = plan.stages(r).memory();
    const Exchange exchange =
        ExchangeSeconds(memory.gradients(), memory.weights(), candidate.ranks[r].foreign_bytes,
                        plan.pipeline_parallel_size(), plan.data_parallel_size(), request.speeds);
    double hidden = 0;  // one microbatch's backward passes
    for (size_t c = 0; c < candidate.costs.size(); ++c) {
      if (candidate.cuts.placement.rank_of_chunk[c] != r) continue;
      hidden += candidate.costs[c].backward_input + candidate.costs[c].backward_weight;
    }
    worst =
        std::max(worst, std::max(0.0, exchange.reduce - hidden) + exchange.gather + exchange.tied);
  }
  return worst;
}

double SlowestUpdate(const Request& request, const Plan& plan) {
  double worst = 0;
  for (const StagePlan& stage : plan.stages()) {
    worst = std::max(
        worst, UpdateSeconds(stage.memory().weights(), plan.data_parallel_size(), request.speeds));
  }
  return worst;
}

}  // namespace

const StagePlan& Fullest(const Plan& plan) {
  return *std::max_element(plan.stages().begin(), plan.stages().end(),
                           [](const StagePlan& a, const StagePlan& b) {
                             return a.memory().total() < b.memory().total();
                           });
}

bool Fits(const Request& request, const Plan& plan) {
  return static_cast<double>(Fullest(plan).memory().total()) <= request.memory_bytes;
}

absl::StatusOr<Plan> MakeOneReplica(const Request& request, const ParallelConfig& config,
                                    Simulation* timeline) {
  RETURN_IF_ERROR(CheckConfig(request, config));
  ASSIGN_OR_RETURN(Candidate candidate, MakeCandidate(request, config));
  Plan plan;
  plan.set_pipeline_parallel_size(config.stages);
  plan.set_data_parallel_size(config.replicas);
  plan.set_schedule(request.custom.has_value() ? "custom" : config.schedule);
  if (request.custom.has_value()) plan.set_schedule_text(request.schedule);
  plan.set_global_microbatches(request.global_microbatches);
  plan.set_virtual_pipeline_size(config.virtual_pipeline_size);
  plan.set_placement(ShapeName(request, config));
  plan.set_virtual_replicas(
      request.virtual_replicas != 0
          ? request.virtual_replicas
          : DefaultVirtualReplicas(request.global_microbatches, config.replicas));
  AddChunks(candidate, plan);
  AddStages(request, candidate, plan);
  plan.set_gradient_exchange_seconds(ExposedExchange(request, candidate, plan));
  plan.set_update_seconds(SlowestUpdate(request, plan));
  plan.set_step_seconds(candidate.simulation.makespan + plan.gradient_exchange_seconds() +
                        plan.update_seconds());
  plan.set_bubble(candidate.simulation.bubble);
  plan.set_exposed_communication(candidate.simulation.exposed_communication);
  if (timeline != nullptr) *timeline = std::move(candidate.simulation);
  return plan;
}

}  // namespace deepnet
