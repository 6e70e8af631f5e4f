// The beginning of a run, in which all ranks settle everything that is open in a RunSpec before
// anything is allocated (MakeTrainSession of trainer/train_session.h goes on from there).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

#include "parallel/base/clock.h"
#include "parallel/base/file_system.h"
#include "parallel/base/logging.h"
#include "parallel/comm/communicator.h"
#include "parallel/plan/inventory.h"
#include "proto/checkpoint.pb.h"
#include "proto/plan.pb.h"
#include "proto/run.pb.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/run_lock.h"
#include "trainer/data/corpus.h"
#include "trainer/stop_requests.h"
#include "trainer/telemetry/run_trace.h"

namespace deepnet {

struct ResolvedRun {
  RunSpec run;         // with what `plan` does not say decided
  std::string folder;  // run.folder() as this process reaches it
  std::unique_ptr<Corpus> corpus;
  Inventory inventory;                     // of the whole model
  Plan plan;                               // which rank computes what
  std::optional<FoundCheckpoint> earlier;  // the checkpoint that the run resumes
  Manifest state;                          // a checkpoint's manifest, without files
  std::unique_ptr<RunLock> lock;           // of `folder`; rank 0 only
  PhaseClock phases;                       // of ResolveRun
};

// Train (trainer/trainer.h) takes them. ResolveRun reads `root`, `require_empty`, `job_id` and
// `lock`, MakeTrainSession reads `init_from` and `trace`.
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

// Resolves `run` on `world` and `fs`, not those of `options`: opens the corpus, adopts the choices
// of an earlier run (arithmetic, virtual replicas) or measures which arithmetic is fastest, and
// makes a plan that fits. Last, rank 0 locks the run folder; nothing is written before. What must
// be the same on all ranks is checked.
//
// Collective over `world`, one rank per process or thread. Every rank gets the same answer but for
// folders, `lock`, `phases`, earlier->notes and compute.threads_per_rank. Errors carry one of the
// exit codes kBadConfig, kPreflight, kData, kCheckpoint, kDoesNotFit.
absl::StatusOr<ResolvedRun> ResolveRun(RunSpec run, const TrainOptions& options,
                                       Communicator& world, FileSystem& fs, Logger& log);

}  // namespace deepnet
