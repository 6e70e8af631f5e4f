// Which checkpoints of a run may go.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "parallel/base/file_system.h"

namespace deepnet {

// Of `steps`, in any order, those to delete, ascending: all but the `keep_latest` greatest (the
// greatest is kept even for 0), those in `best`, and multiples of `keep_every_steps` (> 0; 0 itself
// is none).
std::vector<int64_t> CheckpointsToDelete(std::span<const int64_t> steps, int keep_latest,
                                         std::span<const int64_t> best,
                                         int64_t keep_every_steps = 0);

// Deletes those checkpoints of a run, where `best` is what its best-<metric> pointers name. First
// reads and verifies the newest checkpoint: if that is damaged, this fails and nothing is deleted.
// A deletion cut short leaves nothing that looks like a checkpoint. Ends early, with OK, soon after
// `*cancel` becomes true.
absl::Status DeleteOldCheckpoints(FileSystem& fs, const std::string& run_folder, int keep_latest,
                                  int64_t keep_every_steps = 0,
                                  const std::atomic<bool>* cancel = nullptr);

}  // namespace deepnet
