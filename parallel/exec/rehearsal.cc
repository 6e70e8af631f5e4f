#include "parallel/exec/rehearsal.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "parallel/base/status_macros.h"
#include "parallel/exec/timed_stage.h"

namespace deepnet {
namespace {

constexpr double kStep = 3.0;         // seconds
constexpr double kAction = 0.004;     // seconds; wake-ups are late by tens of microseconds
constexpr double kOverhead = 0.0005;  // seconds for each action of any rank, if few cores serve all

// Bytes of `tensors` as they are sent.
double SentBytes(const std::vector<BoundaryTensor>& tensors, int64_t limit) {
  double bytes = 0.0;
  for (const BoundaryTensor& tensor : tensors) {
    bytes += static_cast<double>(std::min(BytesOf(tensor), limit));
  }
  return bytes;
}

// A message's t seconds are t / scale seconds of cost.
Link Scaled(const Link& link, double scale) {
  return {link.latency_seconds / scale, link.bytes_per_second * scale};
}

absl::StatusOr<Simulation> SimulateAsRehearsed(const RehearsalJob& job, int64_t payload_limit_bytes,
                                               double scale) {
  std::vector<ChunkCost> costs = job.costs;
  for (size_t chunk = 0; chunk < costs.size(); ++chunk) {
    costs[chunk].forward_bytes = SentBytes(job.crossings[chunk].forward, payload_limit_bytes);
    costs[chunk].backward_bytes = SentBytes(job.crossings[chunk].backward, payload_limit_bytes);
  }
  const Network network{.inside_node = Scaled(job.network.inside_node, scale),
                        .between_nodes = Scaled(job.network.between_nodes, scale),
                        .ranks_per_node = job.network.ranks_per_node};
  return Simulate(job.schedule, job.placement, costs, network);
}

// One step; the traces of all ranks.
absl::StatusOr<std::vector<RankTrace>> RunStep(const RehearsalJob& job,
                                               const ExecutorOptions& options, Stage& stage,
                                               RankTrace& mine, Communicator& comm) {
  mine.events.clear();
  RETURN_IF_ERROR(comm.Barrier(options.limits.message));
  RETURN_IF_ERROR(RunSchedule(job.schedule, job.placement, stage, comm, options));
  return GatherTraces(comm, mine);
}

}  // namespace

double MakeTimeScale(const Simulation& planned) {
  if (planned.makespan <= 0) return 1.0;
  size_t most = 0, all = 0;
  for (const auto& actions : planned.timeline) {
    most = std::max(most, actions.size());
    all += actions.size();
  }
  const double slept = kAction * static_cast<double>(most);
  const double worked = kOverhead * static_cast<double>(all);
  return std::max({kStep, slept, worked}) / planned.makespan;
}

absl::StatusOr<Rehearsal> RunRehearsal(const RehearsalJob& job, const RehearsalOptions& options,
                                       Communicator& comm) {
  Rehearsal result;
  ASSIGN_OR_RETURN(result.planned, Simulate(job.schedule, job.placement, job.costs, job.network));
  result.time_scale = options.time_scale > 0 ? options.time_scale : MakeTimeScale(result.planned);
  ASSIGN_OR_RETURN(result.simulated,
                   SimulateAsRehearsed(job, options.payload_limit_bytes, result.time_scale));
  RankTrace mine;
  ExecutorOptions executor = options.executor;
  executor.trace = &mine;
  TimedStage stage({.costs = job.costs,
                    .crossings = job.crossings,
                    .time_scale = result.time_scale,
                    .payload_limit_bytes = options.payload_limit_bytes},
                   mine);
  double fastest = std::numeric_limits<double>::infinity();
  for (int step = 0; step < options.steps; ++step) {
    ASSIGN_OR_RETURN(std::vector<RankTrace> traces, RunStep(job, executor, stage, mine, comm));
    const TraceFigures figures = Measure(traces);
    if (figures.makespan >= fastest) continue;
    fastest = figures.makespan;
    result.exposed_communication = figures.exposed_communication;
    result.traces = std::move(traces);
  }
  result.makespan = fastest / result.time_scale;
  const double busy =
      std::accumulate(result.simulated.busy.begin(), result.simulated.busy.end(), 0.0);
  result.bubble = 1.0 - busy / (comm.size() * result.makespan);
  return result;
}

}  // namespace deepnet
