#include "parallel/plan/planner.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/units.h"
#include "parallel/plan/candidate.h"
#include "parallel/plan/plan_accessors.h"
#include "parallel/plan/planner_request.h"
#include "parallel/plan/planner_search.h"
#include "parallel/plan/planner_text.h"
#include "parallel/plan/schedule_generators.h"
#include "parallel/plan/schedule_text.h"

namespace deepnet {
namespace {

constexpr int kMaxShrink = 64;
constexpr int kMaxRanks = 8192;
constexpr int kMaxTries = 3;  // configs that look as if they fit, worked out to be sure

std::string Gib(double bytes) { return absl::StrFormat("%.2f GiB", bytes / kGib); }

// The same run with less and less of what was asked for: recomputation, schedule, degrees.
enum class Freed { kRecompute, kSchedule, kDegrees };

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
  if (freed == Freed::kDegrees) request.stages = request.replicas = 0;
  return request;
}

// The fastest by the coarse estimate that does fit; nothing if there seems to be none.
std::optional<Plan> FirstThatFits(const Request& request) {
  const absl::StatusOr<std::vector<ParallelConfig>> configs = ListConfigs(request);
  if (!configs.ok()) return std::nullopt;
  std::vector<std::pair<double, size_t>> fitting;
  for (size_t i = 0; i < configs->size(); ++i) {
    const CoarseEstimate estimate = EstimateCoarsely(request, (*configs)[i]);
    if (estimate.fits) fitting.emplace_back(estimate.seconds, i);
  }
  std::sort(fitting.begin(), fitting.end());
  if (fitting.size() > kMaxTries) fitting.resize(kMaxTries);
  for (const auto& [seconds, i] : fitting) {
    absl::StatusOr<Plan> plan = MakeOneReplica(request, (*configs)[i]);
    if (plan.ok() && Fits(request, *plan)) return *std::move(plan);
  }
  return std::nullopt;
}

// The smallest power of two by which microbatches must shrink (and grow in number) so that `plan`
// fits; 0 if none up to kMaxShrink does. What belongs to parameters stays, all else shrinks; of
// logits there are blocks, whose size is taken as it is.
int ShrinkToFit(const Request& request, const Plan& plan) {
  const auto fits = [&](const StagePlan& stage, int shrink) {
    const MemoryEstimate& m = stage.memory();
    const auto shrinks =
        static_cast<double>(m.activations() + m.boundary() + m.recompute() + m.workspace());
    const double stays = static_cast<double>(m.total()) - shrinks;
    return stays + shrinks / shrink <= request.memory_bytes;
  };
  for (int shrink = 2; shrink <= kMaxShrink; shrink *= 2) {
    if (std::all_of(plan.stages().begin(), plan.stages().end(),
                    [&](const StagePlan& stage) { return fits(stage, shrink); })) {
      return shrink;
    }
  }
  return 0;
}

std::string Describe(const Plan& plan) {
  std::string text = absl::StrCat("pipeline_parallel_size ", plan.pipeline_parallel_size(),
                                  ", data_parallel_size ", plan.data_parallel_size(), ", schedule ",
                                  plan.schedule());
  if (plan.virtual_pipeline_size() > 1) {
    absl::StrAppend(&text, " with virtual_pipeline_size ", plan.virtual_pipeline_size());
  }
  return absl::StrCat(text, ", recomputing ", RecomputeText(plan));
}

std::string Advice(const Request& request, const Plan& closest) {
  const int ranks = closest.pipeline_parallel_size() * closest.data_parallel_size();
  for (const Freed freed : {Freed::kRecompute, Freed::kSchedule, Freed::kDegrees}) {
    if (const auto here = FirstThatFits(Free(request, freed, closest))) {
      return absl::StrCat("; what fits on ", ranks,
                          ranks == 1 ? " rank: " : " ranks: ", Describe(*here));
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
                          " ranks: ", Describe(*plan));
    }
  }
  if (!advice.empty()) return advice;
  return absl::StrCat("; nothing fits on up to ", kMaxRanks,
                      " ranks: use devices with more memory");
}

}  // namespace

absl::Status DoesNotFit(const Request& request, const Plan& closest) {
  const StagePlan& stage = Fullest(closest);
  const auto need = static_cast<double>(stage.memory().total());
  const std::string message =
      absl::StrCat("does not fit: with ", Describe(closest), " rank ", stage.rank(), " (",
                   LayersText(closest, *request.inventory, stage.rank()), ") needs ", Gib(need),
                   " and has ", Gib(request.memory_bytes), ", ", Gib(need - request.memory_bytes),
                   " too little", Advice(request, closest));
  return WithExitCode(absl::ResourceExhaustedError(message), ExitCode::kDoesNotFit);
}

namespace {

constexpr char kClosestPlanPayload[] = "deepnet.closest_plan";

// Repeats the stages of the first replica for the others.
void AddReplicas(Plan& plan) {
  const int stages = plan.pipeline_parallel_size();
  for (int rank = stages; rank < stages * plan.data_parallel_size(); ++rank) {
    StagePlan copy = plan.stages(rank % stages);
    copy.set_rank(rank);
    *plan.add_stages() = std::move(copy);
  }
}

}  // namespace

absl::StatusOr<Plan> MakePlan(const Inventory& inventory, const DataSpec& data,
                              const OptimSpec& optim, const ComputeSpec& compute,
                              const ClusterSpec& cluster, const ParallelSpec& parallel,
                              const InstrumentsSpec& instruments) {
  ASSIGN_OR_RETURN(const Request request,
                   MakeRequest(inventory, data, optim, compute, cluster, parallel, instruments));
  ASSIGN_OR_RETURN(const std::vector<ParallelConfig> configs, ListConfigs(request));
  ASSIGN_OR_RETURN(Found found, FindBest(request, configs));
  if (found.best.has_value()) {
    AddReplicas(*found.best);
    return *std::move(found.best);
  }
  absl::Status status = DoesNotFit(request, *found.closest);
  AddReplicas(*found.closest);
  status.SetPayload(kClosestPlanPayload, absl::Cord(found.closest->SerializeAsString()));
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

Schedule MakeSchedule(const Plan& plan, int replica) {
  absl::StatusOr<Schedule> schedule =
      plan.schedule_text().empty()
          ? MakeNamedSchedule(plan.schedule(), PipelineShapeOf(plan, replica), ChunkCosts(plan))
          : ParseSchedule(plan.schedule_text());
  DEEPNET_CHECK(schedule.ok()) << schedule.status();
  return *std::move(schedule);
}

std::string ToText(const Plan& plan, const Inventory& inventory) {
  return PlanText(plan, inventory);
}

}  // namespace deepnet
