// The training loop: trains a RunSpec in its run folder, resuming what is there.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "absl/status/status.h"

#include "parallel/base/file_system.h"
#include "parallel/base/logging.h"
#include "parallel/comm/communicator.h"
#include "proto/run.pb.h"
#include "trainer/checkpoint/run_lock.h"
#include "trainer/stop_requests.h"
#include "trainer/telemetry/run_trace.h"

namespace deepnet {

struct TrainOptions {
  std::string root;            // the folder that paths of the RunSpec are relative to
  bool require_empty = false;  // refuse a run folder that is not empty instead of resuming
  std::string init_from;  // the checkpoint whose weights a new run begins with (InitializeFrom)
  std::atomic<int>* request = nullptr;  // bits (StopRequests), set by signal handlers
  double deadline = kNoDeadline;        // the SecondsNow() at which this process must have ended
  std::string job_id;                   // of the batch system, for the run folder's lock
  int restarts = 0;                     // of the batch system's job, for metrics
  RunLockOptions lock;                  // how the run folder is locked
  FileSystem* files = nullptr;          // for checkpoints; null: the system's
  Communicator* world = nullptr;        // all ranks of the job; null: this process is alone
  StepRange trace;                      // steps that are traced (trainer/telemetry/run_trace.h)
  // Called when a rank has stopped (trainer/monitored_run.h); empty: an error, then world->Abort.
  std::function<void(const absl::Status&)> on_stuck;
};

// Trains `run` (defaults filled in, validated) in run.folder() until train.steps,
// train.max_train_minutes, a request, a time limit, or divergence. A run folder with checkpoints is
// resumed from the newest good one; a different model, vocabulary or corpus is refused with both
// values, and so is a folder that another process writes to.
//
// A checkpoint that cannot be written is counted and logged, and training goes on; only at the end
// of the run is it an error, after a second try. Requests are honoured between steps, in a
// validation, and before the first step.
//
// Exit codes on the Status: kBadConfig, kPreflight, kData, kCheckpoint, kDoesNotFit, kDiverged,
// kPeerLost, kReplicasDisagree, kSavedRunAgain. kHang also ends a job by `on_stuck`.
absl::Status Train(RunSpec run, const TrainOptions& options, Logger& log);

}  // namespace deepnet
