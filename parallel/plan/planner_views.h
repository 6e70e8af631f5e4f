// One replica of a Plan as the values that schedules, simulators and executors take.
#pragma once

#include <vector>

#include "parallel/plan/placement.h"
#include "parallel/plan/schedule.h"
#include "parallel/plan/simulator.h"
#include "proto/plan.pb.h"

namespace deepnet {

PipelineShape ShapeOf(const Plan& plan);
Placement PlacementOf(const Plan& plan);
std::vector<int> ChunkEnds(const Plan& plan);
std::vector<ChunkCost> ChunkCosts(const Plan& plan);

// The simulated step that plan.step_seconds is from; `cluster` and `compute` are those it was made
// for.
Simulation SimulatePlan(const Plan& plan, const ClusterSpec& cluster, const ComputeSpec& compute);

}  // namespace deepnet
