// A stage that waits instead of computing: as long as a cost model says that each action takes. A
// pipeline of such stages is a rehearsal: its schedule, executor and messages are the real ones,
// and because a waiting rank needs no core, 64 ranks can be timed on two.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "parallel/exec/stage.h"
#include "parallel/exec/trace.h"
#include "parallel/plan/simulator.h"
#include "parallel/plan/stage_messages.h"

namespace deepnet {

struct TimedStageOptions {
  std::vector<ChunkCost> costs;          // [chunk], seconds; bytes are not read
  std::vector<StageMessages> crossings;  // [chunk], what crosses the cut before it
  double time_scale = 1.0;               // seconds waited for each second of a cost
  int64_t payload_limit_bytes = std::numeric_limits<int64_t>::max();  // of a tensor; the rest of a
                                                                      // larger one is not sent
  int num_microbatches = 0;  // of a step; only `gradient_done` needs it
  // Told of each chunk after the last weight gradient of a step, with the time (SecondsNow) at
  // which that pass began. Empty: nobody is.
  std::function<absl::Status(int chunk, double began)> gradient_done = {};
};

// Its buffers have the sizes of the crossings, and no meaning.
//
// An action ends at a deadline, which is its beginning plus its cost; what a late wake-up took is
// subtracted from the next action, unless the rank waited for a message in between: a delay of the
// host's clock and threads is no delay of the machine that is played. Everything else counts, the
// work of executor and communicator included.
class TimedStage final : public Stage {
 public:
  // `trace` is the one that the executor writes (it tells of waits) and outlives the stage.
  TimedStage(TimedStageOptions options, const RankTrace& trace);

  absl::Status Forward(int chunk, int microbatch) override;
  absl::Status Backward(int chunk, int microbatch) override;
  absl::Status BackwardInput(int chunk, int microbatch) override;
  absl::Status BackwardWeight(int chunk, int microbatch) override;
  std::vector<Buffer> Buffers(Boundary boundary, int chunk, int microbatch) override;
  void Release(Boundary boundary, int chunk, int microbatch) override;

  // How late the host woke this rank after an action's time was up: seconds, on average over all
  // actions so far.
  double MeanLateness() const { return worked_ == 0 ? 0.0 : lateness_ / worked_; }

 private:
  using Memory = std::vector<std::vector<char>>;  // [tensor][byte]
  using Place = std::pair<Boundary, int>;         // boundary, chunk

  absl::Status Work(double seconds);
  absl::Status WorkOnWeights(double seconds, int chunk, int microbatch);
  bool WaitedSinceLastWork() const;
  Memory Allocate(Boundary boundary, int chunk) const;

  const TimedStageOptions options_;
  const RankTrace& trace_;
  double overslept_ = 0.0;  // seconds by which the last action ended late
  double lateness_ = 0.0;   // seconds, of all actions
  int worked_ = 0;          // actions
  std::map<std::tuple<Boundary, int, int>, Memory> live_;  // by boundary, chunk, microbatch
  std::map<Place, std::vector<Memory>> free_;              // to be used again
};

}  // namespace deepnet
