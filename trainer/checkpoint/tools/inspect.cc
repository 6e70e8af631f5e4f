#include "trainer/checkpoint/tools/inspect.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/format.h"
#include "trainer/checkpoint/tools/tensor_reader.h"

namespace deepnet {
namespace {

// Reads step and state from a name in a run folder; nullopt if it is no checkpoint.
std::optional<ListedCheckpoint> FromName(const std::string& run_folder, std::string name) {
  ListedCheckpoint listed{.folder = JoinPath(run_folder, name)};
  if (absl::EndsWith(name, kTemporarySuffix)) listed.state = CheckpointState::kUnfinished;
  if (absl::EndsWith(name, kReplacedSuffix)) listed.state = CheckpointState::kReplaced;
  if (listed.state != CheckpointState::kIntact) name.resize(name.size() - 4);
  const std::optional<int64_t> step = StepOfCheckpointName(name);
  if (!step.has_value()) return std::nullopt;
  listed.step = *step;
  return listed;
}

int64_t FolderBytes(FileSystem& fs, const std::string& folder) {
  int64_t bytes = 0;
  const absl::StatusOr<std::vector<std::string>> names = fs.List(folder);
  if (!names.ok()) return 0;
  for (const std::string& name : *names) bytes += fs.Size(JoinPath(folder, name)).value_or(0);
  return bytes;
}

// Returns what is wrong with the files of `manifest`, a sentence each.
absl::StatusOr<std::vector<std::string>> Problems(FileSystem& fs, const std::string& folder,
                                                  const Manifest& manifest, ListDepth depth,
                                                  const ToolOptions& options) {
  std::vector<std::string> problems;
  if (depth == ListDepth::kContents) {
    ASSIGN_OR_RETURN(const VerifyReport report, VerifyCheckpoint(fs, folder, options));
    for (const Damage& damage : report.damage) problems.push_back(damage.text);
    return problems;
  }
  for (const ShardFile& file : manifest.files()) {
    BlockReader reader(fs, JoinPath(folder, file.file()), file, manifest.block_bytes());
    const absl::Status status = reader.CheckSize();
    if (!status.ok()) problems.emplace_back(status.message());
  }
  return problems;
}

// Reads the folder and completes `listed`. Fails only if memory is too little.
absl::Status Examine(FileSystem& fs, ListDepth depth, const ToolOptions& options,
                     ListedCheckpoint& listed) {
  listed.bytes = FolderBytes(fs, listed.folder);
  if (listed.state == CheckpointState::kUnfinished) return absl::OkStatus();
  absl::StatusOr<Manifest> manifest = ReadManifestWithin(fs, listed.folder, options);
  if (absl::IsResourceExhausted(manifest.status())) return manifest.status();
  if (!manifest.ok()) {
    listed.problems.emplace_back(manifest.status().message());
  } else {
    ASSIGN_OR_RETURN(listed.problems, Problems(fs, listed.folder, *manifest, depth, options));
    if (manifest->step() != listed.step) {
      listed.problems.push_back(absl::StrCat(
          "'", listed.folder, "' has a wrong name: its manifest says step ", manifest->step()));
    }
    manifest->clear_files();
    listed.manifest = *std::move(manifest);
  }
  if (!listed.problems.empty()) listed.state = CheckpointState::kDamaged;
  return absl::OkStatus();
}

bool IsPointer(const std::string& name) {
  if (absl::EndsWith(name, kTemporarySuffix)) return false;
  return name == kLatestPointer || absl::StartsWith(name, kBestPointerPrefix);
}

void AddMark(FileSystem& fs, const std::string& run_folder, const std::string& pointer,
             RunListing& listing) {
  const absl::StatusOr<int64_t> step = GetPointer(fs, run_folder, pointer);
  if (!step.ok()) {
    listing.notes.emplace_back(step.status().message());
    return;
  }
  for (ListedCheckpoint& listed : listing.checkpoints) {
    if (listed.folder != JoinPath(run_folder, CheckpointName(*step))) continue;
    listed.marks.push_back(pointer);
    return;
  }
  listing.notes.push_back(
      absl::StrCat("'", pointer, "' names ", CheckpointName(*step), ", which is not there"));
}

}  // namespace

absl::StatusOr<VerifyReport> VerifyCheckpoint(FileSystem& fs, const std::string& checkpoint_folder,
                                              const ToolOptions& options) {
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifestWithin(fs, checkpoint_folder, options));
  VerifyReport report{.folder = checkpoint_folder,
                      .step = manifest.step(),
                      .files = manifest.files_size(),
                      .bytes = TensorBytes(manifest),
                      .tensors = static_cast<int64_t>(IndexTensors(manifest).size())};
  int64_t done = 0;
  for (const ShardFile& file : manifest.files()) {
    const std::string path = JoinPath(checkpoint_folder, file.file());
    BlockReader reader(fs, path, file, manifest.block_bytes());
    report.blocks += reader.num_blocks();
    const auto note = [&](int64_t block, int64_t begin, int64_t end, const absl::Status& status) {
      if (status.ok()) return;
      report.damage.push_back({file.file(), block, begin, end, std::string(status.message()),
                               TensorsIn(file, begin, end)});
    };
    // The blocks of a file of another size are verified all the same, unless it is missing.
    const absl::StatusOr<int64_t> size = fs.Size(path);
    note(-1, std::min(size.value_or(0), file.bytes()), file.bytes(), reader.CheckSize());
    for (int64_t block = 0; size.ok() && block < reader.num_blocks(); ++block) {
      note(block, reader.Begin(block), reader.End(block), reader.Read(block));
      done += reader.End(block) - reader.Begin(block);
      options.progress(done, report.bytes);
    }
  }
  return report;
}

absl::StatusOr<RunListing> ListRun(FileSystem& fs, const std::string& run_folder, ListDepth depth,
                                   const ToolOptions& options) {
  const absl::StatusOr<std::vector<std::string>> names = fs.List(run_folder);
  if (!names.ok()) return CheckpointError(names.status(), "listing checkpoints");
  RunListing listing;
  for (const std::string& name : *names) {
    std::optional<ListedCheckpoint> listed = FromName(run_folder, name);
    if (!listed.has_value()) continue;
    RETURN_IF_ERROR(Examine(fs, depth, options, *listed));
    listing.checkpoints.push_back(*std::move(listed));
  }
  std::ranges::sort(listing.checkpoints, {}, [](const ListedCheckpoint& listed) {
    return std::tie(listed.step, listed.folder);
  });
  for (const std::string& name : *names) {
    if (IsPointer(name)) AddMark(fs, run_folder, name, listing);
  }
  return listing;
}

absl::StatusOr<std::string> ChooseCheckpoint(FileSystem& fs, const std::string& path,
                                             const ToolOptions& options) {
  std::string folder = path;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  const absl::StatusOr<std::vector<std::string>> names = fs.List(folder);
  if (!names.ok() || std::ranges::count(*names, kManifestFile) > 0) {
    return ResolveCheckpoint(fs, folder);
  }
  ASSIGN_OR_RETURN(const RunListing listing, ListRun(fs, folder, ListDepth::kSizes, options));
  const std::vector<ListedCheckpoint>& all = listing.checkpoints;
  const auto newest = std::find_if(all.rbegin(), all.rend(), [](const ListedCheckpoint& listed) {
    return listed.manifest.format_version() != 0;
  });
  if (newest != all.rend()) return newest->folder;
  return CheckpointError(absl::NotFoundError("the folder holds no checkpoint that can be read"),
                         absl::StrCat("'", folder, "'"));
}

}  // namespace deepnet
