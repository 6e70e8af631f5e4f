// The schedule depends on costs (zero-bubble ones do), costs on what ranks compute again, and that
// on how many microbatches the schedule keeps in flight. So levels are guessed from the schedule's
// claim first and then corrected, from the second time on only upwards, until nothing changes.
// Where ranks recompute differently, layers move to those that recompute less, while that helps.
#include "parallel/plan/candidate.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/plan/boundary_bytes.h"
#include "parallel/plan/check_schedule.h"
#include "parallel/plan/inventory.h"
#include "parallel/plan/memory.h"
#include "parallel/plan/partition.h"
#include "parallel/plan/schedule_generators.h"
#include "parallel/plan/shard.h"
#include "parallel/plan/simulator.h"

namespace deepnet {
namespace {

constexpr RecomputeChoice kCheapestFirst[] = {{NONE, 1}, {SELECTIVE_FFN, 1}, {SELECTIVE_GEMM, 1}};
// Where few microbatches are in flight SELECTIVE_GEMM may need less than whole segments do.
constexpr RecomputeChoice kLeastMemory[] = {{FULL, 1}, {FULL, 2},  {FULL, 4},
                                            {FULL, 8}, {FULL, 16}, {SELECTIVE_GEMM, 1}};
constexpr int kMaxCorrections = 4;
constexpr int kMaxRecuts = 3;
constexpr double kTrainingPerForward = 3.0;  // operations: forward, gradients of inputs, of weights
constexpr int kLanesOfAStage = 6;  // to and from the ranks before, behind, and with the same table

// A config on its way to a Plan.
class Candidate {
 public:
  // Chunks end at `ends`; every rank recomputes what it must if it keeps as much in flight as
  // schedules of this name claim. What lies at cuts is not counted yet. Borrows the first two.
  Candidate(const Request& request, const ParallelConfig& config, const Placement& placement,
            std::vector<int> ends)
      : request_(&request),
        config_(&config),
        placement_(placement),
        ends_(std::move(ends)),
        messages_(MakeStageMessages(inventory(), ends_, placement, request.rules.OperandType())),
        ranks_(placement.NumRanks()) {
    for (int c = 0, first = 0; c < placement_.NumChunks(); first = ends_[c++]) {
      const LayerSpan layers{first, ends_[c]};
      RankOf(c).chunks.push_back(
          {.layers = layers, .message_bytes = MessageBytes(c) + MessageBytes(c + 1)});
      pending_.push_back(MakePendingMatrices(inventory(), layers, request.rules));
    }
    for (RankUse& rank : ranks_) {
      // A tree over virtual replicas needs as many buffers as it has levels.
      if (!request.one_sum_per_rank) rank.partial_sums = std::bit_width(NumSums()) - 1;
      rank.num_replicas = config.replicas;
      rank.microbatches = PipelineShapeOf(request, config).num_microbatches;
      rank.lanes = config.stages > 1 ? kLanesOfAStage : 0;
    }
    SetInFlight(ClaimedInFlight());
    for (RankUse& rank : ranks_) rank.recompute = CheapestThatFits(rank);
    SetCosts();
  }

  const std::vector<RankUse>& ranks() const { return ranks_; }

  // Makes a schedule and what each rank must recompute under it, and simulates it. Fails if a
  // schedule that a user wrote does not pass CheckSchedule.
  absl::Status Settle() {
    RETURN_IF_ERROR(SettleSchedule());
    if (Excess() <= 0) {
      RETURN_IF_ERROR(CountBoundary());
      if (Excess() <= 0) return absl::OkStatus();
      // The boundary buffers do not fit beside the levels that were chosen without knowing them.
      RETURN_IF_ERROR(SettleSchedule());
    }
    return CountBoundary();
  }

  bool RecomputesAlike() const {
    return absl::c_all_of(ranks_, [&](const RankUse& rank) {
      return rank.recompute.level == ranks_.front().recompute.level;
    });
  }

  // Seconds of the rank that computes longest per microbatch.
  double SlowestRank() const {
    std::vector<double> sums(ranks_.size(), 0.0);
    for (size_t c = 0; c < costs_.size(); ++c) {
      sums[placement_.rank_of_chunk[c]] += costs_[c].Total();
    }
    return std::ranges::max(sums);
  }

  double LargestChunk() const {
    return std::ranges::max_element(costs_, {}, &ChunkCost::Total)->Total();
  }

  // Bytes that the fullest rank lacks.
  double Excess() const {
    double excess = 0;
    for (const RankUse& rank : ranks_) {
      const auto need = static_cast<double>(MemoryOf(rank).total());
      excess = std::max(excess, need - request_->memory_bytes);
    }
    return excess;
  }

