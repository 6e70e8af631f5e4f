#include "trainer/checkpoint/tools/prune.h"

#include <algorithm>
#include <memory>

#include "absl/strings/match.h"

#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/format.h"
#include "trainer/checkpoint/retention.h"
#include "trainer/checkpoint/run_owner.h"
#include "trainer/checkpoint/tools/run_listing.h"

namespace deepnet {

absl::StatusOr<PrunePlan> PlanPrune(FileSystem& fs, const std::string& run_folder,
                                    const PruneRule& rule, const ToolOptions& options) {
  ASSIGN_OR_RETURN(const RunListing listing, ListRun(fs, run_folder, ListDepth::kSizes, options));
  std::vector<int64_t> steps, best;
  for (const ListedCheckpoint& listed : listing.checkpoints) {
    if (listed.folder == JoinPath(run_folder, CheckpointName(listed.step))) {
      steps.push_back(listed.step);
    }
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(run_folder));
  for (const std::string& name : names) {
    if (!absl::StartsWith(name, kBestPointerPrefix) || absl::EndsWith(name, kTemporarySuffix)) {
      continue;
    }
    ASSIGN_OR_RETURN(const int64_t step, GetPointer(fs, run_folder, name));
    best.push_back(step);
  }
  PrunePlan plan{.delete_steps =
                     CheckpointsToDelete(steps, rule.keep_latest, best, rule.keep_every_steps)};
  plan.kept = static_cast<int64_t>(steps.size() - plan.delete_steps.size());
  for (const ListedCheckpoint& listed : listing.checkpoints) {
    const bool goes = std::count(plan.delete_steps.begin(), plan.delete_steps.end(), listed.step) &&
                      listed.folder == JoinPath(run_folder, CheckpointName(listed.step));
    if (goes) plan.delete_bytes += listed.bytes;
  }
  return plan;
}

absl::StatusOr<PrunePlan> PruneRun(FileSystem& fs, const std::string& run_folder,
                                   const PruneRule& rule, const RunLockOptions& lock_options,
                                   const ToolOptions& options) {
  // First of all without the lock, which would make a folder that does not exist.
  RETURN_IF_ERROR(PlanPrune(fs, run_folder, rule, options).status());
  ASSIGN_OR_RETURN(const std::unique_ptr<RunLock> lock,
                   RunLock::Acquire(fs, run_folder, MakeRunOwner(""), lock_options));
  ASSIGN_OR_RETURN(PrunePlan plan, PlanPrune(fs, run_folder, rule, options));
  RETURN_IF_ERROR(lock->Check());
  RETURN_IF_ERROR(DeleteOldCheckpoints(fs, run_folder, rule.keep_latest, rule.keep_every_steps));
  return plan;
}

}  // namespace deepnet
