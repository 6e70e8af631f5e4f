#include "trainer/checkpoint/retention.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/format.h"
#include "trainer/checkpoint/tools/inspect.h"

namespace deepnet {
namespace {

// Under its temporary name it is no checkpoint any more, whatever is still in it.
absl::Status DeleteCheckpoint(FileSystem& fs, const std::string& run_folder, int64_t step) {
  const std::string folder = JoinPath(run_folder, CheckpointName(step));
  const std::string temporary = absl::StrCat(folder, kUnfinishedEnd);
  RETURN_IF_ERROR(fs.Rename(folder, temporary));
  RETURN_IF_ERROR(fs.SyncFolder(run_folder));
  return fs.DeleteTree(temporary);
}

// The checkpoints of a run, by step, ascending.
struct RunSteps {
  std::vector<int64_t> all;
  std::vector<int64_t> old = {};  // those to delete
};

absl::StatusOr<RunSteps> FindOld(FileSystem& fs, const std::string& run_folder,
                                 const RetentionRule& rule) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(run_folder));
  std::vector<int64_t> best;
  for (const std::string& name : names) {
    if (!absl::StartsWith(name, kBestPointerPrefix)) continue;
    ASSIGN_OR_RETURN(const int64_t step, GetPointer(fs, run_folder, name));
    best.push_back(step);
  }
  RunSteps steps{.all = CheckpointSteps(names)};
  steps.old = CheckpointsToDelete(steps.all, best, rule);
  return steps;
}

// Removes the best scores of `manifest` whose checkpoints are gone, and sets the pointers by what
// is left.
absl::Status SetBestPointers(FileSystem& fs, const std::string& run_folder,
                             const std::vector<std::string>& names, Manifest& manifest) {
  const auto is_there = [&](int64_t step) {
    return std::count(names.begin(), names.end(), CheckpointName(step)) > 0;
  };
  std::vector<BestScore> kept;
  for (const BestScore& best : manifest.best()) {
    if (best.step() <= manifest.step() && is_there(best.step())) kept.push_back(best);
  }
  manifest.mutable_best()->Assign(kept.begin(), kept.end());
  for (const std::string& name : names) {
    if (!absl::StartsWith(name, kBestPointerPrefix)) continue;
    const auto best = std::find_if(kept.begin(), kept.end(), [&](const BestScore& score) {
      return absl::StrCat(kBestPointerPrefix, score.metric()) == name;
    });
    RETURN_IF_ERROR(best != kept.end() ? SetPointer(fs, run_folder, name, best->step())
                                       : fs.Delete(JoinPath(run_folder, name)));
  }
  return fs.SyncFolder(run_folder);
}

}  // namespace

absl::Status DeleteNewerCheckpoints(FileSystem& fs, const std::string& run_folder,
                                    Manifest& manifest) {
  const auto remove = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(run_folder));
    std::vector<int64_t> steps = CheckpointSteps(names);
    for (; !steps.empty() && steps.back() > manifest.step(); steps.pop_back()) {
      RETURN_IF_ERROR(DeleteCheckpoint(fs, run_folder, steps.back()));
    }
    RETURN_IF_ERROR(SetBestPointers(fs, run_folder, names, manifest));
    return SetPointer(fs, run_folder, kLatestPointer, manifest.step());
  };
  return CheckpointError(remove(),
                         absl::StrCat("deleting newer checkpoints of '", run_folder, "'"));
}

std::vector<int64_t> CheckpointsToDelete(std::span<const int64_t> steps,
                                         std::span<const int64_t> best, const RetentionRule& rule) {
  std::vector<int64_t> sorted(steps.begin(), steps.end());
  std::sort(sorted.begin(), sorted.end());
  // `back` is the checkpoint that the newest step would go back to. Later steps may go back to
  // newer ones, so those are kept too.
  int64_t back = rule.go_back_steps >= 0 ? 0 : std::numeric_limits<int64_t>::max();
  for (const int64_t step : sorted) {
    if (rule.go_back_steps >= 0 && step <= sorted.back() - rule.go_back_steps) back = step;
  }
  const size_t kept = std::min(sorted.size(), static_cast<size_t>(std::max(rule.keep_latest, 1)));
  sorted.resize(sorted.size() - kept);
  std::erase_if(sorted, [&](int64_t step) {
    const bool is_multiple =
        rule.keep_every_steps > 0 && step > 0 && step % rule.keep_every_steps == 0;
    return is_multiple || step >= back || std::find(best.begin(), best.end(), step) != best.end();
  });
  return sorted;
}

absl::Status DeleteOldCheckpoints(FileSystem& fs, const std::string& run_folder,
                                  const RetentionRule& rule, const std::atomic<bool>* cancel) {
  const auto remove = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const RunSteps steps, FindOld(fs, run_folder, rule));
    if (steps.old.empty()) return absl::OkStatus();
    const std::string newest = JoinPath(run_folder, CheckpointName(steps.all.back()));
    ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(fs, newest));
    RETURN_IF_ERROR(VerifyTensors(fs, newest, manifest, cancel));
    for (const int64_t step : steps.old) {
      if (cancel != nullptr && *cancel) break;
      RETURN_IF_ERROR(DeleteCheckpoint(fs, run_folder, step));
    }
    return absl::OkStatus();
  };
  return CheckpointError(remove(), absl::StrCat("deleting old checkpoints of '", run_folder, "'"));
}

absl::StatusOr<PrunePlan> PlanPrune(FileSystem& fs, const std::string& run_folder,
                                    const RetentionRule& rule, const ToolOptions& options) {
  ASSIGN_OR_RETURN(const RunListing listing, ListRun(fs, run_folder, ListDepth::kSizes, options));
  ASSIGN_OR_RETURN(RunSteps steps, FindOld(fs, run_folder, rule));
  PrunePlan plan{.delete_steps = std::move(steps.old)};
  plan.kept = static_cast<int64_t>(steps.all.size() - plan.delete_steps.size());
  for (const ListedCheckpoint& listed : listing.checkpoints) {
    const bool goes = std::count(plan.delete_steps.begin(), plan.delete_steps.end(), listed.step) &&
                      listed.folder == JoinPath(run_folder, CheckpointName(listed.step));
    if (goes) plan.delete_bytes += listed.bytes;
  }
  return plan;
}

absl::StatusOr<PrunePlan> PruneRun(FileSystem& fs, const std::string& run_folder,
                                   const RetentionRule& rule, const RunLockOptions& lock_options,
                                   const ToolOptions& options) {
  // Once without the lock, which would make a folder that does not exist.
  RETURN_IF_ERROR(PlanPrune(fs, run_folder, rule, options).status());
  ASSIGN_OR_RETURN(const std::unique_ptr<RunLock> lock,
                   RunLock::Acquire(fs, run_folder, MakeRunOwner(""), lock_options));
  ASSIGN_OR_RETURN(PrunePlan plan, PlanPrune(fs, run_folder, rule, options));
  RETURN_IF_ERROR(lock->Check());
  RETURN_IF_ERROR(DeleteOldCheckpoints(fs, run_folder, rule));
  return plan;
}

}  // namespace deepnet
