#include "parallel/exec/rehearsal.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include <sys/prctl.h>

#include "parallel/base/check.h"
#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/communicator.h"
#include "parallel/exec/pipeline_executor.h"
#include "parallel/exec/stage.h"
#include "parallel/exec/trace.h"
#include "parallel/plan/memory.h"
#include "parallel/plan/partition.h"
#include "parallel/plan/plan_accessors.h"
#include "parallel/plan/schedule.h"
#include "parallel/plan/simulator.h"
#include "parallel/plan/stage_messages.h"

namespace deepnet {

TimedStage::TimedStage(TimedStageOptions options, const RankTrace& trace)
    : options_(std::move(options)), trace_(trace) {
  DEEPNET_CHECK_EQ(options_.costs.size(), options_.crossings.size());
}

absl::Status TimedStage::Forward(int chunk, int microbatch) {
  absl::Status status = Work(options_.costs[chunk].forward);
  Release(Boundary::kInput, chunk, microbatch);
  return status;
}

absl::Status TimedStage::Backward(int chunk, int microbatch) {
  const ChunkCost& cost = options_.costs[chunk];
  absl::Status status =
      WorkOnWeights(cost.backward_input + cost.backward_weight, chunk, microbatch);
  Release(Boundary::kOutputGradient, chunk, microbatch);
  return status;
}

absl::Status TimedStage::BackwardInput(int chunk, int microbatch) {
  absl::Status status = Work(options_.costs[chunk].backward_input);
  Release(Boundary::kOutputGradient, chunk, microbatch);
  return status;
}

absl::Status TimedStage::BackwardWeight(int chunk, int microbatch) {
  return WorkOnWeights(options_.costs[chunk].backward_weight, chunk, microbatch);
}

// Weight gradients of a chunk come in the order of microbatches.
absl::Status TimedStage::WorkOnWeights(double seconds, int chunk, int microbatch) {
  const double began = SecondsNow();
  RETURN_IF_ERROR(Work(seconds));
  if (options_.gradient_done == nullptr || microbatch + 1 < options_.num_microbatches) {
    return absl::OkStatus();
  }
  return options_.gradient_done(chunk, began);
}

bool TimedStage::WaitedSinceLastWork() const {
  for (auto event = trace_.events.rbegin(); event != trace_.events.rend(); ++event) {
    if (event->kind == TraceKind::kCompute) return false;
    if (event->kind == TraceKind::kWait) return true;
  }
  return true;  // the first action: nothing to make up for
}

absl::Status TimedStage::Work(double seconds) {
  const double late = WaitedSinceLastWork() ? 0.0 : overslept_;
  const double deadline = SecondsNow() + seconds * options_.time_scale - late;
  const double left = deadline - SecondsNow();
  if (left > 0) std::this_thread::sleep_for(std::chrono::duration<double>(left));
  overslept_ = std::max(0.0, SecondsNow() - deadline);
  lateness_ += overslept_;
  ++worked_;
  return absl::OkStatus();
}

TimedStage::TensorBytes TimedStage::Allocate(Boundary boundary, int chunk) const {
  const bool before = boundary == Boundary::kInput || boundary == Boundary::kInputGradient;
  const bool forward = boundary == Boundary::kInput || boundary == Boundary::kOutput;
  const StageMessages& crossing = options_.crossings.at(before ? chunk : chunk + 1);
  TensorBytes tensors;
  for (const BoundaryTensor& tensor : forward ? crossing.forward : crossing.backward) {
    tensors.emplace_back(std::min(BytesOf(tensor), options_.payload_limit_bytes));
  }
  return tensors;
}

std::vector<Buffer> TimedStage::Buffers(Boundary boundary, int chunk, int microbatch) {
  const auto [at, is_new] = live_.try_emplace({boundary, chunk, microbatch});
  if (is_new) {
    std::vector<TensorBytes>& pool = free_[{boundary, chunk}];
    if (pool.empty()) {
      at->second = Allocate(boundary, chunk);
    } else {
      at->second = std::move(pool.back());
      pool.pop_back();
    }
  }
  std::vector<Buffer> buffers;
  for (std::vector<char>& tensor : at->second) buffers.push_back(Buffer::Of(std::span(tensor)));
  return buffers;
}

void TimedStage::Release(Boundary boundary, int chunk, int microbatch) {
  const auto at = live_.find({boundary, chunk, microbatch});
  if (at == live_.end()) return;  // nothing crossed here
  free_[{boundary, chunk}].push_back(std::move(at->second));
  live_.erase(at);
}

namespace {

bool IsWeightGradient(Op op) { return op == Op::kBackward || op == Op::kBackwardWeight; }

// When the gradients of `stage` are reduced: each chunk's from the start of its last pass on, one
// after the other.
double ReducedAt(const ExchangeJob& job, const std::vector<TimedAction>& actions, int stage) {
  std::vector<TimedAction> last_passes;  // of each chunk, in order
  for (const TimedAction& timed : actions) {
    if (!IsWeightGradient(timed.action.op)) continue;
    std::erase_if(last_passes, [&](const TimedAction& earlier) {
      return earlier.action.chunk == timed.action.chunk;
    });
    last_passes.push_back(timed);
  }
  const double free_at = actions.empty() ? 0.0 : actions.back().end;
  double link_free_at = 0.0;
  for (const TimedAction& pass : last_passes) {
    link_free_at = std::max(link_free_at, pass.start) + job.ReduceSeconds(pass.action.chunk, stage);
  }
  return std::max(free_at, link_free_at);
}

}  // namespace

double ExchangeJob::ReduceSeconds(int chunk, int stage) const {
  const StageExchange& all = stages[stage];
  if (all.gradient_bytes == 0) return 0.0;
  return all.seconds.reduce * static_cast<double>(gradient_bytes[chunk]) /
         static_cast<double>(all.gradient_bytes);
}

double StepSeconds(const ExchangeJob& job, const Simulation& pipeline) {
  double all_here = pipeline.makespan, longest_end = 0.0;
  for (size_t stage = 0; stage < job.stages.size(); ++stage) {
    const Exchange& seconds = job.stages[stage].seconds;
    all_here = std::max(
        all_here, ReducedAt(job, pipeline.timeline[stage], static_cast<int>(stage)) + seconds.tied);
    longest_end = std::max(longest_end, job.stages[stage].update_seconds + seconds.gather);
  }
  return all_here + longest_end;
}

absl::StatusOr<std::unique_ptr<RehearsedExchange>> RehearsedExchange::Make(
    const ExchangeJob& job, const RehearsedExchangeOptions& options, Communicator& world) {
  std::unique_ptr<RehearsedExchange> made(new RehearsedExchange(job, options, world));
  const int stages = world.size() / job.replicas;
  DEEPNET_CHECK_EQ(stages, static_cast<int>(job.stages.size()));
  const int stage = world.rank() % stages, replica = world.rank() / stages;
  made->num_tied_stages_ = std::count_if(job.stages.begin(), job.stages.end(),
                                         [](const auto& s) { return s.foreign_bytes > 0; });
  ASSIGN_OR_RETURN(made->replicas_, world.Split(/*color=*/stage, /*key=*/replica));
  ASSIGN_OR_RETURN(made->stages_, world.Split(/*color=*/replica, /*key=*/stage));
  return made;
}

void RehearsedExchange::BeginStep() {
  in_flight_.clear();
  link_free_at_ = 0.0;
}

absl::Status RehearsedExchange::GradientDone(int chunk, double began) {
  if (job_.replicas == 1) return absl::OkStatus();
  link_free_at_ =
      std::max(link_free_at_, began) + job_.ReduceSeconds(chunk, stage()) * options_.time_scale;
  return ExchangeShares(job_.gradient_bytes[chunk]);
}

absl::Status RehearsedExchange::Finish() {
  if (options_.executor.heartbeat != nullptr) options_.executor.heartbeat->Act("sums over ranks");
  const StageExchange& own = job_.stages[stage()];
  double start = SecondsNow();
  if (job_.replicas > 1) {
    RETURN_IF_ERROR(EndPhase(TraceKind::kReduce, start, link_free_at_, own.gradient_bytes));
  }
  if (num_tied_stages_ > 1) {
    start = SecondsNow();
    RETURN_IF_ERROR(ExchangeTied());
    RETURN_IF_ERROR(EndPhase(TraceKind::kTied, start,
                             start + own.seconds.tied * options_.time_scale, own.foreign_bytes));
  }
  RETURN_IF_ERROR(MeetEverybody());
  if (own.update_seconds > 0) {
    start = SecondsNow();
    RETURN_IF_ERROR(EndPhase(TraceKind::kUpdate, start,
                             start + own.update_seconds * options_.time_scale, own.weight_bytes));
  }
  if (job_.replicas > 1) {
    start = SecondsNow();
    RETURN_IF_ERROR(ExchangeShares(own.weight_bytes));
    RETURN_IF_ERROR(EndPhase(TraceKind::kGather, start,
                             start + own.seconds.gather * options_.time_scale, own.weight_bytes));
  }
  return absl::OkStatus();
}

absl::Status RehearsedExchange::MeetEverybody() {
  const double start = SecondsNow();
  double square = 1.0;
  RETURN_IF_ERROR(world_.AllReduceSum(std::span(&square, 1), options_.executor.comm_timeout));
  return EndPhase(TraceKind::kNorm, start, start, sizeof(square));
}

// Stages with uses of tied tensors exchange them in pairs; both of a pair find the same size.
int64_t RehearsedExchange::TiedBytes(int one, int other) const {
  const int64_t first = job_.stages[one].foreign_bytes, second = job_.stages[other].foreign_bytes;
  if (one == other || first == 0 || second == 0) return 0;
  return (first + second) / (2 * job_.replicas * (num_tied_stages_ - 1));
}

absl::Status RehearsedExchange::ExchangeTied() {
  const int stages = stages_->size();
  Sizes sizes;
  int64_t most = 0;  // of any pair: all stages start as many collectives
  for (int peer = 0; peer < stages; ++peer) {
    sizes.push_back(TiedBytes(stage(), peer));
    for (int other = 0; other < stages; ++other) most = std::max(most, TiedBytes(other, peer));
  }
  return Exchange(*stages_, sizes, most);
}

absl::Status RehearsedExchange::ExchangeShares(int64_t bytes) {
  const int64_t share = bytes / job_.replicas;  // that each replica adds up, and later sends
  Sizes sizes(job_.replicas, share);
  sizes[replicas_->rank()] = 0;
  return Exchange(*replicas_, sizes, share);
}

absl::Status RehearsedExchange::Exchange(Communicator& group, const Sizes& sizes, int64_t most) {
  const int64_t per_peer = kPieceBytes / group.size();
  for (int64_t done = 0; done < most; done += per_peer) {
    Sizes piece;
    for (const int64_t bytes : sizes) {
      piece.push_back(
          std::min({per_peer, options_.payload_limit_bytes, std::max<int64_t>(0, bytes - done)}));
    }
    RETURN_IF_ERROR(StartPiece(group, piece));
  }
  return absl::OkStatus();
}

absl::Status RehearsedExchange::StartPiece(Communicator& group, const Sizes& sizes) {
  while (in_flight_.size() >= kPiecesInFlight) RETURN_IF_ERROR(AwaitOldest());
  Flight& flight = in_flight_.emplace_back();
  std::vector<Buffer> send, receive;
  for (const int64_t bytes : sizes) {
    flight.sent.emplace_back(bytes);
    flight.received.emplace_back(bytes);
  }
  for (size_t peer = 0; peer < sizes.size(); ++peer) {
    send.push_back(Buffer::Of(std::span(flight.sent[peer])));
    receive.push_back(Buffer::Of(std::span(flight.received[peer])));
  }
  ASSIGN_OR_RETURN(flight.transfer, group.AllToAll(send, receive));
  return absl::OkStatus();
}

absl::Status RehearsedExchange::AwaitOldest() {
  const absl::Status status = in_flight_.front().transfer->Wait(options_.executor.comm_timeout);
  if (absl::IsDeadlineExceeded(status)) return WithExitCode(status, ExitCode::kHang);
  RETURN_IF_ERROR(status);
  in_flight_.pop_front();
  return absl::OkStatus();
}

absl::Status RehearsedExchange::AwaitAll() {
  while (!in_flight_.empty()) RETURN_IF_ERROR(AwaitOldest());
  return absl::OkStatus();
}

absl::Status RehearsedExchange::EndPhase(TraceKind kind, double start, double deadline,
                                         int64_t bytes) {
  RETURN_IF_ERROR(AwaitAll());
  const double left = deadline - SecondsNow();
  if (left > 0) std::this_thread::sleep_for(std::chrono::duration<double>(left));
  if (options_.executor.trace != nullptr) {
    options_.executor.trace->events.push_back(
        {.kind = kind, .bytes = bytes, .start = start, .end = SecondsNow()});
  }
  return absl::OkStatus();
}

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
  double max = 0.0, sum = 0.0;
};

