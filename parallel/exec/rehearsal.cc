#include "parallel/exec/rehearsal.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include <sys/prctl.h>

#include "parallel/base/clock.h"
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
  return Simulate(job.ScheduleOf(0), job.placement, costs, network);
}

// The largest of all ranks' values, and their sum.
struct OverRanks {
  double most = 0.0, sum = 0.0;
};

absl::StatusOr<OverRanks> LookOverRanks(Communicator& comm, double mine) {
  std::vector<double> all(comm.size());
  std::vector<Buffer> buffers;
  for (double& value : all) buffers.push_back(Buffer::Of(std::span(&value, 1)));
  ASSIGN_OR_RETURN(const auto gathered, comm.AllGather(Buffer::Of(std::span(&mine, 1)), buffers));
  RETURN_IF_ERROR(gathered->Wait());
  return OverRanks{.most = *std::max_element(all.begin(), all.end()),
                   .sum = std::accumulate(all.begin(), all.end(), 0.0)};
}

int NumMicrobatches(const Schedule& schedule) {
  int count = 0;
  for (const std::vector<Action>& actions : schedule.actions) {
    for (const Action& action : actions) count = std::max(count, action.microbatch + 1);
  }
  return count;
}

// One rank's part in all steps.
class Rehearser {
 public:
  Rehearser(const RehearsalJob& job, const RehearsalOptions& options, double time_scale,
            Communicator& world)
      : job_(job),
        options_(options),
        executor_(options.executor),
        world_(world),
        schedule_(job.ScheduleOf(world.rank() / job.placement.NumRanks())) {
    executor_.trace = &trace_;
    exchange_options_ = {.time_scale = time_scale,
                         .payload_limit_bytes = options.payload_limit_bytes,
                         .executor = executor_};
    const auto gradient_done = [this](int chunk, double began) {
      return exchange_->GradientDone(chunk, began);
    };
    stage_ = std::make_unique<TimedStage>(
        TimedStageOptions{.costs = job.costs,
                          .crossings = job.crossings,
                          .time_scale = time_scale,
                          .payload_limit_bytes = options.payload_limit_bytes,
                          .num_microbatches = NumMicrobatches(schedule_),
                          .gradient_done = gradient_done},
        trace_);
  }

  // Collective, as are all.
  absl::Status JoinGroups() {
    const int stages = job_.placement.NumRanks();
    ASSIGN_OR_RETURN(pipeline_, world_.Split(/*color=*/world_.rank() / stages,
                                             /*key=*/world_.rank() % stages));
    ASSIGN_OR_RETURN(exchange_, RehearsedExchange::Make(job_.exchange, exchange_options_, world_));
    return absl::OkStatus();
  }

  // Seconds that the slowest rank waited.
  absl::StatusOr<double> Fetch(int step) {
    const double start = SecondsNow();
    RETURN_IF_ERROR(options_.fetch(step));
    ASSIGN_OR_RETURN(const OverRanks waited, LookOverRanks(world_, SecondsNow() - start));
    return waited.most;
  }

  // The traces of all ranks.
  absl::StatusOr<std::vector<RankTrace>> RunStep() {
    trace_.events.clear();
    exchange_->BeginStep();
    RETURN_IF_ERROR(world_.Barrier(executor_.limits.message));
    RETURN_IF_ERROR(RunSchedule(schedule_, job_.placement, *stage_, *pipeline_, executor_));
    RETURN_IF_ERROR(exchange_->Finish());
    return GatherTraces(world_, trace_);
  }

  absl::StatusOr<double> MeanLateness() {
    ASSIGN_OR_RETURN(const OverRanks late, LookOverRanks(world_, stage_->MeanLateness()));
    return late.sum / world_.size();
  }

 private:
  const RehearsalJob& job_;
  const RehearsalOptions& options_;
  ExecutorOptions executor_;
  Communicator& world_;
  const Schedule& schedule_;
  RankTrace trace_;
  RehearsedExchangeOptions exchange_options_;
  std::unique_ptr<TimedStage> stage_;
  std::unique_ptr<Communicator> pipeline_;
  std::unique_ptr<RehearsedExchange> exchange_;
};

}  // namespace

double MakeTimeScale(const Simulation& planned, int replicas) {
  if (planned.makespan <= 0) return 1.0;
  size_t most = 0, all = 0;
  for (const auto& actions : planned.timeline) {
    most = std::max(most, actions.size());
    all += actions.size() * static_cast<size_t>(replicas);
  }
  const double slept = kAction * static_cast<double>(most);
  const double worked = kOverhead * static_cast<double>(all);
  return std::max({kStep, slept, worked}) / planned.makespan;
}

absl::StatusOr<Rehearsal> RunRehearsal(const RehearsalJob& job, const RehearsalOptions& options,
                                       Communicator& world) {
  if (world.size() != job.NumRanks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a job of ", job.NumRanks(), " ranks, rehearsed by ", world.size()));
  }
  prctl(PR_SET_TIMERSLACK, 1UL);  // ns; the default would add 50 us to each wait
  Rehearsal result;
  ASSIGN_OR_RETURN(result.planned,
                   Simulate(job.ScheduleOf(0), job.placement, job.costs, job.network));
  result.time_scale = options.time_scale > 0 ? options.time_scale
                                             : MakeTimeScale(result.planned, job.exchange.replicas);
  ASSIGN_OR_RETURN(result.simulated,
                   SimulateAsRehearsed(job, options.payload_limit_bytes, result.time_scale));
  result.simulated_step = StepSeconds(job.exchange, result.simulated);

  Rehearser rehearser(job, options, result.time_scale, world);
  RETURN_IF_ERROR(rehearser.JoinGroups());
  double fastest = std::numeric_limits<double>::infinity();
  for (int step = 0; step < options.steps; ++step) {
    if (options.fetch != nullptr) {
      ASSIGN_OR_RETURN(const double waited, rehearser.Fetch(step));
      result.data_waits.push_back(waited);
    }
    ASSIGN_OR_RETURN(std::vector<RankTrace> traces, rehearser.RunStep());
    const TraceFigures figures = Measure(traces, job.placement.NumRanks());
    if (figures.step >= fastest) continue;
    fastest = figures.step;
    result.makespan = figures.makespan / result.time_scale;
    result.exposed_communication = figures.exposed_communication;
    result.traces = std::move(traces);
  }
  result.step = fastest / result.time_scale;
  const double busy =
      std::accumulate(result.simulated.busy.begin(), result.simulated.busy.end(), 0.0);
  result.bubble = 1.0 - busy / (job.placement.NumRanks() * result.makespan);
  ASSIGN_OR_RETURN(result.mean_lateness, rehearser.MeanLateness());
  return result;
}

}  // namespace deepnet
