// A step of a job rehearsed: real schedule, executor, communicator and data, stages that wait
// (timed_stage.h), real exchanges that take as long as they are planned for
// (rehearsal_exchange.h), the outcome beside the simulator's.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/comm/communicator.h"
#include "parallel/exec/pipeline_executor.h"
#include "parallel/exec/rehearsal_exchange.h"
#include "parallel/exec/trace.h"
#include "parallel/plan/partition.h"
#include "parallel/plan/schedule.h"
#include "parallel/plan/simulator.h"
#include "parallel/plan/stage_messages.h"

namespace deepnet {

struct RehearsalJob {
  // With transfers. One, of every replica, or where their numbers of microbatches differ one for
  // each, [replica], of which the first has most.
  std::vector<Schedule> schedules;
  Placement placement;
  std::vector<ChunkCost> costs;          // [chunk]
  std::vector<StageMessages> crossings;  // [chunk]
  Network network;       // the simulator's; messages of the rehearsal take what they take
  ExchangeJob exchange;  // after the schedule; a stage per rank of the placement

  const Schedule& ScheduleOf(int replica) const {
    return schedules[schedules.size() == 1 ? 0 : replica];
  }
  int NumRanks() const { return placement.NumRanks() * exchange.replicas; }
};

struct RehearsalOptions {
  double time_scale = 0.0;  // seconds waited per second of cost; 0: MakeTimeScale
  int64_t payload_limit_bytes = std::numeric_limits<int64_t>::max();  // of each tensor
  int steps = 3;                                                      // > 0; the fastest one counts
  // What a rank does before step `step`: get its data. Empty: nothing.
  std::function<absl::Status(int step)> fetch = {};
  ExecutorOptions executor = {};  // `trace` is not read
};

struct Rehearsal {
  Simulation planned;           // the pipeline as it is
  Simulation simulated;         // what the rehearsal should show: messages of the size that was
                                // sent, which take their time unscaled while costs are scaled
  double simulated_step = 0.0;  // seconds: `simulated` and what follows it (StepSeconds)
  double time_scale = 0.0;
  // Seconds of cost: what was measured over time_scale.
  double makespan = 0.0;               // of the slowest replica's pipeline
  double step = 0.0;                   // exchanges included, data not
  double bubble = 0.0;                 // 1 - busy / (ranks * makespan), busy as the costs of the
                                       // first replica say
  double exposed_communication = 0.0;  // share of ranks * makespan (trace.h)
  // Seconds of the host.
  std::vector<double> data_waits;  // [step] of the rank that waited longest; empty without `fetch`
  double mean_lateness = 0.0;      // of a wake-up, over all ranks and actions (TimedStage)
  std::vector<RankTrace> traces;   // [rank], of the step that counts
};

// The scale at which a host's clock and cores are good enough: a step takes 3 s, or as long as the
// rank with the most actions needs for 4 ms each, or 0.5 ms for each action of any rank.
double MakeTimeScale(const Simulation& planned, int replicas = 1);

// Collective over `world`, rank = replica * stages + stage; the same outcome on every rank. Each
// step: data, a barrier, schedule, exchanges. The fastest step counts because whatever else the
// host does only adds. Asks the system to wake the calling thread as punctually as it can, for
// good. Errors are RunSchedule's, Simulate's, fetch's and the communicator's; InvalidArgument if
// the world has another number of ranks than the job.
absl::StatusOr<Rehearsal> RunRehearsal(const RehearsalJob& job, const RehearsalOptions& options,
                                       Communicator& world);

}  // namespace deepnet
