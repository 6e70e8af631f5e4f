// A run goes back to an earlier checkpoint of its own, without a new start.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "parallel/base/logging.h"
#include "proto/checkpoint.pb.h"
#include "trainer/checkpoint/run_lock.h"
#include "trainer/rank_context.h"

namespace deepnet {

// Loads weights and moments of the newest intact checkpoint of `run_folder` that has at most `step`
// steps, or else of the oldest that has more; then deletes all newer ones, since a run that is
// resumed takes the newest. Returns the manifest of the checkpoint, without files and without best
// scores whose checkpoints are gone; none, with nothing changed, if the run has no intact
// checkpoint. `lock` is rank 0's, null elsewhere. No save is under way.
//
// Collective over context.world; every rank gets the same.
absl::StatusOr<std::optional<Manifest>> GoBack(FileSystem& fs, const std::string& run_folder,
                                               int64_t step, RunLock* lock, RankContext& context,
                                               Logger& log);

}  // namespace deepnet
