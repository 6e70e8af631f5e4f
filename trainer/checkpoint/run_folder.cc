// What lies in a run's folder: names, pointers, and which checkpoint to go on from. Pointers are a
// convenience for people and scripts; going on trusts only what it has read and verified.
#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/format.h"

namespace deepnet {
namespace {

constexpr char kStepPrefix[] = "step-";
constexpr int64_t kMaxPointerBytes = 100;

// A folder that may be a checkpoint. Better ones compare greater: later steps first, and of one
// step that which was not replaced.
struct Candidate {
  int64_t step;
  bool current;
  std::string name;

  bool operator>(const Candidate& other) const {
    return std::tie(step, current) > std::tie(other.step, other.current);
  }
};

// Best first. Unfinished ones get a note instead.
std::vector<Candidate> FindCandidates(const std::string& run_folder,
                                      const std::vector<std::string>& names,
                                      std::vector<std::string>& notes) {
  std::vector<Candidate> candidates;
  for (const std::string& name : names) {
    std::string base = name;
    const bool unfinished = absl::EndsWith(base, kTemporarySuffix);
    const bool replaced = absl::EndsWith(base, kReplacedSuffix);
    if (unfinished || replaced) base.resize(base.size() - 4);
    const std::optional<int64_t> step = StepOfCheckpointName(base);
    if (!step.has_value()) continue;
    if (unfinished) {
      notes.push_back(absl::StrCat("'", JoinPath(run_folder, name), "' was never finished"));
    } else {
      candidates.push_back({*step, !replaced, name});
    }
  }
  std::sort(candidates.begin(), candidates.end(), std::greater<>());
  return candidates;
}

absl::StatusOr<Manifest> ReadVerified(FileSystem& fs, const std::string& folder, int64_t step) {
  ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(fs, folder));
  if (manifest.step() != step) {
    return CheckpointError(
        absl::DataLossError(absl::StrCat("its manifest says step ", manifest.step())),
        absl::StrCat("'", folder, "' has a wrong name"));
  }
  RETURN_IF_ERROR(VerifyTensors(fs, folder, manifest));
  return manifest;
}

absl::StatusOr<int64_t> ReadPointerFile(FileSystem& fs, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string contents, ReadWholeFile(fs, path, kMaxPointerBytes));
  const std::optional<int64_t> step =
      StepOfCheckpointName(std::string(absl::StripSuffix(contents, "\n")));
  if (step.has_value()) return *step;
  return absl::DataLossError("it does not name a checkpoint, such as step-00000010");
}

}  // namespace

std::string CheckpointName(int64_t step) { return absl::StrFormat("%s%08d", kStepPrefix, step); }

std::optional<int64_t> StepOfCheckpointName(std::string_view name) {
  const std::string_view prefix = kStepPrefix;
  if (name.substr(0, prefix.size()) != prefix) return std::nullopt;
  const std::string digits(name.substr(prefix.size()));
  int64_t step = 0;
  const bool is_number = std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit) &&
                         absl::SimpleAtoi(digits, &step);
  if (!is_number || CheckpointName(step) != name) return std::nullopt;
  return step;
}

absl::Status SetPointer(FileSystem& fs, const std::string& run_folder, const std::string& pointer,
                        int64_t step) {
  const std::string path = JoinPath(run_folder, pointer);
  return CheckpointError(ReplaceFile(fs, path, absl::StrCat(CheckpointName(step), "\n")),
                         absl::StrCat("pointer '", path, "'"));
}

absl::StatusOr<int64_t> GetPointer(FileSystem& fs, const std::string& run_folder,
                                   const std::string& pointer) {
  const std::string path = JoinPath(run_folder, pointer);
  absl::StatusOr<int64_t> step = ReadPointerFile(fs, path);
  if (!step.ok()) return CheckpointError(step.status(), absl::StrCat("pointer '", path, "'"));
  return step;
}

absl::StatusOr<std::optional<FoundCheckpoint>> FindLatest(FileSystem& fs,
                                                          const std::string& run_folder) {
  const absl::StatusOr<std::vector<std::string>> names = fs.List(run_folder);
  if (absl::IsNotFound(names.status())) return std::nullopt;
  if (!names.ok()) return CheckpointError(names.status(), "looking for checkpoints");
  FoundCheckpoint found;
  const std::vector<Candidate> candidates = FindCandidates(run_folder, *names, found.notes);
  for (const Candidate& candidate : candidates) {
    found.folder = JoinPath(run_folder, candidate.name);
    absl::StatusOr<Manifest> manifest = ReadVerified(fs, found.folder, candidate.step);
    if (manifest.ok()) {
      found.manifest = *std::move(manifest);
      return found;
    }
    found.notes.emplace_back(manifest.status().message());
  }
  if (candidates.empty()) return std::nullopt;
  return CheckpointError(absl::DataLossError(absl::StrJoin(found.notes, "; ")),
                         absl::StrCat("'", run_folder, "' has no complete checkpoint"));
}

absl::StatusOr<std::string> ResolveCheckpoint(FileSystem& fs, const std::string& path) {
  const std::string context = absl::StrCat("checkpoint '", path, "'");
  const absl::StatusOr<bool> is_checkpoint = fs.Exists(JoinPath(path, kManifestFile));
  if (!is_checkpoint.ok()) return CheckpointError(is_checkpoint.status(), context);
  if (*is_checkpoint) return path;
  if (!fs.List(path).ok()) {
    const absl::StatusOr<int64_t> step = ReadPointerFile(fs, path);
    if (!step.ok()) return CheckpointError(step.status(), context);
    return JoinPath(ParentFolder(path), CheckpointName(*step));
  }
  ASSIGN_OR_RETURN(const std::optional<FoundCheckpoint> latest, FindLatest(fs, path));
  if (latest.has_value()) return latest->folder;
  return CheckpointError(absl::NotFoundError("the folder holds no checkpoint"), context);
}

}  // namespace deepnet
