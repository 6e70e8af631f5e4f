// Checks that a RunSpec can run. Pure: reads no file, allocates nothing, asks no machine.
//
// A bad RunSpec gives INVALID_ARGUMENT with ExitCode::kBadConfig whose message has one line per
// mistake, in the order of the proto files:
//   model.num_heads: 7: must divide model.d_model (128)
//   optim.learning_rate: 0: required, above 0
// All three expect defaults to be filled in (launch/defaults.h).
#pragma once

#include "absl/status/status.h"

#include "proto/run.pb.h"

namespace deepnet {

// For `describe`, `plan`, `bench`: the model with its vocabulary, the microbatch, the layout. No
// corpus, no folders. Fields that only training reads may be absent, but not wrong.
absl::Status ValidateForPlan(const RunSpec& run);

// For `train`: everything but `prepare`. model.vocabulary_size may be 0: the corpus says it.
absl::Status ValidateForTrain(const RunSpec& run);

// For `prepare`: only `prepare` and data.folder.
absl::Status ValidateForPrepare(const RunSpec& run);

}  // namespace deepnet
