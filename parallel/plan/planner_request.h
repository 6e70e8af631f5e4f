// The planner's task, with every default applied and nothing contradictory left.
#pragma once

#include <limits>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/plan/inventory.h"
#include "parallel/plan/memory.h"
#include "parallel/plan/planner_cost.h"
#include "parallel/plan/schedule.h"
#include "proto/data.pb.h"
#include "proto/instruments.pb.h"
#include "proto/optim.pb.h"
#include "proto/plan.pb.h"

namespace deepnet {

// Borrows the Inventory. 0, "" and UNSPECIFIED are open: the search decides.
struct Request {
  const Inventory* inventory = nullptr;
  MemoryRules rules;
  Speeds speeds;
  int global_microbatches = 1;
  int virtual_replicas = 0;       // 0: follows the layout
  bool one_sum_per_rank = false;  // parallel.gradient_sum is FAST
  int num_ranks = 0;              // 0: follows the layout
  int devices_per_node = 1;
  double memory_bytes = std::numeric_limits<double>::infinity();  // per rank

  int stages = 0, replicas = 0, virtual_pipeline_size = 0;
  std::string schedule;
  std::optional<Schedule> custom;  // what `schedule` holds if it is a text
  PlacementShape placement = PLACEMENT_UNSPECIFIED;
  std::optional<RecomputeChoice> recompute;

  int NumLayers() const { return static_cast<int>(inventory->layers.size()); }
};

// Parameters as MakePlan's. Fails with InvalidArgument (kBadConfig) naming the field: negative
// numbers, an unknown schedule, or what a schedule's text says wrong.
absl::StatusOr<Request> MakeRequest(const Inventory& inventory, const DataSpec& data,
                                    const OptimSpec& optim, const ComputeSpec& compute,
                                    const ClusterSpec& cluster, const ParallelSpec& parallel,
                                    const InstrumentsSpec& instruments);

// InvalidArgument with ExitCode::kBadConfig.
absl::Status BadField(const std::string& message);

}  // namespace deepnet