  MemoryEstimate MemoryOf(const RankUse& rank) const {
    return EstimateMemory(inventory(), rank, request_->rules);
  }

  StageExchange ExchangeOf(const RankUse& rank, const MemoryEstimate& memory) const {
    return MakeStageExchange(memory, ForeignBytes(inventory(), rank), config_->stages,
                             config_->replicas, request_->speeds);
  }

  // Adds chunks, stages and the figures of the simulated step.
  void AddTo(Plan& plan) const {
    AddChunks(plan);
    double exposed = 0, update = 0;  // seconds of the slowest ranks
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const StagePlan& stage = AddStage(static_cast<int>(r), plan);
      const StageExchange exchange = ExchangeOf(ranks_[r], stage.memory());
      double hidden = 0;  // behind one microbatch's backward passes
      for (size_t c = 0; c < costs_.size(); ++c) {
        if (&RankOf(c) == &ranks_[r])
          hidden += costs_[c].backward_input + costs_[c].backward_weight;
      }
      exposed = std::max(exposed, std::max(0.0, exchange.reduce_seconds - hidden) +
                                      exchange.gather_seconds + exchange.tied_seconds);
      update = std::max(update, exchange.update_seconds);
    }
    plan.set_gradient_exchange_seconds(exposed);
    plan.set_update_seconds(update);
    plan.set_step_seconds(simulation_.makespan + exposed + update);
    plan.set_bubble(simulation_.bubble);
    plan.set_exposed_communication(simulation_.exposed_communication);
  }

 private:
  const Inventory& inventory() const { return *request_->inventory; }
  RankUse& RankOf(size_t chunk) { return ranks_[placement_.rank_of_chunk[chunk]]; }
  const RankUse& RankOf(size_t chunk) const { return ranks_[placement_.rank_of_chunk[chunk]]; }

  // Bytes of one microbatch over the cut before `chunk`; 0 behind the last.
  int64_t MessageBytes(size_t chunk) const {
    if (chunk == messages_.size()) return 0;
    return BytesOf(messages_[chunk].forward) + BytesOf(messages_[chunk].backward);
  }

  // Virtual replicas that a rank adds up by itself.
  unsigned NumSums() const {
    return LocalVirtualReplicas(request_->virtual_replicas, config_->replicas);
  }

  // Returns true if the schedule splits its backward passes, and so depends on the chunks' costs.
  bool FollowsCosts() const {
    return !request_->custom.has_value() && FindScheduleKind(config_->schedule)->splits_backward;
  }

  // Returns what the named schedule claims to keep in flight, shared evenly among a rank's chunks.
  PeakInFlight ClaimedInFlight() const {
    PeakInFlight claimed{.slots = std::vector<int>(ends_.size(), 1),
                         .deferred_bytes = std::vector<int64_t>(ranks_.size(), 0),
                         .peaks = std::vector<std::vector<std::vector<int>>>(ranks_.size())};
    if (request_->custom.has_value()) return claimed;
    const bool splits = FollowsCosts();
    const int chunks = config_->virtual_pipeline_size;  // of a rank
    const std::vector<int> claims =
        ClaimedAlive(config_->schedule, PipelineShapeOf(*request_, *config_));
    for (size_t c = 0; c < ends_.size(); ++c) {
      const int rank = placement_.rank_of_chunk[c];
      claimed.slots[c] = (claims[rank] + chunks - 1) / chunks;
      if (splits) claimed.deferred_bytes[rank] += PendingBytes(pending_[c]);
    }
    return claimed;
  }

  void SetInFlight(PeakInFlight in_flight) {
    slots_ = std::move(in_flight.slots);
    for (size_t r = 0; r < ranks_.size(); ++r) {
      ranks_[r].deferred_bytes = in_flight.deferred_bytes[r];
      ranks_[r].peaks = std::move(in_flight.peaks[r]);
    }
    std::vector<size_t> place(ranks_.size(), 0);
    for (size_t c = 0; c < slots_.size(); ++c) {
      RankOf(c).chunks[place[placement_.rank_of_chunk[c]]++].slots = slots_[c];
    }
  }

  // Returns the cheapest with which `rank` fits, or else the one that needs least; or the
  // request's.
  RecomputeChoice CheapestThatFits(RankUse rank) const {
    if (request_->recompute.has_value()) return *request_->recompute;
    MemoryEstimate memory = MemoryOf(rank);
    const auto needs = [&](const RecomputeChoice& choice) {
      rank.recompute = choice;
      UpdateRecompute(inventory(), rank, request_->rules, memory);
      return memory.total();
    };
    for (const RecomputeChoice& choice : kCheapestFirst) {
      if (static_cast<double>(needs(choice)) <= request_->memory_bytes) return choice;
    }
    return *std::ranges::min_element(kLeastMemory, {}, needs);
  }

