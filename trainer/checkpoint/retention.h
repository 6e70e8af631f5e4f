// Which checkpoints of a run are kept, in training and by `deepnet checkpoint prune`.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "proto/checkpoint.pb.h"
#include "trainer/checkpoint/run_lock.h"
#include "trainer/checkpoint/tools/tool_options.h"

namespace deepnet {

// Returns those of `steps`, given in any order, whose checkpoints are to be deleted, ascending: all
// but the `keep_latest` greatest (the greatest is kept even for 0), those in `best`, and multiples
// of `keep_every_steps` (> 0; 0 itself is none). With `go_back_steps` >= 0, for a run that may have
// to go back, the newest that is so many steps behind the greatest is kept too, and all that are
// newer; all, if none is.
std::vector<int64_t> CheckpointsToDelete(std::span<const int64_t> steps, int keep_latest,
                                         std::span<const int64_t> best,
                                         int64_t keep_every_steps = 0, int64_t go_back_steps = -1);

// Deletes those checkpoints of a run, where `best` is what its best-<metric> pointers name. First
// reads and verifies the newest checkpoint: if that is damaged, this fails and nothing is deleted.
// A deletion cut short leaves nothing that looks like a checkpoint. Ends early, with OK, soon after
// `*cancel` becomes true. The caller holds the folder's lock.
absl::Status DeleteOldCheckpoints(FileSystem& fs, const std::string& run_folder, int keep_latest,
                                  int64_t keep_every_steps = 0,
                                  const std::atomic<bool>* cancel = nullptr,
                                  int64_t go_back_steps = -1);

// Deletes the checkpoints with more steps than `manifest` has, the newest first, so that a run
// which is resumed goes on from there at the latest. Pointers to them are set back: `latest` to
// that checkpoint, best-<metric> to what `manifest` calls the best; where that is gone too, pointer
// and entry are removed. The caller holds the folder's lock.
absl::Status DeleteNewerCheckpoints(FileSystem& fs, const std::string& run_folder,
                                    Manifest& manifest);

// Which checkpoints stay, besides those that best-* pointers name.
struct PruneRule {
  int keep_latest = 1;           // at least one stays
  int64_t keep_every_steps = 0;  // > 0: multiples of it stay, but for step 0
};

struct PrunePlan {
  std::vector<int64_t> delete_steps;  // ascending
  int64_t delete_bytes = 0;           // of all their files
  int64_t kept = 0;                   // number of checkpoints that stay
};

// Returns what PruneRun() would delete. Changes nothing, and may be asked while a run writes. Fails
// with ExitCode::kCheckpoint if a pointer cannot be read: then nothing is deleted either.
absl::StatusOr<PrunePlan> PlanPrune(FileSystem& fs, const std::string& run_folder,
                                    const PruneRule& rule, const ToolOptions& options);

// DeleteOldCheckpoints() under the folder's lock. Returns what was deleted. Fails with
// kAlreadyExists (ExitCode::kCheckpoint), naming the owner, while a run holds the lock; no run can
// begin meanwhile.
absl::StatusOr<PrunePlan> PruneRun(FileSystem& fs, const std::string& run_folder,
                                   const PruneRule& rule, const RunLockOptions& lock_options,
                                   const ToolOptions& options);

}  // namespace deepnet
