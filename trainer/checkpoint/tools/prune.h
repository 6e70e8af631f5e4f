// Deleting old checkpoints by hand, by the rule that training follows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "trainer/checkpoint/run_lock.h"
#include "trainer/checkpoint/tools/tool_options.h"

namespace deepnet {

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

// What PruneRun() would delete. Changes nothing, and may be asked while a run writes. Error, with
// ExitCode::kCheckpoint, where a pointer cannot be read: then nothing is deleted either.
absl::StatusOr<PrunePlan> PlanPrune(FileSystem& fs, const std::string& run_folder,
                                    const PruneRule& rule, const ToolOptions& options);

// Deletes it, as DeleteOldCheckpoints() of retention.h does: only after the newest checkpoint was
// read and found whole. Holds the folder's lock meanwhile: kAlreadyExists (ExitCode::kCheckpoint)
// naming the owner where a run has it, and no run can begin. Returns what was deleted.
absl::StatusOr<PrunePlan> PruneRun(FileSystem& fs, const std::string& run_folder,
                                   const PruneRule& rule, const RunLockOptions& lock_options,
                                   const ToolOptions& options);

}  // namespace deepnet
