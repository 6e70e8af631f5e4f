#include "trainer/checkpoint/tools/inspect.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/communicator.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/format.h"
#include "trainer/checkpoint/tools/tensor_reader.h"

namespace deepnet {
namespace {

// Reads step and state from a name in a run folder; nullopt if it is no checkpoint.
std::optional<ListedCheckpoint> FromName(const std::string& run_folder, const std::string& name) {
  ListedCheckpoint listed{.folder = JoinPath(run_folder, name)};
  if (StateEnd(name) == kUnfinishedEnd) listed.state = CheckpointState::kUnfinished;
  if (StateEnd(name) == kReplacedEnd) listed.state = CheckpointState::kReplaced;
  const std::optional<int64_t> step = StepOfCheckpointFolder(name);
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

// Blocks [begin, end) of a file.
struct FileBlocks {
  int file = 0;  // index in Manifest.files
  int64_t begin = 0;
  int64_t end = 0;
};

// Returns the blocks that this rank reads: of all blocks in a row, ranks have about equally many.
std::vector<FileBlocks> ShareOf(const Communicator& world, const Manifest& manifest,
                                int64_t num_blocks) {
  const int64_t begin = num_blocks * world.rank() / world.size();
  const int64_t end = num_blocks * (world.rank() + 1) / world.size();
  std::vector<FileBlocks> share;
  int64_t first = 0;  // of the file, in the row
  for (int i = 0; i < manifest.files_size(); ++i) {
    const int64_t count = manifest.files(i).block_crc32c_size();
    const FileBlocks mine = {i, std::max<int64_t>(begin - first, 0), std::min(end - first, count)};
    if (mine.begin < mine.end) share.push_back(mine);
    first += count;
  }
  return share;
}

// Compares blocks with their checksums. Those of a file of another size are read all the same,
// unless it is missing.
DamagedBlocks ReadBlocks(FileSystem& fs, const std::string& folder, const Manifest& manifest,
                         const std::vector<FileBlocks>& share, const ToolOptions& options) {
  DamagedBlocks damaged;
  int64_t done = 0, total = 0;  // bytes
  const auto reader_of = [&](int file) {
    const ShardFile& it = manifest.files(file);
    return BlockReader(fs, JoinPath(folder, it.file()), it, manifest.block_bytes());
  };
  for (const FileBlocks& part : share) {
    const BlockReader reader = reader_of(part.file);
    total += reader.End(part.end - 1) - reader.Begin(part.begin);
  }
  for (const FileBlocks& part : share) {
    BlockReader reader = reader_of(part.file);
    if (!fs.Size(JoinPath(folder, manifest.files(part.file).file())).ok()) continue;
    for (int64_t block = part.begin; block < part.end; ++block) {
      const absl::Status status = reader.Read(block);
      options.progress(done += reader.End(block) - reader.Begin(block), total);
      if (status.ok()) continue;
      DamagedBlock& found = *damaged.add_blocks();
      found.set_file(part.file);
      found.set_block(block);
      found.set_text(std::string(status.message()));
    }
  }
  return damaged;
}

}  // namespace

absl::StatusOr<VerifyReport> VerifyCheckpoint(FileSystem& fs, const std::string& checkpoint_folder,
                                              const ToolOptions& options) {
  SelfCommunicator alone;
  Communicator& world = options.world != nullptr ? *options.world : alone;
  ASSIGN_OR_RETURN(const Manifest manifest,
                   AgreeOn(world, ReadManifestWithin(fs, checkpoint_folder, options)));
  VerifyReport report{.folder = checkpoint_folder,
                      .step = manifest.step(),
                      .files = manifest.files_size(),
                      .bytes = TensorBytes(manifest),
                      .tensors = static_cast<int64_t>(IndexTensors(manifest).size())};
  for (const ShardFile& file : manifest.files()) report.blocks += file.block_crc32c_size();
  const DamagedBlocks mine =
      ReadBlocks(fs, checkpoint_folder, manifest, ShareOf(world, manifest, report.blocks), options);
  ASSIGN_OR_RETURN(const std::vector<DamagedBlocks> all, AllGatherMessages(world, mine));
  DamagedBlocks damaged;
  for (const DamagedBlocks& part : all) damaged.MergeFrom(part);
  auto next = damaged.blocks().begin();
  for (int i = 0; i < manifest.files_size(); ++i) {
    const ShardFile& file = manifest.files(i);
    const std::string path = JoinPath(checkpoint_folder, file.file());
    BlockReader reader(fs, path, file, manifest.block_bytes());
    const auto note = [&](int64_t block, int64_t begin, int64_t end, absl::string_view text) {
      report.damage.push_back(
          {file.file(), block, begin, end, std::string(text), TensorsIn(file, begin, end)});
    };
    const absl::Status status = reader.CheckSize();
    const int64_t size = std::min(fs.Size(path).value_or(0), file.bytes());
    if (!status.ok()) note(-1, size, file.bytes(), status.message());
    for (; next != damaged.blocks().end() && next->file() == i; ++next) {
      note(next->block(), reader.Begin(next->block()), reader.End(next->block()), next->text());
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
  const std::string folder = CheckpointPath(fs, path);
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
