// A step of a pipeline rehearsed: real schedule, executor and communicator, stages that wait
// (timed_stage.h), the outcome beside the simulator's.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/comm/communicator.h"
#include "parallel/exec/pipeline_executor.h"
#include "parallel/exec/trace.h"
#include "parallel/plan/crossing.h"
#include "parallel/plan/placement.h"
#include "parallel/plan/schedule.h"
#include "parallel/plan/simulator.h"

namespace deepnet {

struct RehearsalJob {
  Schedule schedule;  // with its transfers
  Placement placement;
  std::vector<ChunkCost> costs;     // [chunk]
  std::vector<Crossing> crossings;  // [chunk]
  Network network;  // the simulator's; messages of the rehearsal take what they take
};

struct RehearsalOptions {
  double time_scale = 0.0;  // seconds waited per second of cost; 0: MakeTimeScale
  int64_t payload_limit_bytes = std::numeric_limits<int64_t>::max();  // of each tensor
  int steps = 3;                                                      // > 0; the fastest one counts
  ExecutorOptions executor = {};                                      // `trace` is not read
};

struct Rehearsal {
  Simulation planned;    // the job as it is
  Simulation simulated;  // what the rehearsal should show: messages of the size that was sent,
                         // which take their time unscaled while costs are scaled
  double time_scale = 0.0;
  double makespan = 0.0;               // seconds of cost: what was measured over time_scale
  double bubble = 0.0;                 // 1 - busy / (ranks * makespan), busy as the costs say
  double exposed_communication = 0.0;  // share of ranks * makespan (trace.h)
  std::vector<RankTrace> traces;       // [rank], of the step that counts, in seconds waited
};

// The scale at which a host's clock and cores are good enough: a step takes 3 s, or as long as the
// rank with the most actions needs for 4 ms each, or 0.5 ms for each action of any rank.
double MakeTimeScale(const Simulation& planned);

// Collective over the ranks of one pipeline; the same outcome on every rank. A barrier stands
// before each step. The fastest step counts because whatever else the host does only adds.
// Errors are RunSchedule's, Simulate's and the communicator's.
absl::StatusOr<Rehearsal> RunRehearsal(const RehearsalJob& job, const RehearsalOptions& options,
                                       Communicator& comm);

}  // namespace deepnet
