#include "parallel/plan/planner_layout.h"

#include <algorithm>
#include <utility>

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/plan/dealing.h"

namespace deepnet {
namespace {

void AddChunks(const Draft& draft, Plan& plan) {
  for (int c = 0, first = 0; c < draft.cuts.placement.NumChunks(); first = draft.cuts.ends[c++]) {
    const int rank = draft.cuts.placement.rank_of_chunk[c];
    const RecomputeChoice& choice = draft.choices[rank];
    const ChunkCost& cost = draft.costs[c];
    ChunkPlan& chunk = *plan.add_chunks();
    chunk.set_rank(rank);
    chunk.set_first_layer(first);
    chunk.set_end_layer(draft.cuts.ends[c]);
    chunk.set_recompute(choice.level);
    if (choice.level == LAYER) chunk.set_recompute_segment(choice.segment);
    chunk.set_forward_seconds(cost.forward);
    chunk.set_backward_input_seconds(cost.backward_input);
    chunk.set_backward_weight_seconds(cost.backward_weight);
    chunk.set_kept_bytes(static_cast<int64_t>(cost.kept_bytes));
    chunk.set_pending_bytes(static_cast<int64_t>(cost.pending_bytes));
    chunk.set_forward_bytes(static_cast<int64_t>(cost.forward_bytes));
    chunk.set_backward_bytes(static_cast<int64_t>(cost.backward_bytes));
    chunk.set_slots(draft.in_flight.slots[c]);
  }
}

constexpr double kTrainingPerForward = 3.0;  // operations: forward, gradients of inputs, of weights

void AddStages(const Request& request, const Draft& draft, Plan& plan) {
  for (int r = 0; r < plan.pipeline_parallel_size(); ++r) {
    StagePlan& stage = *plan.add_stages();
    stage.set_rank(r);
    *stage.mutable_memory() = EstimateMemory(*request.inventory, draft.ranks[r], request.rules);
    double flops = 0;
    for (const ChunkUse& chunk : draft.ranks[r].chunks) {
      for (int l = chunk.layers.first; l < chunk.layers.end; ++l) {
        flops += kTrainingPerForward * request.inventory->layers[l].forward_flops;
      }
    }
    stage.set_flops_per_step(flops * request.microbatches_per_step / plan.data_parallel_size());
    stage.set_busy_seconds(draft.simulation.busy[r]);
    stage.set_peak_alive(PeakAlive(draft.schedule, r));
  }
}

// What is left of exchanging gradients once the last backward passes have hidden what they can: the
// slowest rank's.
double ExposedExchange(const Request& request, const Draft& draft, const Plan& plan) {
  double worst = 0;
  for (int r = 0; r < plan.pipeline_parallel_size(); ++r) {
    const MemoryEstimate& memory = plan.stages(r).memory();
    const Exchange exchange =
        ExchangeSeconds(memory.gradients(), memory.weights(), draft.ranks[r].foreign_bytes,
                        plan.pipeline_parallel_size(), plan.data_parallel_size(), request.speeds);
    double hidden = 0;  // one microbatch's backward passes
    for (size_t c = 0; c < draft.costs.size(); ++c) {
      if (draft.cuts.placement.rank_of_chunk[c] != r) continue;
      hidden += draft.costs[c].backward_input + draft.costs[c].backward_weight;
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

absl::StatusOr<Plan> LayOut(const Request& request, const Layout& layout, Simulation* timeline) {
  RETURN_IF_ERROR(CheckLayout(request, layout));
  ASSIGN_OR_RETURN(Draft draft, MakeDraft(request, layout));
  Plan plan;
  plan.set_pipeline_parallel_size(layout.stages);
  plan.set_data_parallel_size(layout.replicas);
  plan.set_schedule(request.custom.has_value() ? "custom" : layout.schedule);
  if (request.custom.has_value()) plan.set_schedule_text(request.schedule);
  plan.set_microbatches_per_step(request.microbatches_per_step);
  plan.set_chunks_per_rank(layout.chunks_per_rank);
  plan.set_placement(ShapeName(request, layout));
  plan.set_virtual_replicas(
      request.virtual_replicas != 0
          ? request.virtual_replicas
          : DefaultVirtualReplicas(request.microbatches_per_step, layout.replicas));
  AddChunks(draft, plan);
  AddStages(request, draft, plan);
  plan.set_gradient_exchange_seconds(ExposedExchange(request, draft, plan));
  plan.set_update_seconds(SlowestUpdate(request, plan));
  plan.set_step_seconds(draft.simulation.makespan + plan.gradient_exchange_seconds() +
                        plan.update_seconds());
  plan.set_bubble(draft.simulation.bubble);
  plan.set_exposed_communication(draft.simulation.exposed_communication);
  if (timeline != nullptr) *timeline = std::move(draft.simulation);
  return plan;
}

}  // namespace deepnet
