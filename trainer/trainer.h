// The training loop: from a RunSpec to a trained run folder, continuing what is there.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"

#include "parallel/base/file_system.h"
#include "parallel/base/logging.h"
#include "parallel/comm/communicator.h"
#include "parallel/exec/watchdog.h"
#include "proto/run.pb.h"
#include "trainer/checkpoint/run_lock.h"
#include "trainer/data/microbatch.h"
#include "trainer/stop_requests.h"

namespace deepnet {

struct TrainOptions {
  std::string root;       // what paths of the RunSpec are relative to
  bool fresh = false;     // refuse a run folder that is not empty instead of continuing
  std::string init_from;  // a new run takes its weights from this checkpoint (initial_weights.h)
  std::atomic<int>* request = nullptr;  // bits of trainer/stop_requests.h, set by signal handlers
  double deadline = kNoDeadline;        // SecondsNow() at which this process must have ended
  std::string job_id;                   // of the batch system, for the run folder's lock
  RunLockOptions lock;                  // how the run folder is locked
  FileSystem* files = nullptr;          // that checkpoints are written to; null: the system's
  Communicator* world = nullptr;        // all ranks of the job; null: this process is alone
  Watchdog* watchdog = nullptr;         // told what a step is at; null: nobody watches
  // Stands between the data and the steps, in tests of slow data; empty: nothing does.
  std::function<std::unique_ptr<BatchSource>(std::unique_ptr<BatchSource>)> around_batches;
  // Called when a rank has stopped (trainer/watched_run.h); empty: an error, then world->Abort.
  std::function<void(const absl::Status&)> on_stuck;
};

// Trains `run` (defaults filled in, validated) in run.folder() until train.steps, train.minutes, a
// request, a time limit, or divergence. A run folder with checkpoints is continued from the newest
// good one; a different model, vocabulary or corpus is refused with both values, and so is a folder
// that another process writes to.
//
// Checkpoints are written in the background (trainer/run_saver.h). One that cannot be written is
// counted and shown, and training goes on; only where the run ends is it an error, after a second
// try. Requests are honoured between steps, in a validation, and before the first step.
//
// Exit codes on the Status: kBadConfig, kData, kCheckpoint, kDoesNotFit, kDiverged (ten non-finite
// steps in a row), kSavedRunAgain. kHang ends a job by `on_stuck` or `watchdog`.
absl::Status Train(RunSpec run, const TrainOptions& options, Logger& log);

}  // namespace deepnet
