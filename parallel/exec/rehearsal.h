// A rehearsed training step: the real schedule, executor, communicator and data, stages that wait
// instead of computing (TimedStage), real exchanges that take as long as the planner says
// (RehearsedExchange), and the outcome beside the simulator's (docs/design/rehearsal.md).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/comm/communicator.h"
#include "parallel/exec/pipeline_executor.h"
#include "parallel/exec/stage.h"
#include "parallel/exec/trace.h"
#include "parallel/plan/inventory.h"
#include "parallel/plan/partition.h"
#include "parallel/plan/plan_accessors.h"
#include "parallel/plan/schedule.h"
#include "parallel/plan/simulator.h"

namespace deepnet {

// The end of a step: what the replicas and stages of a job exchange after a rank's last backward
// passes, as the trainer does (docs/design/sharding.md), in the order of TraceKind.
struct ExchangeJob {
  int replicas = 1;
  std::vector<StageExchange> stages;    // [stage]
  std::vector<int64_t> gradient_bytes;  // [chunk]

  // Returns the seconds for which reducing `chunk`'s gradient keeps the link of `stage` busy.
  double ReduceSeconds(int chunk, int stage) const;
};

// Returns the seconds of a step, as RehearsedExchange takes them, on the timeline of one replica.
double StepSeconds(const ExchangeJob& job, const Simulation& pipeline);

struct RehearsalJob {
  // With transfers. One, or where replicas have different numbers of microbatches one for each, of
  // which the first has most.
  std::vector<Schedule> schedules;
  Placement placement;
  std::vector<ChunkCost> costs;               // [chunk], seconds
  std::vector<StageMessages> stage_messages;  // [chunk], over the cut before it
  Network network;       // the simulator's; messages of the rehearsal take what they take
  ExchangeJob exchange;  // after the schedule; a stage per rank of the placement

  const Schedule& ScheduleOf(int replica) const {
    return schedules[schedules.size() == 1 ? 0 : replica];
  }
  int NumRanks() const { return placement.NumRanks() * exchange.replicas; }
};

struct RehearsalOptions {
  double time_scale = 0.0;  // seconds waited per second of cost; 0: MakeTimeScale
  // At most so many bytes of a tensor, or of a message of an exchange, are sent.
  int64_t payload_limit_bytes = std::numeric_limits<int64_t>::max();
  int steps = 3;  // > 0; the fastest one counts
  // Called on every rank before step `step`, to get its data. May be empty.
  std::function<absl::Status(int step)> fetch = {};
  ExecutorOptions executor = {};  // of RunRehearsal, `trace` is not read
};

// A stage that waits for as long as a cost model says that each action takes. Its buffers have the
// sizes of the stage messages, and no meaning.
//
// An action ends at a deadline, which is its beginning plus its cost; what a late wake-up took is
// subtracted from the next action, unless the rank waited for a message in between: a delay of the
// host's clock and threads is no delay of the machine that is played.
class TimedStage final : public Stage {
 public:
  // Told of the last weight gradient of each chunk in a step, which began at `began` (SecondsNow).
  using GradientDone = std::function<absl::Status(int chunk, double began)>;

  // `job` and `options` outlive the stage. It looks for waits in the trace that the executor
  // writes. `num_microbatches` of a step are needed for `gradient_done` only.
  TimedStage(const RehearsalJob& job, const RehearsalOptions& options, int num_microbatches = 0,
             GradientDone gradient_done = {});

  absl::Status Forward(int chunk, int microbatch) override {
    return Work({Op::kForward, chunk, microbatch});
  }
  absl::Status Backward(int chunk, int microbatch) override {
    return Work({Op::kBackward, chunk, microbatch});
  }
  absl::Status BackwardInput(int chunk, int microbatch) override {
    return Work({Op::kBackwardInput, chunk, microbatch});
  }
  absl::Status BackwardWeight(int chunk, int microbatch) override {
    return Work({Op::kBackwardWeight, chunk, microbatch});
  }
  std::vector<Buffer> Buffers(Boundary boundary, int chunk, int microbatch) override;
  void Release(Boundary boundary, int chunk, int microbatch) override;

  // Returns by how many seconds the host woke this rank late, averaged over all actions so far.
  double MeanLateness() const { return worked_ == 0 ? 0.0 : lateness_ / worked_; }

 private:
  using TensorBytes = std::vector<std::vector<char>>;  // [tensor][byte]

