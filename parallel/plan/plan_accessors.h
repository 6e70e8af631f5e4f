// One replica of a Plan as the values that schedules, simulators and executors take.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/plan/inventory.h"
#include "parallel/plan/partition.h"
#include "parallel/plan/planner_cost.h"
#include "parallel/plan/schedule.h"
#include "parallel/plan/simulator.h"
#include "parallel/plan/stage_messages.h"
#include "proto/plan.pb.h"

namespace deepnet {

PipelineShape PipelineShapeOf(const Plan& plan, int replica = 0);
Placement PlacementOf(const Plan& plan);
std::vector<int> ChunkEnds(const Plan& plan);
std::vector<ChunkCost> ChunkCosts(const Plan& plan);

// Returns the messages over the cut before each chunk, [chunk]: the tensors whose bytes ChunkCosts
// holds.
std::vector<StageMessages> StageMessagesOf(const Plan& plan, const Inventory& inventory,
                                           const ComputeSpec& compute);

// The exchanges of one stage at the end of a step.
struct StageExchange {
  Exchange seconds;           // what plan.gradient_exchange_seconds is made of
  double update_seconds = 0;  // of which plan.update_seconds is the largest
  int64_t gradient_bytes = 0;
  int64_t weight_bytes = 0;
  int64_t foreign_bytes = 0;  // see ExchangeSeconds
};

// [stage]. Arguments are those that `plan` was made for.
std::vector<StageExchange> StageExchanges(const Plan& plan, const Inventory& inventory,
                                          const ClusterSpec& cluster, const ComputeSpec& compute);

// Returns the bytes of each chunk's accumulators, [chunk]; those of a stage add up to its
// gradient_bytes.
std::vector<int64_t> GradientBytes(const Plan& plan, const Inventory& inventory);

// The simulated step that plan.step_seconds is from; `cluster` and `compute` are those it was made
// for.
Simulation SimulatePlan(const Plan& plan, const ClusterSpec& cluster, const ComputeSpec& compute);

}  // namespace deepnet