  void SetCosts() {
    costs_.assign(ends_.size(), {});
    for (int c = 0, first = 0; c < placement_.NumChunks(); first = ends_[c++]) {
      const LayerSpan layers{first, ends_[c]};
      ChunkCost& cost = costs_[c];
      for (int l = layers.first; l < layers.end; ++l) {
        const LayerSeconds& layer = request_->seconds[l];
        cost.forward += layer.forward;
        cost.backward_input += layer.backward_input + layer.recompute[RankOf(c).recompute.level];
        cost.backward_weight += layer.backward_weight;
      }
      cost.forward_bytes = static_cast<double>(BytesOf(messages_[c].forward));
      cost.backward_bytes = static_cast<double>(BytesOf(messages_[c].backward));
    }
  }

  absl::StatusOr<Schedule> MakeSchedule() const {
    const PipelineShape shape = PipelineShapeOf(*request_, *config_);
    if (!request_->custom.has_value()) return MakeNamedSchedule(config_->schedule, shape, costs_);
    const absl::Status checked = CheckSchedule(*request_->custom, shape);
    if (!checked.ok()) return ConfigError("parallel.schedule: ", checked.message());
    return *request_->custom;
  }

  // Takes over what ranks need now; whether anything changed.
  bool Correct(bool only_upwards) {
    bool changed = false;
    for (RankUse& rank : ranks_) {
      const RecomputeChoice needed = CheapestThatFits(rank);
      if (needed == rank.recompute) continue;
      if (only_upwards && needed.level <= rank.recompute.level) continue;
      rank.recompute = needed;
      changed = true;
    }
    return changed;
  }

  // Schedule and levels that agree with each other.
  absl::Status SettleSchedule() {
    const int microbatches = PipelineShapeOf(*request_, *config_).num_microbatches;
    const int per_sum = std::max(1, microbatches / static_cast<int>(NumSums()));
    for (int round = 0; round < kMaxCorrections; ++round) {
      ASSIGN_OR_RETURN(schedule_, MakeSchedule());
      SetInFlight(CountInFlight(schedule_, pending_, per_sum));
      if (!Correct(/*only_upwards=*/round > 0)) break;
      SetCosts();
      if (!FollowsCosts()) break;
    }
    return absl::OkStatus();
  }

  // Simulates the schedule and counts what lies at cuts meanwhile.
  absl::Status CountBoundary() {
    const Network& network = request_->speeds.network;
    ASSIGN_OR_RETURN(simulation_, Simulate(schedule_, placement_, costs_, network));
    const std::vector<int64_t> bytes = CountBoundaryBytes(
        {inventory(), ends_, placement_, messages_, request_->rules.operand_bytes},
        {schedule_, simulation_, network});
    for (size_t r = 0; r < bytes.size(); ++r) ranks_[r].boundary_bytes = bytes[r];
    return absl::OkStatus();
  }

  void AddChunks(Plan& plan) const {
    for (int c = 0, first = 0; c < placement_.NumChunks(); first = ends_[c++]) {
      const RecomputeChoice& choice = RankOf(c).recompute;
      const ChunkCost& cost = costs_[c];
      ChunkPlan& chunk = *plan.add_chunks();
      chunk.set_rank(placement_.rank_of_chunk[c]);
      chunk.set_first_layer(first);
      chunk.set_end_layer(ends_[c]);
      chunk.set_recompute(choice.level);
      if (choice.level == FULL) chunk.set_recompute_segment(choice.segment);
      chunk.set_forward_seconds(cost.forward);
      chunk.set_backward_input_seconds(cost.backward_input);
      chunk.set_backward_weight_seconds(cost.backward_weight);
      chunk.set_kept_bytes(KeptBytes(inventory(), {first, ends_[c]}, choice, request_->rules));
      chunk.set_pending_bytes(PendingBytes(pending_[c]));
      chunk.set_forward_bytes(BytesOf(messages_[c].forward));
      chunk.set_backward_bytes(BytesOf(messages_[c].backward));
      chunk.set_slots(slots_[c]);
    }
  }

  const StagePlan& AddStage(int rank, Plan& plan) const {
    StagePlan& stage = *plan.add_stages();
    stage.set_rank(rank);
    *stage.mutable_memory() = MemoryOf(ranks_[rank]);
    double flops = 0;
    for (const ChunkUse& chunk : ranks_[rank].chunks) {
      for (int l = chunk.layers.first; l < chunk.layers.end; ++l) {
        flops += kTrainingPerForward * inventory().layers[l].forward_flops;
      }
    }
    stage.set_flops_per_step(flops * request_->global_microbatches / config_->replicas);
    stage.set_busy_seconds(simulation_.busy[rank]);
    stage.set_peak_alive(PeakAlive(schedule_, rank));
    return stage;
  }

