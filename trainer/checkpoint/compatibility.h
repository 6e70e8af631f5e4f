// Whether a run may go on from a checkpoint.
#pragma once

#include <string>

#include "absl/status/status.h"

#include "proto/checkpoint.pb.h"
#include "proto/run.pb.h"

namespace deepnet {

// What a run is made of, as the Manifest has it.
struct RunIdentity {
  std::string inventory_hash;
  std::string corpus_hash;
  std::string tokenizer_hash;
};

// OK if `run` (resolved, as the manifest's own was) is the run that `manifest` was saved by. Error,
// with ExitCode::kCheckpoint: lists every difference with both values. Compared are the three
// hashes, the model but for its dropout probabilities, the seed, and what decides the order and cut
// of the data and the sums: data.tags, data.microbatch, data.microbatches_per_step,
// data.directions, data.max_tokens, optim.optimizer, optim.virtual_replicas. All else (rates, how
// long, where) may change between starts.
absl::Status CheckSameRun(const Manifest& manifest, const RunIdentity& identity,
                          const RunSpec& run);

}  // namespace deepnet
