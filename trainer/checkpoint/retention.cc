#include "trainer/checkpoint/retention.h"

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/format.h"

namespace deepnet {
namespace {

bool IsSet(const std::atomic<bool>* flag) { return flag != nullptr && *flag; }

// Under its temporary name it is no checkpoint any more, whatever is still in it.
absl::Status DeleteCheckpoint(FileSystem& fs, const std::string& run_folder, int64_t step) {
  const std::string folder = JoinPath(run_folder, CheckpointName(step));
  const std::string temporary = absl::StrCat(folder, kTemporarySuffix);
  RETURN_IF_ERROR(fs.Rename(folder, temporary));
  RETURN_IF_ERROR(fs.SyncFolder(run_folder));
  return DeleteTree(fs, temporary);
}

// File by file, so that it can be left.
absl::Status VerifyUnless(const std::atomic<bool>* cancel, FileSystem& fs,
                          const std::string& folder) {
  ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(fs, folder));
  google::protobuf::RepeatedPtrField<ShardFile> files;
  files.Swap(manifest.mutable_files());
  for (ShardFile& file : files) {
    if (IsSet(cancel)) return absl::OkStatus();
    manifest.clear_files();
    manifest.add_files()->Swap(&file);
    RETURN_IF_ERROR(VerifyTensors(fs, folder, manifest));
  }
  return absl::OkStatus();
}

absl::Status DeleteOld(FileSystem& fs, const std::string& run_folder, int keep_latest,
                       int64_t keep_every_steps, const std::atomic<bool>* cancel) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(run_folder));
  std::vector<int64_t> steps, best;
  for (const std::string& name : names) {
    if (const std::optional<int64_t> step = StepOfCheckpointName(name)) steps.push_back(*step);
    const bool is_pointer =
        absl::StartsWith(name, kBestPointerPrefix) && !absl::EndsWith(name, kTemporarySuffix);
    if (!is_pointer) continue;
    ASSIGN_OR_RETURN(const int64_t step, GetPointer(fs, run_folder, name));
    best.push_back(step);
  }
  const std::vector<int64_t> old = CheckpointsToDelete(steps, keep_latest, best, keep_every_steps);
  if (old.empty()) return absl::OkStatus();

  const int64_t newest_step = *std::max_element(steps.begin(), steps.end());
  const std::string newest = JoinPath(run_folder, CheckpointName(newest_step));
  RETURN_IF_ERROR(VerifyUnless(cancel, fs, newest));
  for (const int64_t step : old) {
    if (IsSet(cancel)) break;
    RETURN_IF_ERROR(DeleteCheckpoint(fs, run_folder, step));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<int64_t> CheckpointsToDelete(std::span<const int64_t> steps, int keep_latest,
                                         std::span<const int64_t> best, int64_t keep_every_steps) {
  std::vector<int64_t> sorted(steps.begin(), steps.end());
  std::sort(sorted.begin(), sorted.end());
  const size_t kept = std::min(sorted.size(), static_cast<size_t>(std::max(keep_latest, 1)));
  sorted.resize(sorted.size() - kept);
  std::erase_if(sorted, [&](int64_t step) {
    const bool is_multiple = keep_every_steps > 0 && step > 0 && step % keep_every_steps == 0;
    return is_multiple || std::find(best.begin(), best.end(), step) != best.end();
  });
  return sorted;
}

absl::Status DeleteOldCheckpoints(FileSystem& fs, const std::string& run_folder, int keep_latest,
                                  int64_t keep_every_steps, const std::atomic<bool>* cancel) {
  return CheckpointError(DeleteOld(fs, run_folder, keep_latest, keep_every_steps, cancel),
                         absl::StrCat("deleting old checkpoints of '", run_folder, "'"));
}

}  // namespace deepnet