  const Request* request_;
  const ParallelConfig* config_;
  Placement placement_;
  std::vector<int> ends_;                 // of chunks
  std::vector<StageMessages> messages_;   // [chunk]
  std::vector<PendingMatrices> pending_;  // [chunk]
  std::vector<int> slots_;                // [chunk] PeakInFlight::slots
  std::vector<RankUse> ranks_;            // with what they recompute
  std::vector<ChunkCost> costs_;          // [chunk]
  Schedule schedule_;
  Simulation simulation_;
};

// Returns the ends of chunks cut by the seconds of layers, which recompute as they do on `ranks`.
std::vector<int> CutByCost(const Request& request, const Placement& placement,
                           const std::vector<RankUse>& ranks, bool refine) {
  std::vector<double> totals;
  for (const LayerSeconds& layer : request.seconds) {
    totals.push_back(layer.forward + layer.backward_input + layer.backward_weight);
  }
  for (const RankUse& rank : ranks) {
    for (const ChunkUse& chunk : rank.chunks) {
      for (int l = chunk.layers.first; l < chunk.layers.end; ++l) {
        totals[l] += request.seconds[l].recompute[rank.recompute.level];
      }
    }
  }
  return PartitionForRanks(totals, placement, refine);
}

absl::StatusOr<Candidate> MakeCandidate(const Request& request, const ParallelConfig& config,
                                        bool refine) {
  ASSIGN_OR_RETURN(const Placement placement, PlacementOf(request, config));
  if (!config.ends.empty()) return Candidate(request, config, placement, config.ends);
  Candidate best(request, config, placement, CutByCost(request, placement, {}, refine));
  for (int round = 0; round < kMaxRecuts && !best.RecomputesAlike(); ++round) {
    Candidate next(request, config, placement, CutByCost(request, placement, best.ranks(), refine));
    if (next.SlowestRank() >= best.SlowestRank() || next.Excess() > best.Excess()) break;
    best = std::move(next);
  }
  return best;
}

}  // namespace

CoarseEstimate EstimateCoarsely(const Request& request, const ParallelConfig& config) {
  const absl::StatusOr<Candidate> candidate = MakeCandidate(request, config, /*refine=*/false);
  if (!candidate.ok()) return {};
  CoarseEstimate estimate{.fits = true};
  for (const RankUse& rank : candidate->ranks()) {
    const MemoryEstimate memory = candidate->MemoryOf(rank);
    if (static_cast<double>(memory.total()) > request.memory_bytes) estimate.fits = false;
    const StageExchange exchange = candidate->ExchangeOf(rank, memory);
    estimate.seconds = std::max(estimate.seconds, exchange.gather_seconds + exchange.tied_seconds +
                                                      exchange.update_seconds);
  }
  const int microbatches = PipelineShapeOf(request, config).num_microbatches;
  const ScheduleKind* kind = FindScheduleKind(config.schedule);
  // The part that a rank waits of the largest chunk's F, B and W for each other stage.
  const double waiting = kind != nullptr && kind->splits_backward ? 0.35 : 1.0;
  estimate.seconds += candidate->SlowestRank() * microbatches +
                      (config.stages - 1) * candidate->LargestChunk() * waiting;
  return estimate;
}

const StagePlan& Fullest(const Plan& plan) {
  return *std::ranges::max_element(plan.stages(), {},
                                   [](const StagePlan& stage) { return stage.memory().total(); });
}

bool Fits(const Request& request, const Plan& plan) {
  return static_cast<double>(Fullest(plan).memory().total()) <= request.memory_bytes;
}

absl::StatusOr<Plan> MakeOneReplica(const Request& request, const ParallelConfig& config) {
  RETURN_IF_ERROR(CheckConfig(request, config));
  ASSIGN_OR_RETURN(Candidate candidate, MakeCandidate(request, config, /*refine=*/true));
  RETURN_IF_ERROR(candidate.Settle());
  Plan plan;
  plan.set_pipeline_parallel_size(config.stages);
  plan.set_data_parallel_size(config.replicas);
  plan.set_schedule(config.schedule);
  if (request.custom.has_value()) plan.set_schedule_text(request.schedule);
  plan.set_global_microbatches(request.global_microbatches);
  plan.set_virtual_pipeline_size(config.virtual_pipeline_size);
  plan.set_placement(PlacementShapeOf(request, config));
  plan.set_virtual_replicas(request.virtual_replicas != 0 ? request.virtual_replicas
                                                          : config.replicas);
  candidate.AddTo(plan);
  return plan;
}

}  // namespace deepnet
