// Decides if a run may resume from a checkpoint.
#pragma once

#include <string>

#include "absl/status/status.h"

#include "proto/checkpoint.pb.h"
#include "proto/run.pb.h"

namespace deepnet {

// Hashes that identify a run, as in its Manifest.
struct RunIdentity {
  std::string inventory_hash;
  std::string corpus_hash;
  std::string tokenizer_hash;
};

// Returns OK if `run` (resolved, as the manifest's own was) is the run that `manifest` was saved
// by; else an error (ExitCode::kCheckpoint) that lists every difference with both values. Compared
// are the three hashes, the model but for its dropout probabilities, the seed, and what decides the
// order and cut of the data and the sums: data.tags, data.microbatch, data.global_microbatches,
// data.directions, data.max_sentence_tokens, optim.optimizer, optim.virtual_replicas. All else
// (rates, how long, where) may change between starts.
absl::Status CheckSameRun(const Manifest& manifest, const RunIdentity& identity,
                          const RunSpec& run);

}  // namespace deepnet
