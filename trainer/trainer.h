// The training loop: trains a RunSpec in its run folder, resuming what is there.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "absl/status/status.h"

#include "parallel/base/file_system.h"
#include "parallel/base/logging.h"
#include "parallel/comm/communicator.h"
#include "proto/run.pb.h"
#include "trainer/checkpoint/run_lock.h"

namespace deepnet {

// Bits of TrainOptions::request. Handlers of signals add bits; the run takes them.
inline constexpr int kStopRequest = 1;  // save and end with ExitCode::kSavedRunAgain
inline constexpr int kSaveRequest = 2;  // save and go on

// The requests to this rank. Ranks tell each other at the ends of steps. In between, something that
// takes long asks IsStopping whether to go on.
class StopRequests {
 public:
  // `bits` may be null. `deadline` is the SecondsNow() at which this process must have ended;
  // infinity: no limit.
  StopRequests(std::atomic<int>* bits, double deadline) : bits_(bits), deadline_(deadline) {}

  // Returns the bits that came since the last call. A stop, once requested, is returned every time.
  int Take();

  // Returns whether a stop has been requested or time is up, taken or not.
  bool IsStopping() const;

  // Sets how long a step and a save take, as far as known. The run stops early enough before the
  // deadline for two steps, two saves (one may be under way) and some seconds for leaving.
  void Expect(double step_seconds, double save_seconds);

  // Returns whether the run stops because of the deadline.
  bool TimeIsUp() const;

 private:
  std::atomic<int>* const bits_;
  const double deadline_;
  double lead_seconds_ = 0.0;
  bool stopping_ = false;
};

inline constexpr double kNoDeadline = std::numeric_limits<double>::infinity();

// Steps of a run, the first of which is 1. From 0: none.
struct StepRange {
  int64_t from = 0, to = 0;
};

struct TrainOptions {
  std::string root;            // the folder that paths of the RunSpec are relative to
  bool require_empty = false;  // refuse a run folder that is not empty instead of resuming
  std::string init_from;       // the checkpoint that a new run takes its weights from (TakeWeights)
  std::atomic<int>* request = nullptr;  // bits as above, set by signal handlers
  double deadline = kNoDeadline;        // the SecondsNow() at which this process must have ended
  std::string job_id;                   // of the batch system, for the run folder's lock
  int restarts = 0;                     // of the batch system's job, for metrics
  RunLockOptions lock;                  // how the run folder is locked
  FileSystem* files = nullptr;          // for checkpoints; null: the system's
  Communicator* world = nullptr;        // all ranks of the job; null: this process is alone
  StepRange trace;                      // steps that are traced (trainer/run_trace.h)
  // Called when a rank has stopped (trainer/monitored_run.h); empty: an error, then world->Abort.
  std::function<void(const absl::Status&)> on_stuck;
};

// Trains `run` (defaults filled in, validated) in run.folder() until train.steps,
// train.max_train_minutes, a request, a time limit, or divergence. A run folder with checkpoints is
// resumed from the newest good one; a different model, vocabulary or corpus is refused with both
// values, and so is a folder that another process writes to.
//
// Checkpoints are written in the background (trainer/async_checkpointer.h). One that cannot be
// written is counted and logged, and training goes on; only at the end of the run is it an error,
// after a second try. Requests are honoured between steps, in a validation, and before the first
// step.
//
// Exit codes on the Status: kBadConfig, kData, kCheckpoint, kDoesNotFit, kDiverged (ten non-finite
// steps in a row), kSavedRunAgain. kHang ends a job by `on_stuck`.
absl::Status Train(RunSpec run, const TrainOptions& options, Logger& log);

}  // namespace deepnet
