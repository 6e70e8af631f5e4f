// Checks that a ModelSpec describes a model that can be computed.
#pragma once

#include "absl/status/status.h"

#include "parallel/base/messages.h"
#include "proto/run.pb.h"

namespace deepnet {

// Adds what is wrong with `model`, whose defaults are filled in. `from_corpus`: its vocabulary_size
// may be 0, which the corpus will say.
void CheckModel(const ModelSpec& model, bool from_corpus, Mistakes* mistakes);

// OK, or FailedPrecondition (ExitCode::kCheckpoint) naming what is wrong with the model, or with
// its data's settings, that a checkpoint or an import says.
absl::Status CheckStoredModel(const RunSpec& run);

}  // namespace deepnet
