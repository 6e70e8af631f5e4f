// What `rehearse` runs: a plan, or several to compare.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/exec/rehearsal.h"
#include "parallel/plan/inventory.h"
#include "proto/run.pb.h"

namespace deepnet {

struct RehearsalCase {
  std::string name;                   // "interleaved, v=4"
  int microbatches = 1;               // of the first replica in one step, which has most
  std::string microbatches_text;      // of all: "16", "17 or 16"
  double planned_step_seconds = 0.0;  // the plan's own: everything exposed comes after the pipeline
  RehearsalJob job;                   // all in it is the planner's
};

// The plan that `train` would follow, without asking whether it fits into memory. Errors are
// MakePlan's.
absl::StatusOr<RehearsalCase> PlannedCase(const RunSpec& run, const Inventory& inventory);

// Every schedule on as many stages as that plan has: 1F1B, interleaved with 2, 4 and 8 chunks a
// rank, ZB-H1, ZB-V, as far as there are layers for their chunks. Errors are MakePlan's.
absl::StatusOr<std::vector<RehearsalCase>> ComparedCases(const RunSpec& run,
                                                         const Inventory& inventory);

}  // namespace deepnet
