#include "parallel/exec/rehearsal_exchange.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "parallel/base/check.h"
#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/plan/memory.h"

namespace deepnet {
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
  if (options_.executor.watchdog != nullptr) {
    options_.executor.watchdog->Begin(
        "sums over ranks", options_.executor.limits.message + options_.executor.limits.grace);
  }
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
  if (options_.executor.watchdog != nullptr) options_.executor.watchdog->End();
  return absl::OkStatus();
}

absl::Status RehearsedExchange::MeetEverybody() {
  const double start = SecondsNow();
  double square = 1.0;
  RETURN_IF_ERROR(world_.AllReduceSum(std::span(&square, 1), options_.executor.limits.message));
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
  const absl::Status status = in_flight_.front().transfer->Wait(options_.executor.limits.message);
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

}  // namespace deepnet
