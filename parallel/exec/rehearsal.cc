#include "parallel/exec/rehearsal.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <span>
#include <thread>

#include "absl/strings/str_cat.h"
#include <sys/prctl.h>

#include "parallel/base/check.h"
#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/plan/memory.h"

namespace deepnet {
namespace {

constexpr double kStep = 3.0;         // seconds
constexpr double kAction = 0.004;     // seconds; wake-ups are late by tens of microseconds
constexpr double kMadeUp = 0.0001;    // seconds; longer delays come of busy cores, and stay
constexpr double kOverhead = 0.0005;  // seconds for each action of any rank, if few cores serve all

void SleepUntil(double deadline) {  // seconds of SecondsNow()
  const double left = deadline - SecondsNow();
  if (left > 0) std::this_thread::sleep_for(std::chrono::duration<double>(left));
}

// When the gradients of `stage` are reduced: each chunk's from the start of its last pass on, one
// after the other.
double ReducedAt(const ExchangeJob& job, const std::vector<TimedAction>& actions, int stage) {
  std::vector<TimedAction> last_passes;  // of each chunk, in order
  for (const TimedAction& timed : actions) {
    if (!IsWeightPass(timed.action.op)) continue;
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

// Returns the part of a rehearsal's result that is known before it begins.
absl::StatusOr<Rehearsal> Expect(const RehearsalJob& job, const RehearsalOptions& options) {
  Rehearsal result;
  ASSIGN_OR_RETURN(result.planned,
                   Simulate(job.ScheduleOf(0), job.placement, job.costs, job.network));
  const double scale = options.time_scale > 0
                           ? options.time_scale
                           : MakeTimeScale(result.planned, job.exchange.replicas);
  result.time_scale = scale;
  std::vector<ChunkCost> costs = job.costs;
  for (size_t chunk = 0; chunk < costs.size(); ++chunk) {
    const auto& [forward, backward] = job.stage_messages[chunk];
    costs[chunk].forward_bytes = SentBytes(forward, options.payload_limit_bytes);
    costs[chunk].backward_bytes = SentBytes(backward, options.payload_limit_bytes);
  }
  const Network network{.inside_node = Scaled(job.network.inside_node, scale),
                        .between_nodes = Scaled(job.network.between_nodes, scale),
                        .ranks_per_node = job.network.ranks_per_node};
  ASSIGN_OR_RETURN(result.simulated, Simulate(job.ScheduleOf(0), job.placement, costs, network));
  result.simulated_step = StepSeconds(job.exchange, result.simulated);
  return result;
}

}  // namespace

double ExchangeJob::ReduceSeconds(int chunk, int stage) const {
  const StageExchange& all = stages[stage];
  if (all.gradient_bytes == 0) return 0.0;
  return all.reduce_seconds * static_cast<double>(gradient_bytes[chunk]) /
         static_cast<double>(all.gradient_bytes);
}

double StepSeconds(const ExchangeJob& job, const Simulation& pipeline) {
  double all_here = pipeline.makespan, longest_end = 0.0;
  for (size_t stage = 0; stage < job.stages.size(); ++stage) {
    const StageExchange& own = job.stages[stage];
    const double reduced = ReducedAt(job, pipeline.timeline[stage], static_cast<int>(stage));
    all_here = std::max(all_here, reduced + own.tied_seconds);
    longest_end = std::max(longest_end, own.update_seconds + own.gather_seconds);
  }
  return all_here + longest_end;
}

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

TimedStage::TimedStage(const RehearsalJob& job, const RehearsalOptions& options,
                       int num_microbatches, GradientDone gradient_done)
    : job_(job),
      options_(options),
      num_microbatches_(num_microbatches),
      gradient_done_(std::move(gradient_done)) {
  DEEPNET_CHECK_EQ(job_.costs.size(), job_.stage_messages.size());
}

bool TimedStage::WaitedSinceLastWork() const {
  const std::vector<TraceEvent>& events = options_.executor.trace->events;
  const auto last = std::find_if(events.rbegin(), events.rend(), [](const TraceEvent& event) {
    return event.kind == TraceKind::kCompute || event.kind == TraceKind::kWait;
  });
  // Before the first action there is nothing to make up for.
  return last == events.rend() || last->kind == TraceKind::kWait;
}

absl::Status TimedStage::Work(const Action& action) {
  const auto& [op, chunk, microbatch] = action;
  const double began = SecondsNow();
  // Only the timer's lateness is made up for: nothing tells how late the inputs came, and behind a
  // longer one this action may not have been able to begin at the time that is made up.
  const double late = WaitedSinceLastWork() ? 0.0 : std::min(overslept_, kMadeUp);
  const double deadline = began + job_.costs[chunk].Seconds(op) * options_.time_scale - late;
  SleepUntil(deadline);
  overslept_ = std::max(0.0, SecondsNow() - deadline);
  lateness_ += overslept_;
  ++worked_;
  if (op == Op::kForward) Release(Boundary::kInput, chunk, microbatch);
  if (IsInputPass(op)) Release(Boundary::kOutputGradient, chunk, microbatch);
  // Weight gradients of a chunk come in the order of microbatches.
  const bool done = IsWeightPass(op) && microbatch + 1 >= num_microbatches_;
  return done && gradient_done_ != nullptr ? gradient_done_(chunk, began) : absl::OkStatus();
}

std::vector<Buffer> TimedStage::Buffers(Boundary boundary, int chunk, int microbatch) {
  const auto [at, is_new] = live_.try_emplace({boundary, chunk, microbatch});
  TensorBytes& tensors = at->second;
  std::vector<TensorBytes>& pool = free_[{boundary, chunk}];
  if (is_new && !pool.empty()) {
    tensors = std::move(pool.back());
    pool.pop_back();
  } else if (is_new) {
    const bool before = boundary == Boundary::kInput || boundary == Boundary::kInputGradient;
    const bool forward = boundary == Boundary::kInput || boundary == Boundary::kOutput;
    const StageMessages& messages = job_.stage_messages.at(before ? chunk : chunk + 1);
    for (const BoundaryTensor& tensor : forward ? messages.forward : messages.backward) {
      tensors.emplace_back(std::min(BytesOf(tensor), options_.payload_limit_bytes));
    }
  }
  std::vector<Buffer> buffers;
  for (std::vector<char>& tensor : tensors) buffers.push_back(Buffer::Of(std::span(tensor)));
  return buffers;
}

void TimedStage::Release(Boundary boundary, int chunk, int microbatch) {
  const auto at = live_.find({boundary, chunk, microbatch});
  if (at == live_.end()) return;  // nothing crossed here
  free_[{boundary, chunk}].push_back(std::move(at->second));
  live_.erase(at);
}

RehearsedExchange::RehearsedExchange(const ExchangeJob& job, const RehearsalOptions& options,
                                     Communicator& world, Communicator& replicas,
                                     Communicator& stages)
    : job_(job),
      options_(options),
      world_(world),
      replicas_(replicas),
      stages_(stages),
      num_tied_stages_(std::count_if(job.stages.begin(), job.stages.end(),
                                     [](const auto& stage) { return stage.foreign_bytes > 0; })) {
  DEEPNET_CHECK_EQ(stages.size(), static_cast<int>(job.stages.size()));
}

absl::Status RehearsedExchange::GradientDone(int chunk, double began) {
  if (job_.replicas == 1) return absl::OkStatus();
  link_free_at_ = std::max(link_free_at_, began) +
                  job_.ReduceSeconds(chunk, stages_.rank()) * options_.time_scale;
  return ExchangeShares(job_.gradient_bytes[chunk]);
}

absl::Status RehearsedExchange::Finish() {
  if (options_.executor.heartbeat != nullptr) options_.executor.heartbeat->Act("sums over ranks");
  const StageExchange& own = job_.stages[stages_.rank()];
  if (job_.replicas > 1) {
    RETURN_IF_ERROR(RunPhase(TraceKind::kReduce, 0.0, own.gradient_bytes, [&]() -> absl::Status {
      RETURN_IF_ERROR(AwaitAllBut(0));
      SleepUntil(link_free_at_);
      return absl::OkStatus();
    }));
  }
  if (num_tied_stages_ > 1) {
    RETURN_IF_ERROR(RunPhase(TraceKind::kTied, own.tied_seconds, own.foreign_bytes,
                             [&] { return ExchangeTied(); }));
  }
  double square = 1.0;
  RETURN_IF_ERROR(RunPhase(TraceKind::kNorm, 0.0, sizeof(square), [&] {
    return world_.AllReduceSum(std::span(&square, 1), options_.executor.comm_timeout);
  }));
  if (own.update_seconds > 0) {
    RETURN_IF_ERROR(RunPhase(TraceKind::kUpdate, own.update_seconds, own.weight_bytes,
                             [] { return absl::OkStatus(); }));
  }
  if (job_.replicas == 1) return absl::OkStatus();
  return RunPhase(TraceKind::kGather, own.gather_seconds, own.weight_bytes,
                  [&] { return ExchangeShares(own.weight_bytes); });
}

// Stages with uses of tied tensors exchange them in pairs; both of a pair find the same size.
int64_t RehearsedExchange::TiedBytes(int one, int other) const {
  const int64_t first = job_.stages[one].foreign_bytes, second = job_.stages[other].foreign_bytes;
  if (one == other || first == 0 || second == 0) return 0;
  return (first + second) / (2 * job_.replicas * (num_tied_stages_ - 1));
}

absl::Status RehearsedExchange::ExchangeTied() {
  const int stages = stages_.size();
  Sizes sizes;
  int64_t most = 0;  // of any pair: all stages start as many collectives
  for (int peer = 0; peer < stages; ++peer) {
    sizes.push_back(TiedBytes(stages_.rank(), peer));
    for (int other = 0; other < stages; ++other) most = std::max(most, TiedBytes(other, peer));
  }
  return Exchange(stages_, sizes, most);
}

absl::Status RehearsedExchange::ExchangeShares(int64_t bytes) {
  const int64_t share = bytes / job_.replicas;  // that each replica adds up, and later sends
  Sizes sizes(job_.replicas, share);
  sizes[replicas_.rank()] = 0;
  return Exchange(replicas_, sizes, share);
}

absl::Status RehearsedExchange::Exchange(Communicator& group, const Sizes& sizes, int64_t most) {
  const int64_t per_peer = kPieceBytes / group.size();
  for (int64_t done = 0; done < most; done += per_peer) {
    RETURN_IF_ERROR(AwaitAllBut(kPiecesInFlight - 1));
    Flight& flight = in_flight_.emplace_back();
    std::vector<Buffer> send, receive;
    for (const int64_t bytes : sizes) {
      const int64_t piece =
          std::min({per_peer, options_.payload_limit_bytes, std::max<int64_t>(0, bytes - done)});
      send.push_back(Buffer::Of(std::span(flight.sent.emplace_back(piece))));
      receive.push_back(Buffer::Of(std::span(flight.received.emplace_back(piece))));
    }
    ASSIGN_OR_RETURN(flight.transfer, group.AllToAll(send, receive));
  }
  return absl::OkStatus();
}

absl::Status RehearsedExchange::AwaitAllBut(size_t youngest) {
  for (; in_flight_.size() > youngest; in_flight_.pop_front()) {
    const absl::Status status = in_flight_.front().transfer->Wait(options_.executor.comm_timeout);
    if (absl::IsDeadlineExceeded(status)) return WithExitCode(status, ExitCode::kHang);
    RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

absl::Status RehearsedExchange::RunPhase(TraceKind kind, double seconds, int64_t bytes,
                                         absl::FunctionRef<absl::Status()> exchange) {
  const double start = SecondsNow();
  RETURN_IF_ERROR(exchange());
  RETURN_IF_ERROR(AwaitAllBut(0));
  SleepUntil(start + seconds * options_.time_scale);
  if (options_.executor.trace != nullptr) {
    options_.executor.trace->events.push_back(
        {.kind = kind, .bytes = bytes, .start = start, .end = SecondsNow()});
  }
  return absl::OkStatus();
}

absl::StatusOr<Rehearsal> RunRehearsal(const RehearsalJob& job, const RehearsalOptions& options,
                                       Communicator& world) {
  if (world.size() != job.NumRanks()) {
    return InvalidArgument("a job of ", job.NumRanks(), " ranks, rehearsed by ", world.size());
  }
  prctl(PR_SET_TIMERSLACK, 1UL);  // ns; the default would add 50 us to each wait
  ASSIGN_OR_RETURN(Rehearsal result, Expect(job, options));
  RankTrace trace;
  RehearsalOptions own = options;
  own.time_scale = result.time_scale;
  own.executor.trace = &trace;
  const int stages = job.placement.NumRanks(), replica = world.rank() / stages;
  const Schedule& schedule = job.ScheduleOf(replica);
  const int stage_rank = world.rank() % stages;
  ASSIGN_OR_RETURN(const auto pipeline, world.Split(/*color=*/replica, /*key=*/stage_rank));
  ASSIGN_OR_RETURN(const auto replicas, world.Split(/*color=*/stage_rank, /*key=*/replica));
  RehearsedExchange exchange(job.exchange, own, world, *replicas, *pipeline);
  TimedStage stage(job, own, NumMicrobatches(schedule),
                   [&](int chunk, double began) { return exchange.GradientDone(chunk, began); });
  const auto begin = [&](int step, const char* action) {
    if (own.executor.heartbeat == nullptr) return;
    own.executor.heartbeat->Begin(absl::StrCat("step ", step));
    own.executor.heartbeat->Act(action);
  };
  double fastest = std::numeric_limits<double>::infinity();
  for (int step = 0; step < own.steps; ++step) {
    if (own.fetch != nullptr) {
      begin(step, "data");
      const double start = SecondsNow();
      RETURN_IF_ERROR(own.fetch(step));
      ASSIGN_OR_RETURN(const auto waits, AllGatherValue(world, SecondsNow() - start));
      result.data_waits.push_back(*std::max_element(waits.begin(), waits.end()));
    }
    begin(step, "barrier");
    trace.events.clear();
    RETURN_IF_ERROR(world.Barrier(own.executor.comm_timeout));
    RETURN_IF_ERROR(RunSchedule(schedule, job.placement, stage, *pipeline, own.executor));
    RETURN_IF_ERROR(exchange.Finish());
    ASSIGN_OR_RETURN(std::vector<RankTrace> traces, AllGatherTraces(world, trace));
    const TraceFigures figures = Measure(traces, stages);
    if (figures.step >= fastest) continue;
    fastest = figures.step;
    result.makespan = figures.makespan / result.time_scale;
    result.exposed_communication = figures.exposed_communication;
    result.traces = std::move(traces);
  }
  result.step = fastest / result.time_scale;
  const std::vector<double>& busy = result.simulated.busy;
  result.bubble = 1.0 - std::accumulate(busy.begin(), busy.end(), 0.0) / (stages * result.makespan);
  ASSIGN_OR_RETURN(const auto late, AllGatherValue(world, stage.MeanLateness()));
  result.mean_lateness = std::accumulate(late.begin(), late.end(), 0.0) / world.size();
  return result;
}

}  // namespace deepnet
