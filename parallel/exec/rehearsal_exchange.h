// The end of a rehearsed step: what follows a rank's last backward passes until the next step may
// begin. Real collectives of the real groups, in the order of the trainer
// (docs/design/sharding.md):
//
//   reduce  gradients between replicas, chunk by chunk, beside what is still computed
//   tied    gradients of tied tensors between the stages that use them
//   norm    one number of every rank: nobody goes on before all are here
//   update  the optimizer's, of the rank's share
//   gather  updated weights between replicas
//
// Each takes as long as the planner's cost of it says (planner_costs.h), or longer if the
// collective does.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/comm/communicator.h"
#include "parallel/exec/pipeline_executor.h"
#include "parallel/exec/trace.h"
#include "parallel/plan/partition.h"
#include "parallel/plan/plan_accessors.h"
#include "parallel/plan/simulator.h"

namespace deepnet {

// What the replicas and stages of a job exchange, and over how many replicas.
struct ExchangeJob {
  int replicas = 1;
  std::vector<StageExchange> stages;    // [stage]
  std::vector<int64_t> gradient_bytes;  // [chunk]

  // Seconds that reducing the gradient of `chunk`, which is of `stage`, keeps the rank's link busy.
  double ReduceSeconds(int chunk, int stage) const;
};

// Seconds from the start of a step to its end, by the same rules as RehearsedExchange follows, on
// the timeline of one replica: reducing a chunk begins with the pass that completes its gradient
// and keeps one link busy; everybody waits for the slowest stage before weights are updated.
double StepSeconds(const ExchangeJob& job, const Simulation& pipeline);

struct RehearsedExchangeOptions {
  double time_scale = 1.0;          // seconds waited for each second of cost
  int64_t payload_limit_bytes = 0;  // of each message
  ExecutorOptions executor = {};    // `limits`, `trace`, `watchdog` are read
};

class RehearsedExchange {
 public:
  // Collective: splits `world`, whose ranks are replica * stages + stage. Arguments outlive it.
  static absl::StatusOr<std::unique_ptr<RehearsedExchange>> Make(
      const ExchangeJob& job, const RehearsedExchangeOptions& options, Communicator& world);

  void BeginStep();

  // The gradient of `chunk` is complete; its last pass began at `began` seconds of SecondsNow().
  // Starts its reduction. Collective over the replicas of this stage.
  absl::Status GradientDone(int chunk, double began);

  // Everything that is left of the step. Collective over the world.
  absl::Status Finish();

 private:
  struct Flight {
    std::vector<std::vector<char>> sent, received;  // [rank of the group]
    std::unique_ptr<Transfer> transfer;
  };
  using Sizes = std::vector<int64_t>;  // [rank of the group] bytes to it, and as many from it

  RehearsedExchange(const ExchangeJob& job, const RehearsedExchangeOptions& options,
                    Communicator& world)
      : job_(job), options_(options), world_(world) {}

  int stage() const { return stages_->rank(); }
  int64_t TiedBytes(int one, int other) const;  // between two stages
  absl::Status ExchangeTied();
  absl::Status ExchangeShares(int64_t bytes);
  // Sends `sizes` in pieces of kPieceBytes, of which kPiecesInFlight are under way at once. `most`
  // is the same on all ranks of the group and at least each of their sizes.
  absl::Status Exchange(Communicator& group, const Sizes& sizes, int64_t most);
  absl::Status StartPiece(Communicator& group, const Sizes& sizes);
  absl::Status AwaitOldest();
  absl::Status AwaitAll();
  absl::Status MeetEverybody();
  // Waits for what is under way and then until `deadline`; records the phase.
  absl::Status EndPhase(TraceKind kind, double start, double deadline, int64_t bytes);

  const ExchangeJob& job_;
  const RehearsedExchangeOptions& options_;
  Communicator& world_;
  std::unique_ptr<Communicator> replicas_, stages_;
  int64_t num_tied_stages_ = 0;  // that use tensors of which others have uses
  std::deque<Flight> in_flight_;
  double link_free_at_ = 0.0;  // seconds of SecondsNow()
};

}  // namespace deepnet
