// The training loop: trains a RunSpec in its run folder, resuming what is there.
#pragma once

#include "absl/status/status.h"

#include "parallel/base/logging.h"
#include "proto/run.pb.h"
#include "trainer/resolve_run.h"

namespace deepnet {

// Trains `run` (defaults filled in, validated) in run.folder() until train.steps,
// train.max_train_minutes, a request, a time limit, or divergence. A run folder with checkpoints is
// resumed from the newest good one; a different model, vocabulary or corpus is refused with both
// values, and so is a folder that another process writes to. TrainOptions: resolve_run.h.
//
// A checkpoint that cannot be written is counted and logged, and training goes on; only at the end
// of the run is it an error, after a second try. Requests are honoured between steps, in a
// validation, and before the first step.
//
// Exit codes on the Status: kBadConfig, kPreflight, kData, kCheckpoint, kDoesNotFit, kDiverged,
// kPeerLost, kReplicasDisagree, kSavedRunAgain. kHang also ends a job by `on_stuck`.
absl::Status Train(RunSpec run, TrainOptions options, Logger& log);

}  // namespace deepnet