absl::StatusOr<OverRanks> LookOverRanks(Communicator& comm, double mine) {
  std::vector<double> all(comm.size());
  std::vector<Buffer> buffers;
  for (double& value : all) buffers.push_back(Buffer::Of(std::span(&value, 1)));
  ASSIGN_OR_RETURN(const auto gathered, comm.AllGather(Buffer::Of(std::span(&mine, 1)), buffers));
  RETURN_IF_ERROR(gathered->Wait());
  return OverRanks{.max = *std::max_element(all.begin(), all.end()),
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
    Begin(step, "data");
    const double start = SecondsNow();
    RETURN_IF_ERROR(options_.fetch(step));
    ASSIGN_OR_RETURN(const OverRanks waited, LookOverRanks(world_, SecondsNow() - start));
    return waited.max;
  }

  // The traces of all ranks.
  absl::StatusOr<std::vector<RankTrace>> RunStep(int step) {
    Begin(step, "barrier");
    trace_.events.clear();
    exchange_->BeginStep();
    RETURN_IF_ERROR(world_.Barrier(executor_.comm_timeout));
    RETURN_IF_ERROR(RunSchedule(schedule_, job_.placement, *stage_, *pipeline_, executor_));
    RETURN_IF_ERROR(exchange_->Finish());
    return GatherTraces(world_, trace_);
  }

  absl::StatusOr<double> MeanLateness() {
    ASSIGN_OR_RETURN(const OverRanks late, LookOverRanks(world_, stage_->MeanLateness()));
    return late.sum / world_.size();
  }

 private:
  void Begin(int step, const char* action) {
    if (executor_.heartbeat == nullptr) return;
    executor_.heartbeat->Begin(absl::StrCat("step ", step));
    executor_.heartbeat->Act(action);
  }

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
    ASSIGN_OR_RETURN(std::vector<RankTrace> traces, rehearser.RunStep(step));
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
