// Deleting old checkpoints by hand, by the rule that training follows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "trainer/checkpoint/tools/tool_options.h"

namespace deepnet {

struct PrunePlan {
  std::vector<int64_t> delete_steps;  // ascending
  int64_t delete_bytes = 0;           // of all their files
  int64_t kept = 0;                   // number of checkpoints that stay
};

// What PruneRun() would delete: all but the `keep_latest` latest checkpoints (at least one stays)
// and those that best-* pointers name. Changes nothing. Error, with ExitCode::kCheckpoint, where a
// pointer cannot be read: then nothing is deleted either.
absl::StatusOr<PrunePlan> PlanPrune(FileSystem& fs, const std::string& run_folder, int keep_latest,
                                    const ToolOptions& options);

// Deletes it, as DeleteOldCheckpoints() of retention.h does: only after the newest checkpoint was
// read and found whole. Returns what was deleted.
absl::StatusOr<PrunePlan> PruneRun(FileSystem& fs, const std::string& run_folder, int keep_latest,
                                   const ToolOptions& options);

}  // namespace deepnet
