#include "parallel/plan/plan_accessors.h"

#include <utility>

#include "parallel/base/check.h"
#include "parallel/plan/candidate.h"
#include "parallel/plan/memory.h"
#include "parallel/plan/planner.h"
#include "parallel/plan/planner_request.h"
#include "parallel/plan/shard.h"

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

std::vector<StageMessages> StageMessagesOf(const Plan& plan, const Inventory& inventory,
                                           const ComputeSpec& compute) {
  const bool narrow = MakeMemoryRules(compute).operand_bytes == 2;
  return MakeStageMessages(inventory, ChunkEnds(plan), PlacementOf(plan),
                           narrow ? "bfloat16" : "float32");
}

std::vector<StageExchange> StageExchanges(const Plan& plan, const Inventory& inventory,
                                          const ClusterSpec& cluster, const ComputeSpec& compute) {
  const Request request{.inventory = &inventory,
                        .rules = MakeMemoryRules(compute),
                        .speeds = MakeSpeeds(cluster, compute)};
  const Cuts cuts = MakeCuts(request, PlacementOf(plan), ChunkEnds(plan));
  InFlight nothing;  // what is exchanged does not depend on it
  nothing.slots.assign(plan.chunks_size(), 0);
  nothing.deferred_bytes.assign(plan.pipeline_parallel_size(), 0);
  std::vector<StageExchange> exchanges;
  for (const RankUse& rank : MakeRankUses(request, cuts, nothing, plan.data_parallel_size())) {
    const MemoryEstimate& memory = plan.stages(static_cast<int>(exchanges.size())).memory();
    exchanges.push_back(
        {.seconds = ExchangeSeconds(memory.gradients(), memory.weights(), rank.foreign_bytes,
                                    plan.pipeline_parallel_size(), plan.data_parallel_size(),
                                    request.speeds),
         .update_seconds =
             UpdateSeconds(memory.weights(), plan.data_parallel_size(), request.speeds),
         .gradient_bytes = memory.gradients(),
         .weight_bytes = memory.weights(),
         .foreign_bytes = rank.foreign_bytes});
  }
  return exchanges;
}

std::vector<int64_t> GradientBytes(const Plan& plan, const Inventory& inventory) {
  std::vector<int64_t> bytes;
  for (const ChunkPlan& chunk : plan.chunks()) {
    int64_t elements = 0;
    for (int l = chunk.first_layer(); l < chunk.end_layer(); ++l) {
      for (const int p : inventory.layers[l].parameters) {
        elements += inventory.parameters[p].NumElements();
      }
    }
    bytes.push_back(4 * elements);
  }
  return bytes;
}

PipelineShape PipelineShapeOf(const Plan& plan, int replica) {
  return {
      .num_ranks = plan.pipeline_parallel_size(),
      .num_microbatches =
          MicrobatchesOf(plan.global_microbatches(), plan.data_parallel_size(), replica).Count(),
      .virtual_pipeline_size = plan.virtual_pipeline_size()};
}

Simulation SimulatePlan(const Plan& plan, const ClusterSpec& cluster, const ComputeSpec& compute) {
  absl::StatusOr<Simulation> simulation =
      Simulate(MakeSchedule(plan), PlacementOf(plan), ChunkCosts(plan),
               MakeSpeeds(cluster, compute).network);
  DEEPNET_CHECK(simulation.ok()) << simulation.status();
  return *std::move(simulation);
}

}  // namespace deepnet
