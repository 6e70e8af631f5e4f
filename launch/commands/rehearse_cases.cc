#include "launch/commands/rehearse_cases.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/status_macros.h"
#include "parallel/plan/check_schedule.h"
#include "parallel/plan/plan_accessors.h"
#include "parallel/plan/planner.h"
#include "parallel/plan/planner_cost.h"
#include "parallel/plan/planner_text.h"

namespace deepnet {
namespace {

// 0 is unlimited: nothing of the model is allocated here.
absl::StatusOr<Plan> PlanOf(const RunSpec& run, const ParallelSpec& parallel,
                            const Inventory& inventory) {
  ClusterSpec cluster = run.cluster();
  cluster.set_device_memory_gib(0);
  return MakePlan(inventory, run.data(), run.optim(), run.compute(), cluster, parallel,
                  run.instruments());
}

absl::StatusOr<RehearsalCase> CaseOf(const Plan& plan, const RunSpec& run,
                                     const Inventory& inventory) {
  RehearsalCase made{.name = plan.schedule(),
                     .microbatches = PipelineShapeOf(plan).num_microbatches,
                     .microbatches_text =
                         MicrobatchesText(plan.microbatches_per_step(), plan.data_parallel_size()),
                     .planned_step_seconds = plan.step_seconds()};
  if (plan.chunks_per_rank() > 1) absl::StrAppend(&made.name, ", v=", plan.chunks_per_rank());
  made.job.placement = PlacementOf(plan);
  made.job.costs = ChunkCosts(plan);
  made.job.crossings = StageMessagesOf(plan, inventory, run.compute());
  made.job.network = MakeSpeeds(run.cluster(), run.compute()).network;
  made.job.exchange = {.replicas = plan.data_parallel_size(),
                       .stages = StageExchanges(plan, inventory, run.cluster(), run.compute()),
                       .gradient_bytes = GradientBytes(plan, inventory)};
  const int replicas = plan.data_parallel_size();
  const bool alike = plan.microbatches_per_step() % replicas == 0;
  for (int replica = 0; replica < (alike ? 1 : replicas); ++replica) {
    ASSIGN_OR_RETURN(made.job.schedules.emplace_back(),
                     WithTransfers(MakeSchedule(plan, replica), made.job.placement));
  }
  return made;
}

}  // namespace

absl::StatusOr<RehearsalCase> PlannedCase(const RunSpec& run, const Inventory& inventory) {
  ASSIGN_OR_RETURN(const Plan plan, PlanOf(run, run.parallel(), inventory));
  return CaseOf(plan, run, inventory);
}

absl::StatusOr<std::vector<RehearsalCase>> ComparedCases(const RunSpec& run,
                                                         const Inventory& inventory) {
  ASSIGN_OR_RETURN(const Plan chosen, PlanOf(run, run.parallel(), inventory));
  ParallelSpec parallel = run.parallel();
  parallel.set_pipeline_parallel_size(chosen.pipeline_parallel_size());
  parallel.set_data_parallel_size(chosen.data_parallel_size());
  parallel.clear_placement();
  struct Way {
    const char* schedule;
    int chunks_per_rank;
  };
  std::vector<RehearsalCase> cases;
  for (const Way& way : {Way{"1f1b", 1}, Way{"interleaved", 2}, Way{"interleaved", 4},
                         Way{"interleaved", 8}, Way{"zb-h1", 1}, Way{"zb-v", 2}}) {
    const int chunks = way.chunks_per_rank * chosen.pipeline_parallel_size();
    if (chunks > static_cast<int>(inventory.layers.size())) continue;
    parallel.set_schedule(way.schedule);
    parallel.set_chunks_per_rank(way.chunks_per_rank);
    ASSIGN_OR_RETURN(const Plan plan, PlanOf(run, parallel, inventory));
    ASSIGN_OR_RETURN(RehearsalCase made, CaseOf(plan, run, inventory));
    cases.push_back(std::move(made));
  }
  return cases;
}

}  // namespace deepnet
