#include "parallel/plan/planner.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/messages.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/units.h"
#include "parallel/plan/candidate.h"
#include "parallel/plan/planner_request.h"
#include "parallel/plan/planner_text.h"

namespace deepnet {
namespace {

constexpr int kMaxSimulated = 24;
constexpr int64_t kMaxActions = 800'000;
constexpr int64_t kMaxActionsOfConfig = 8'000'000;  // of one config: some GB and half a minute
constexpr int kMaxShrink = 64;
constexpr int kMaxRanks = 8192;
constexpr double kWorthSaying = 0.95;  // of a step's time
constexpr int kMaxTries = 3;           // plans made of configs that fit by their estimate
constexpr char kClosestPlanPayload[] = "deepnet.closest_plan";

// A config by its coarse estimate: does not fit, seconds, index. The most promising comes first.
using Ranked = std::tuple<bool, double, size_t>;

std::vector<Ranked> RankConfigs(const Request& request,
                                const std::vector<ParallelConfig>& configs) {
  std::vector<Ranked> order;
  for (const ParallelConfig& config : configs) {
    const CoarseEstimate estimate = EstimateCoarsely(request, config);
    order.emplace_back(!estimate.fits, estimate.seconds, order.size());
  }
  std::sort(order.begin(), order.end());
  return order;
}

int64_t NumActions(const Request& request, const ParallelConfig& config) {
  const int64_t per_chunk = int64_t{3} * request.global_microbatches / config.replicas;
  return per_chunk * config.stages * config.virtual_pipeline_size;
}

struct Found {
  std::optional<Plan> best;     // of least step_seconds among those that fit
  std::optional<Plan> closest;  // that of the smallest fullest rank among the others
};

// Simulates configs in order of their coarse estimates until kMaxSimulated are done that fit or
// their actions add up to kMaxActions (at least one is always done). Deterministic; ties go to the
// config listed first.
absl::StatusOr<Found> FindBest(const Request& request, const std::vector<ParallelConfig>& configs) {
  Found found;
  size_t best_index = 0;
  int simulated = 0;
  int64_t actions = 0;
  for (const auto& [does_not_fit, seconds, index] : RankConfigs(request, configs)) {
    const int64_t more = NumActions(request, configs[index]);
    if (more > kMaxActionsOfConfig) continue;
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
    if (!found.best.has_value() || std::tuple(plan.step_seconds(), index) <
                                       std::tuple(found.best->step_seconds(), best_index)) {
      found.best = std::move(plan);
      best_index = index;
    }
    if (++simulated >= kMaxSimulated) break;
  }
  return found;
}

std::string Gib(double bytes) { return absl::StrFormat("%.2f GiB", bytes / kGib); }

// The same run with less and less of what was asked for: recomputation, schedule, degrees, sums
// that other numbers of ranks give to the bit.
enum class Freed { kRecompute, kSchedule, kDegrees, kSums };

Request Free(Request request, Freed freed, const Plan& closest) {
  request.recompute.reset();
  request.stages = closest.pipeline_parallel_size();
  request.replicas = closest.data_parallel_size();
  request.num_ranks = request.stages * request.replicas;
  if (freed == Freed::kRecompute) return request;
  request.schedule.clear();
  request.custom.reset();
  request.virtual_pipeline_size = 0;
  request.placement = PLACEMENT_UNSPECIFIED;
  if (freed == Freed::kSchedule) return request;
  request.stages = request.replicas = 0;
  if (freed == Freed::kSums) request.virtual_replicas = 0;
  return request;
}

// The fastest by the coarse estimate that does fit; nothing if there seems to be none.
std::optional<Plan> FirstThatFits(const Request& request) {
  const absl::StatusOr<std::vector<ParallelConfig>> configs = ListConfigs(request);
  if (!configs.ok()) return std::nullopt;
  int tries = 0;
  for (const auto& [does_not_fit, seconds, index] : RankConfigs(request, *configs)) {
    if (does_not_fit || ++tries > kMaxTries) return std::nullopt;
    if (NumActions(request, (*configs)[index]) > kMaxActionsOfConfig) continue;
    absl::StatusOr<Plan> plan = MakeOneReplica(request, (*configs)[index]);
    if (plan.ok() && Fits(request, *plan)) return *std::move(plan);
  }
  return std::nullopt;
}

// The smallest power of two by which microbatches must shrink (and grow in number) so that `plan`
// fits; 0 if none up to kMaxShrink does. What belongs to parameters stays, and blocks of logits.
int ShrinkToFit(const Request& request, const Plan& plan) {
  const auto fits = [&](const StagePlan& stage, int shrink) {
    const MemoryEstimate& m = stage.memory();
    const auto shrinks =
        static_cast<double>(m.activations() + m.boundary() + m.recompute() + m.workspace());
    const double stays = static_cast<double>(m.total()) - shrinks;
    return stays + shrinks / shrink <= request.memory_bytes;
  };
  for (int shrink = 2; shrink <= kMaxShrink; shrink *= 2) {
    const auto fits_now = [&](const StagePlan& stage) { return fits(stage, shrink); };
    if (absl::c_all_of(plan.stages(), fits_now)) return shrink;
  }
  return 0;
}

std::string ConfigText(const Plan& plan) {
  std::string text = absl::StrCat("pipeline_parallel_size ", plan.pipeline_parallel_size(),
                                  ", data_parallel_size ", plan.data_parallel_size(), ", schedule ",
                                  plan.schedule());
  if (plan.virtual_pipeline_size() > 1) {
    absl::StrAppend(&text, " with virtual_pipeline_size ", plan.virtual_pipeline_size());
  }
  return absl::StrCat(text, ", recomputing ", RecomputeText(plan));
}

std::string SumsText(const Plan& plan) {
  return absl::StrCat("optim.virtual_replicas ", plan.virtual_replicas(),
                      " (from the start of a run, with other rounding), ");
}

std::string Advice(const Request& request, const Plan& closest) {
  const int ranks = closest.pipeline_parallel_size() * closest.data_parallel_size();
  for (const Freed freed : {Freed::kRecompute, Freed::kSchedule, Freed::kDegrees, Freed::kSums}) {
    if (const auto here = FirstThatFits(Free(request, freed, closest))) {
      return absl::StrCat("; what fits on ", ranks, ranks == 1 ? " rank: " : " ranks: ",
                          freed == Freed::kSums ? SumsText(*here) : "", ConfigText(*here));
    }
  }
  std::string advice;
  if (const int shrink = ShrinkToFit(request, closest); shrink != 0) {
    advice = absl::StrCat("; what fits: data.microbatch at 1/", shrink,
                          " of its size (data.global_microbatches x ", shrink, ")");
  }
  Request open = Free(request, Freed::kDegrees, closest);
  for (open.num_ranks = 2 * ranks; open.num_ranks <= kMaxRanks; open.num_ranks *= 2) {
    if (const auto plan = FirstThatFits(open)) {
      return absl::StrCat(advice, advice.empty() ? "; what fits: " : ", or ", open.num_ranks,
                          " ranks: ", ConfigText(*plan));
    }
  }
  if (!advice.empty()) return advice;
  return absl::StrCat("; nothing fits on up to ", kMaxRanks,
                      " ranks: use devices with more memory");
}

absl::Status DoesNotFit(const Request& request, const Plan& closest) {
  const StagePlan& stage = Fullest(closest);
  const auto need = static_cast<double>(stage.memory().total());
  const std::string beside =
      stage.memory().has_gpu() ? absl::StrCat(" (", GpuMemoryText(stage.memory()), ")") : "";
  const bool few = request.sentence_bytes < 0.01 * request.memory_bytes;  // not worth naming
  const std::string sentences =
      few ? ""
          : absl::StrCat(" beside ", Gib(request.sentence_bytes),
                         " for two steps' sentences (data.global_microbatches)");
  const std::string message =
      absl::StrCat("does not fit: with ", ConfigText(closest), " rank ", stage.rank(), " (",
                   LayersText(closest, *request.inventory, stage.rank()), ") needs ", Gib(need),
                   beside, " and has ", Gib(request.memory_bytes), sentences, ", ",
                   Gib(need - request.memory_bytes), " too little", Advice(request, closest));
  return DoesNotFitError(message);
}

// Repeats the stages of the first replica for the others, and says what is expected of all.
void Finish(const Request& request, const DataSpec& data, Plan& plan) {
  const int stages = plan.pipeline_parallel_size();
  for (int rank = stages; rank < stages * plan.data_parallel_size(); ++rank) {
    StagePlan copy = plan.stages(rank % stages);
    copy.set_rank(rank);
    *plan.add_stages() = std::move(copy);
  }
  if (!request.speeds.device.has_value()) return;
  *plan.mutable_prediction() = Predict(plan, *request.inventory, data, request.speeds);
}

// Returns what keeping the default's virtual replicas apart costs `plan`: memory, for which ranks
// recompute or become stages, or replicas beyond them.
std::string VirtualReplicasCost(Request request, const Plan& plan) {
  const bool tight = plan.pipeline_parallel_size() > 1 ||
                     absl::c_any_of(plan.chunks(), [](const ChunkPlan& chunk) {
                       return chunk.recompute() != NONE;
                     });
  const bool sums = Fullest(plan).memory().partial_sums() > 0;
  if (!(tight && sums) && request.num_ranks <= request.virtual_replicas) return "";
  request.virtual_replicas = 0;
  const absl::StatusOr<std::vector<ParallelConfig>> configs = ListConfigs(request);
  if (!configs.ok()) return "";
  const absl::StatusOr<Found> found = FindBest(request, *configs);
  if (!found.ok() || !found->best.has_value() ||
      found->best->step_seconds() > kWorthSaying * plan.step_seconds()) {
    return "";
  }
  return absl::StrFormat(
      "optim.virtual_replicas: left open it is %d on any number of ranks, so that they do not "
      "change the weights; a step would take %.3g s instead of %.3g with %s%s",
      plan.virtual_replicas(), found->best->step_seconds(), plan.step_seconds(),
      SumsText(*found->best), ConfigText(*found->best));
}

}  // namespace

absl::StatusOr<Plan> MakePlan(const Inventory& inventory, const PlanSettings& settings,
                              std::string* warning) {
  ASSIGN_OR_RETURN(const Request request, MakeRequest(inventory, settings));
  ASSIGN_OR_RETURN(const std::vector<ParallelConfig> configs, ListConfigs(request));
  ASSIGN_OR_RETURN(Found found, FindBest(request, configs));
  if (!found.best.has_value() && !found.closest.has_value()) {
    return ConfigError(
        "data.global_microbatches: ", request.global_microbatches, ": the schedule of a step has ",
        NumActions(request, configs.front()), " actions; at most ", kMaxActionsOfConfig,
        " are planned: take fewer microbatches, or more replicas (parallel.data_parallel_size)");
  }
  if (found.best.has_value()) {
    if (warning != nullptr && settings.optim.virtual_replicas() == 0) {
      *warning = VirtualReplicasCost(request, *found.best);
    }
    Finish(request, settings.data, *found.best);
    return *std::move(found.best);
  }
  absl::Status status = DoesNotFit(request, *found.closest);
  Finish(request, settings.data, *found.closest);
  status.SetPayload(kClosestPlanPayload, absl::Cord(ToBytes(*found.closest)));
  return status;
}

std::optional<Plan> ClosestPlan(const absl::Status& status) {
  const auto payload = status.GetPayload(kClosestPlanPayload);
  Plan plan;
  if (!payload || !plan.ParseFromString(std::string(*payload))) return std::nullopt;
  return plan;
}

ClusterSpec WithMemoryShare(ClusterSpec cluster, int64_t host_bytes) {
  if (cluster.device_memory_gib() > 0) return cluster;
  const int ranks = std::max(1, cluster.devices_per_node());
  cluster.set_device_memory_gib(static_cast<double>(host_bytes) / kGib / ranks);
  return cluster;
}

}  // namespace deepnet
