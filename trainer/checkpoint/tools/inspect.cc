#include "trainer/checkpoint/tools/inspect.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/communicator.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/format.h"

namespace deepnet {
namespace {

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
    const absl::Status status = BlockReader(fs, folder, file, manifest.block_bytes()).CheckSize();
    if (!status.ok()) problems.emplace_back(status.message());
  }
  return problems;
}

// Reads the folder and completes `listed`. Fails only if memory is too little.
absl::Status Examine(FileSystem& fs, ListDepth depth, const ToolOptions& options,
                     ListedCheckpoint& listed) {
  for (const std::string& name : fs.List(listed.folder).value_or(std::vector<std::string>())) {
    listed.bytes += fs.Size(JoinPath(listed.folder, name)).value_or(0);
  }
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

// Compares this rank's blocks with their checksums: of all blocks in a row, ranks have about
// equally many. Those of a file of another size are read all the same, unless it is missing.
DamagedBlocks ReadBlocks(FileSystem& fs, const VerifyReport& report, const Manifest& manifest,
                         const Communicator& world, const ToolProgress& progress) {
  const std::string& folder = report.folder;
  const int64_t begin = report.blocks * world.rank() / world.size();
  const int64_t end = report.blocks * (world.rank() + 1) / world.size();
  const auto for_each = [&](const auto& visit) {
    int64_t next = 0;  // in the row
    for (int file = 0; file < manifest.files_size(); ++file) {
      BlockReader reader(fs, folder, manifest.files(file), manifest.block_bytes());
      for (int64_t block = 0; block < reader.num_blocks(); ++block, ++next) {
        if (next >= begin && next < end) visit(file, block, reader);
      }
    }
  };
  DamagedBlocks damaged;
  int64_t done = 0, total = 0;  // bytes
  for_each([&](int, int64_t block, const BlockReader& reader) {
    total += reader.End(block) - reader.Begin(block);
  });
  for_each([&](int file, int64_t block, BlockReader& reader) {
    if (!fs.Size(JoinPath(folder, manifest.files(file).file())).ok()) return;
    const absl::Status status = reader.Read(block);
    progress(done += reader.End(block) - reader.Begin(block), total);
    if (status.ok()) return;
    DamagedBlock& found = *damaged.add_blocks();
    found.set_file(file);
    found.set_block(block);
    found.set_text(std::string(status.message()));
  });
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
  const DamagedBlocks mine = ReadBlocks(fs, report, manifest, world, options.progress);
  ASSIGN_OR_RETURN(const std::vector<DamagedBlocks> all, AllGatherMessages(world, mine));
  DamagedBlocks damaged;
  for (const DamagedBlocks& part : all) damaged.MergeFrom(part);
  auto next = damaged.blocks().begin();
  for (int i = 0; i < manifest.files_size(); ++i) {
    const ShardFile& file = manifest.files(i);
    const std::string path = JoinPath(checkpoint_folder, file.file());
    BlockReader reader(fs, checkpoint_folder, file, manifest.block_bytes());
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
    const std::optional<int64_t> step = StepOfCheckpointFolder(name);
    if (!step.has_value()) continue;
    ListedCheckpoint listed{.folder = JoinPath(run_folder, name), .step = *step};
    if (StateEnd(name) == kUnfinishedEnd) listed.state = CheckpointState::kUnfinished;
    if (StateEnd(name) == kReplacedEnd) listed.state = CheckpointState::kReplaced;
    RETURN_IF_ERROR(Examine(fs, depth, options, listed));
    listing.checkpoints.push_back(std::move(listed));
  }
  std::ranges::sort(listing.checkpoints, {}, [](const ListedCheckpoint& listed) {
    return std::tuple(listed.step, StateEnd(listed.folder).empty(), listed.folder);
  });
  for (const std::string& name : *names) {
    const bool is_pointer = name == kLatestPointer || absl::StartsWith(name, kBestPointerPrefix);
    if (is_pointer) AddMark(fs, run_folder, name, listing);
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
