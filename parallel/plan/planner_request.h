// The planner's task, with every default applied and nothing contradictory left, and the configs
// that it allows.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/plan/inventory.h"
#include "parallel/plan/memory.h"
#include "parallel/plan/partition.h"
#include "parallel/plan/plan_accessors.h"
#include "parallel/plan/roofline.h"
#include "parallel/plan/schedule.h"
#include "proto/plan.pb.h"

namespace deepnet {

// Borrows the Inventory. 0, "" and UNSPECIFIED are open: the search decides.
struct Request {
  const Inventory* inventory = nullptr;
  MemoryRules rules;
  Speeds speeds;
  std::vector<LayerSeconds> seconds;  // [layer of the inventory]
  int global_microbatches = 1;
  int virtual_replicas = 0;       // 0: as many as there are replicas
  bool one_sum_per_rank = false;  // parallel.gradient_sum is FAST
  int num_ranks = 0;              // 0: follows the layout
  double memory_bytes = std::numeric_limits<double>::infinity();  // per rank, less the sentences
  double sentence_bytes = 0;  // of two steps, which every rank's host packs whole; 0 on a GPU

  int stages = 0, replicas = 0, virtual_pipeline_size = 0;
  std::string schedule;
  std::optional<Schedule> custom;  // what `schedule` holds if it is a text
  PlacementShape placement = PLACEMENT_UNSPECIFIED;
  std::optional<RecomputeChoice> recompute;
};

// Parameters as MakePlan's. Fails with InvalidArgument (kBadConfig) naming the field: negative
// numbers, an unknown schedule, or what a schedule's text says wrong.
absl::StatusOr<Request> MakeRequest(const Inventory& inventory, const PlanSettings& settings);

struct ParallelConfig {
  int stages = 1, replicas = 1;
  std::string schedule = "single_stage";  // a name; "custom" if the request has its own
  int virtual_pipeline_size = 1;
  std::vector<int> ends = {};  // of chunks; empty: cut by cost
};

// Every config that the request leaves open and that can run, in order of stages, schedules,
// chunks. Unasked: "single_stage" on one stage, else all schedules but "gpipe", with 2, 4 and 8
// chunks a rank where they take any number. InvalidArgument (kBadConfig) naming the field if there
// is none.
//
// Every replica needs a microbatch, a written schedule equally many on all. A number of replicas
// that is left open must also share the microbatches evenly and divide the virtual replicas, so
// that results have the bits of any other number of ranks.
absl::StatusOr<std::vector<ParallelConfig>> ListConfigs(const Request& request);

// OK if `config` can run at all, whatever memory it needs. InvalidArgument as ListConfigs'.
absl::Status CheckConfig(const Request& request, const ParallelConfig& config);

PipelineShape PipelineShapeOf(const Request& request, const ParallelConfig& config);
absl::StatusOr<Placement> PlacementOf(const Request& request, const ParallelConfig& config);
PlacementShape PlacementShapeOf(const Request& request, const ParallelConfig& config);

}  // namespace deepnet
