// Decides if a run may resume from a checkpoint.
#pragma once

#include "absl/status/status.h"

#include "proto/checkpoint.pb.h"

namespace deepnet {

// Returns OK if `now`, of which run (resolved) and hashes are read, is of the run that `saved` is
// of; else an error (ExitCode::kCheckpoint) that lists every difference with both values. Compared
// are the three hashes, the model but for its dropout probabilities, the seed, and what decides the
// order and cut of the data and the sums: data.tags, data.microbatch, data.global_microbatches,
// data.directions, data.max_sentence_tokens, optim.optimizer, optim.virtual_replicas. All else
// (rates, how long, where) may change between starts.
absl::Status CheckSameRun(const Manifest& saved, const Manifest& now);

}  // namespace deepnet
