// The training loop: from a RunSpec to a trained run folder, continuing what is there.
#pragma once

#include <atomic>
#include <string>

#include "absl/status/status.h"

#include "parallel/base/logging.h"
#include "parallel/comm/communicator.h"
#include "parallel/exec/watchdog.h"
#include "proto/run.pb.h"

namespace deepnet {

struct TrainOptions {
  std::string root;    // what paths of the RunSpec are relative to
  bool fresh = false;  // refuse a run folder that is not empty instead of continuing
  // Set by a signal handler to 1: save and end with ExitCode::kSavedRunAgain; to 2: save and go on.
  std::atomic<int>* request = nullptr;
  Communicator* world = nullptr;  // all ranks of the job; null: this process is alone
  Watchdog* watchdog = nullptr;   // told what a step is at; null: nobody watches
};

// Trains `run` (defaults filled in, validated) in run.folder() until train.steps, train.minutes, a
// request, or divergence. A run folder with checkpoints is continued from the newest good one; a
// different model, vocabulary or corpus is refused with both values.
//
// Exit codes on the Status: kBadConfig, kData, kCheckpoint, kDoesNotFit, kDiverged (ten non-finite
// steps in a row), kSavedRunAgain.
absl::Status Train(RunSpec run, const TrainOptions& options, Logger& log);

}  // namespace deepnet
