// Says which checkpoints of a run are kept, in training and by `deepnet checkpoint prune`.
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
#include "trainer/checkpoint/tools/tensor_reader.h"

namespace deepnet {

// Which checkpoints of a run stay, besides those that its best-<metric> pointers name.
struct RetentionRule {
  int keep_latest = 1;           // the newest stays even for 0
  int64_t keep_every_steps = 0;  // > 0: multiples of it stay, but for step 0
  // >= 0, for a run that may have to go back: the newest stays that is so many steps behind the
  // newest of all, and all after it; all stay if none is.
  int64_t go_back_steps = -1;
};

// Returns those of `steps`, given in any order, whose checkpoints are to be deleted, ascending.
std::vector<int64_t> CheckpointsToDelete(std::span<const int64_t> steps,
                                         std::span<const int64_t> best, const RetentionRule& rule);

// Deletes those checkpoints of a run. First reads and verifies the newest checkpoint: if that is
// damaged, this fails and nothing is deleted. A deletion cut short leaves nothing that looks like a
// checkpoint. Ends early, with OK, soon after `*cancel` becomes true. The caller holds the folder's
// lock.
absl::Status DeleteOldCheckpoints(FileSystem& fs, const std::string& run_folder,
                                  const RetentionRule& rule,
                                  const std::atomic<bool>* cancel = nullptr);

// Deletes the checkpoints with more steps than `manifest` has, the newest first, so that a run
// which is resumed goes on from there at the latest. Pointers to them are set back: `latest` to
// that checkpoint, best-<metric> to what `manifest` calls the best; where that is gone too, pointer
// and entry are removed. The caller holds the folder's lock.
absl::Status DeleteNewerCheckpoints(FileSystem& fs, const std::string& run_folder,
                                    Manifest& manifest);

struct PrunePlan {
  std::vector<int64_t> delete_steps;  // ascending
  int64_t delete_bytes = 0;           // of all their files
  int64_t kept = 0;                   // number of checkpoints that stay
};

// Returns what PruneRun() would delete. Changes nothing, and may be asked while a run writes. Fails
// with ExitCode::kCheckpoint if a pointer cannot be read: then nothing is deleted either.
absl::StatusOr<PrunePlan> PlanPrune(FileSystem& fs, const std::string& run_folder,
                                    const RetentionRule& rule, const ToolOptions& options);

// DeleteOldCheckpoints() under the folder's lock. Returns what was deleted. Fails with
// kAlreadyExists (ExitCode::kCheckpoint), naming the owner, while a run holds the lock; no run can
// begin meanwhile.
absl::StatusOr<PrunePlan> PruneRun(FileSystem& fs, const std::string& run_folder,
                                   const RetentionRule& rule, const RunLockOptions& lock_options,
                                   const ToolOptions& options);

}  // namespace deepnet