  absl::Status Work(const Action& action);
  bool WaitedSinceLastWork() const;

  const RehearsalJob& job_;
  const RehearsalOptions& options_;
  const int num_microbatches_;
  const GradientDone gradient_done_;
  double overslept_ = 0.0;  // seconds by which the last action ended late
  double lateness_ = 0.0;   // seconds, of all actions
  int worked_ = 0;          // actions
  std::map<std::tuple<Boundary, int, int>, TensorBytes> live_;  // by boundary, chunk, microbatch
  std::map<std::pair<Boundary, int>, std::vector<TensorBytes>> free_;  // by boundary, chunk
};

// Runs the exchanges over the real groups. Each takes as long as the planner's cost of it says
// (plan_accessors.h), or longer if the collective does.
class RehearsedExchange {
 public:
  // The groups: all ranks, the replicas of this rank's stage, the stages of its replica. Arguments
  // outlive it.
  RehearsedExchange(const ExchangeJob& job, const RehearsalOptions& options, Communicator& world,
                    Communicator& replicas, Communicator& stages);

  // The gradient of `chunk` is complete; its last pass began at `began` seconds of SecondsNow().
  // Starts its reduction. Collective over the replicas of this stage.
  absl::Status GradientDone(int chunk, double began);

  // Runs everything that is left of the step. Collective over the world.
  absl::Status Finish();

 private:
  struct Flight {
    std::vector<std::vector<char>> sent, received;  // [rank of the group]
    std::unique_ptr<Transfer> transfer;
  };
  using Sizes = std::vector<int64_t>;  // [rank of the group] bytes to it, and as many from it

  int64_t TiedBytes(int one, int other) const;  // bytes between two stages
  absl::Status ExchangeTied();
  absl::Status ExchangeShares(int64_t bytes);
  // Sends `sizes` in pieces of kPieceBytes, of which kPiecesInFlight are under way at once. `most`
  // is the same on all ranks of the group and at least each of their sizes.
  absl::Status Exchange(Communicator& group, const Sizes& sizes, int64_t most);
  absl::Status AwaitAllBut(size_t youngest);
  // Runs `exchange`, waits for what it left under way and until `seconds` of cost are over; records
  // the phase.
  absl::Status RunPhase(TraceKind kind, double seconds, int64_t bytes,
                        absl::FunctionRef<absl::Status()> exchange);

  const ExchangeJob& job_;
  const RehearsalOptions& options_;
  Communicator& world_;
  Communicator& replicas_;
  Communicator& stages_;
  const int64_t num_tied_stages_;  // that use tensors of which others have uses
  std::deque<Flight> in_flight_;
  double link_free_at_ = 0.0;  // seconds of SecondsNow()
};

struct Rehearsal {
  Simulation planned;           // the pipeline as it is planned
  Simulation simulated;         // the expected outcome: messages as they are sent, unscaled
  double simulated_step = 0.0;  // seconds: `simulated` and what follows it (StepSeconds)
  double time_scale = 0.0;
  // Seconds of cost: what was measured over time_scale.
  double makespan = 0.0;               // of the slowest replica's pipeline
  double step = 0.0;                   // exchanges included, data not
  double bubble = 0.0;                 // 1 - busy / (ranks * makespan), busy by costs
  double exposed_communication = 0.0;  // share of ranks * makespan (trace.h)
  // Seconds of the host.
  std::vector<double> data_waits;  // [step] of the rank that waited longest; empty without `fetch`
  double mean_lateness = 0.0;      // of a wake-up, over all ranks and actions (TimedStage)
  std::vector<RankTrace> traces;   // [rank], of the step that counts
};

// Returns the scale at which a host's clock and cores are good enough: a step takes 3 s, or as long
// as the rank with the most actions needs for 4 ms each, or 0.5 ms for each action of any rank.
double MakeTimeScale(const Simulation& planned, int replicas = 1);

// Collective over `world`, rank = replica * stages + stage; the same outcome on every rank. Each
// step: data, a barrier, schedule, exchanges. The fastest step counts because whatever else the
// host does only adds. Asks the system to wake the calling thread as punctually as it can, for
// good. InvalidArgument if the world has another number of ranks than the job.
absl::StatusOr<Rehearsal> RunRehearsal(const RehearsalJob& job, const RehearsalOptions& options,
                                       Communicator& world);

}  // namespace deepnet
