// Seconds of a step are known only from simulating it, which takes time proportional to its
// actions; so all configs are ranked by a formula first and the best few are simulated.

#include "parallel/plan/planner_search.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/status_macros.h"
#include "parallel/plan/candidate.h"
#include "parallel/plan/schedule_generators.h"
#include "parallel/plan/shard.h"

namespace deepnet {
namespace {

struct Degrees {
  int stages = 1, replicas = 1;
};

struct Kind {
  std::string schedule;
  int virtual_pipeline_size = 1;
};

// Shape of a schedule that a user wrote.
struct CustomShape {
  int ranks = 0, virtual_pipeline_size = 1;
};

absl::StatusOr<CustomShape> WrittenShape(const Schedule& schedule) {
  CustomShape shape{.ranks = static_cast<int>(schedule.actions.size())};
  int chunks = 1;
  for (const std::vector<Action>& actions : schedule.actions) {
    for (const Action& action : actions) chunks = std::max(chunks, action.chunk + 1);
  }
  if (shape.ranks == 0 || chunks % shape.ranks != 0) {
    return BadField(absl::StrCat("parallel.schedule: ", chunks, " chunks cannot be dealt to ",
                                 shape.ranks, " ranks evenly"));
  }
  shape.virtual_pipeline_size = chunks / shape.ranks;
  return shape;
}

// Stages x replicas that the request allows.
std::vector<Degrees> ListDegrees(const Request& request) {
  const int ranks = request.num_ranks;
  if (request.stages != 0 || ranks == 0) {
    const int stages = std::max(1, request.stages);
    const int replicas = request.replicas != 0 ? request.replicas : std::max(1, ranks / stages);
    return {{stages, replicas}};
  }
  std::vector<Degrees> degrees;
  for (int stages = 1; stages <= ranks; ++stages) {
    if (ranks % stages != 0) continue;
    degrees.push_back({stages, request.replicas != 0 ? request.replicas : ranks / stages});
  }
  return degrees;
}

// Worth trying: with more chunks a rank waits less and sends more.
std::vector<int> ChunkCounts(const ScheduleKind& kind) {
  if (kind.min_virtual_pipeline_size == kind.max_virtual_pipeline_size)
    return {kind.min_virtual_pipeline_size};
  return {2, 4, 8};
}

std::vector<Kind> ListKinds(const Request& request, int stages) {
  const int asked = request.virtual_pipeline_size;
  if (!request.schedule.empty()) {
    const ScheduleKind& kind = *FindScheduleKind(request.schedule);
    if (asked != 0) return {{request.schedule, asked}};
    if (stages == 1) return {{request.schedule, kind.min_virtual_pipeline_size}};
    std::vector<Kind> kinds;
    for (const int chunks : ChunkCounts(kind)) kinds.push_back({request.schedule, chunks});
    return kinds;
  }
  if (stages == 1 && asked <= 1) return {{"single_stage", 1}};
  std::vector<Kind> kinds;
  for (const ScheduleKind& kind : ScheduleKinds()) {
    if (kind.name == "single_stage" || kind.name == "gpipe") continue;  // never better than 1f1b
    for (const int chunks : ChunkCounts(kind)) {
      if (asked == 0 || chunks == asked) kinds.push_back({std::string(kind.name), chunks});
    }
  }
  if (kinds.empty()) kinds.push_back({"interleaved", asked});
  return kinds;
}

// Slots of the largest chunk's F, B and W that a rank waits, over p - 1 of them.
double WaitingFactor(const std::string& schedule) {
  const ScheduleKind* kind = FindScheduleKind(schedule);
  return kind != nullptr && kind->splits_backward ? 0.35 : 1.0;
}

// Seconds of the slowest rank per microbatch, recomputation included, and of the largest chunk.
struct CoarseTimes {
  double rank = 0, chunk = 0;
};

CoarseTimes TimesOf(const Candidate& candidate) {
  CoarseTimes times;
  std::vector<double> sums(candidate.cuts.placement.NumRanks(), 0.0);
  for (size_t c = 0; c < candidate.costs.size(); ++c) {
    times.chunk = std::max(times.chunk, candidate.costs[c].Total());
    sums[candidate.cuts.placement.rank_of_chunk[c]] += candidate.costs[c].Total();
  }
  times.rank = *std::max_element(sums.begin(), sums.end());
  return times;
}

int64_t NumActions(const Request& request, const ParallelConfig& config) {
  const int64_t per_chunk = int64_t{3} * request.global_microbatches / config.replicas;
  return per_chunk * config.stages * config.virtual_pipeline_size;
}

}  // namespace

absl::StatusOr<std::vector<ParallelConfig>> ListConfigs(const Request& request) {
  std::vector<ParallelConfig> configs;
  absl::Status first_error;
  const auto add = [&](ParallelConfig config) {
    const absl::Status status = CheckConfig(request, config);
    if (status.ok()) configs.push_back(std::move(config));
    first_error.Update(status);
  };
  CustomShape custom;
  if (request.custom.has_value()) {
    ASSIGN_OR_RETURN(custom, WrittenShape(*request.custom));
  }
  for (const Degrees& degrees : ListDegrees(request)) {
    if (request.custom.has_value()) {
      if (request.stages != 0 && request.stages != custom.ranks) {
        return BadField(absl::StrCat("parallel.schedule: is for ", custom.ranks,
                                     " ranks, parallel.pipeline_parallel_size is ",
                                     request.stages));
      }
      if (degrees.stages != custom.ranks) continue;
      add({degrees.stages, degrees.replicas, "custom", custom.virtual_pipeline_size});
      continue;
    }
    for (const Kind& kind : ListKinds(request, degrees.stages)) {
      add({degrees.stages, degrees.replicas, kind.schedule, kind.virtual_pipeline_size});
    }
  }
  if (configs.empty() && first_error.ok()) {
    return BadField(absl::StrCat("parallel.schedule: is for ", custom.ranks,
                                 " ranks, which cluster does not have"));
  }
  if (configs.empty()) return first_error;
  return configs;
}

CoarseEstimate EstimateCoarsely(const Request& request, const ParallelConfig& config) {
  const absl::StatusOr<Candidate> candidate =
      MakeCoarseCandidate(request, config, /*refine=*/false);
  if (!candidate.ok()) return {};
  CoarseEstimate estimate{.fits = true};
  for (const RankUse& rank : candidate->ranks) {
    const MemoryEstimate memory = EstimateMemory(*request.inventory, rank, request.rules);
    if (static_cast<double>(memory.total()) > request.memory_bytes) estimate.fits = false;
    const Exchange exchange =
        ExchangeSeconds(memory.gradients(), memory.weights(), rank.foreign_bytes, config.stages,
                        config.replicas, request.speeds);
    const double update = UpdateSeconds(memory.weights(), config.replicas, request.speeds);
    estimate.seconds = std::max(estimate.seconds, exchange.gather + exchange.tied + update);
  }
  const CoarseTimes times = TimesOf(*candidate);
  const int microbatches = MicrobatchesOf(request.global_microbatches, config.replicas, 0).Count();
  estimate.seconds += times.rank * microbatches +
                      (config.stages - 1) * times.chunk * WaitingFactor(config.schedule);
  return estimate;
}

absl::StatusOr<Found> FindBest(const Request& request, const std::vector<ParallelConfig>& configs) {
  std::vector<std::tuple<bool, double, size_t>> order;  // does not fit, seconds, index
  for (size_t i = 0; i < configs.size(); ++i) {
    const CoarseEstimate estimate = EstimateCoarsely(request, configs[i]);
    order.emplace_back(!estimate.fits, estimate.seconds, i);
  }
  std::sort(order.begin(), order.end());

  Found found;
  size_t best_index = 0;
  int simulated = 0;
  int64_t actions = 0;
  for (const auto& [does_not_fit, seconds, index] : order) {
    const int64_t more = NumActions(request, configs[index]);
    if ((found.best.has_value() || found.closest.has_value()) && actions + more > kMaxActions) {
      continue;  // a smaller one may still be affordable
    }
    ASSIGN_OR_RETURN(Plan plan, MakeOneReplica(request, configs[index]));
    actions += more;
    if (!Fits(request, plan)) {
      if (!found.closest.has_value() ||
          Fullest(plan).memory().total() < Fullest(*found.closest).memory().total()) {
        found.closest = std::move(plan);
      }
      continue;
    }
    const bool better =
        !found.best.has_value() ||
        std::tuple(plan.step_seconds(), index) < std::tuple(found.best->step_seconds(), best_index);
    if (better) {
      found.best = std::move(plan);
      best_index = index;
    }
    if (++simulated >= kMaxSimulated) break;
  }
  return found;
}

}  // namespace deepnet
