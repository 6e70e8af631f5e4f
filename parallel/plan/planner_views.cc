#include "parallel/plan/planner_views.h"

#include <utility>

#include "parallel/base/check.h"
#include "parallel/plan/planner.h"
#include "parallel/plan/planner_costs.h"

namespace deepnet {

Placement PlacementOf(const Plan& plan) {
  Placement placement;
  for (const ChunkPlan& chunk : plan.chunks()) placement.rank_of_chunk.push_back(chunk.rank());
  return placement;
}

std::vector<int> ChunkEnds(const Plan& plan) {
  std::vector<int> ends;
  for (const ChunkPlan& chunk : plan.chunks()) ends.push_back(chunk.end_layer());
  return ends;
}

std::vector<ChunkCost> ChunkCosts(const Plan& plan) {
  std::vector<ChunkCost> costs;
  for (const ChunkPlan& chunk : plan.chunks()) {
    costs.push_back({.forward = chunk.forward_seconds(),
                     .backward_input = chunk.backward_input_seconds(),
                     .backward_weight = chunk.backward_weight_seconds(),
                     .kept_bytes = static_cast<double>(chunk.kept_bytes()),
                     .pending_bytes = static_cast<double>(chunk.pending_bytes()),
                     .forward_bytes = static_cast<double>(chunk.forward_bytes()),
                     .backward_bytes = static_cast<double>(chunk.backward_bytes())});
  }
  return costs;
}

PipelineShape ShapeOf(const Plan& plan) {
  return {.num_ranks = plan.pipeline_parallel_size(),
          .num_microbatches = plan.microbatches_per_step() / plan.data_parallel_size(),
          .chunks_per_rank = plan.chunks_per_rank()};
}

Simulation SimulatePlan(const Plan& plan, const ClusterSpec& cluster, const ComputeSpec& compute) {
  absl::StatusOr<Simulation> simulation =
      Simulate(MakeSchedule(plan), PlacementOf(plan), ChunkCosts(plan),
               MakeSpeeds(cluster, compute).network);
  DEEPNET_CHECK(simulation.ok()) << simulation.status();
  return *std::move(simulation);
}

}  // namespace deepnet
