#include "parallel/plan/planner.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/plan/planner_advice.h"
#include "parallel/plan/planner_request.h"
#include "parallel/plan/planner_search.h"
#include "parallel/plan/planner_text.h"
#include "parallel/plan/planner_views.h"
#include "parallel/plan/schedule_generators.h"
#include "parallel/plan/schedule_text.h"

namespace deepnet {
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
  ASSIGN_OR_RETURN(const std::vector<Layout> layouts, ListLayouts(request));
  ASSIGN_OR_RETURN(Found found, FindBest(request, layouts));
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

absl::Status ReadScheduleFile(const std::string& root, ParallelSpec* parallel) {
  const std::string& name = parallel->schedule();
  if (name.empty() || name.find(':') != std::string::npos || FindScheduleKind(name) != nullptr) {
    return absl::OkStatus();
  }
  const std::filesystem::path path = std::filesystem::path(root) / name;
  if (!std::filesystem::is_regular_file(path)) return absl::OkStatus();  // MakePlan names it
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) {
    return BadField(absl::StrCat("parallel.schedule: cannot read ", path.string()));
  }
  parallel->set_schedule(text.str());
  return absl::OkStatus();
}

Schedule MakeSchedule(const Plan& plan, int replica) {
  absl::StatusOr<Schedule> schedule =
      plan.schedule_text().empty()
          ? MakeNamedSchedule(plan.schedule(), ShapeOf(plan, replica), ChunkCosts(plan))
          : ParseSchedule(plan.schedule_text());
  DEEPNET_CHECK(schedule.ok()) << schedule.status();
  return *std::move(schedule);
}

std::string ToText(const Plan& plan, const Inventory& inventory) {
  return PlanText(plan, inventory);
}

}  // namespace deepnet
