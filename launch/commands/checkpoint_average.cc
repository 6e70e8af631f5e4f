#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "launch/commands/checkpoint_tools.h"
#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/tools/average.h"
#include "trainer/checkpoint/tools/run_listing.h"

namespace deepnet {
namespace {

constexpr int kMostCheckpoints = 1000;

// The latest `last` checkpoints of a run.
absl::StatusOr<std::vector<std::string>> LastOf(FileSystem& fs, const std::string& run_folder,
                                                int64_t last, const ToolOptions& options) {
  ASSIGN_OR_RETURN(const RunListing listing, ListRun(fs, run_folder, ListDepth::kSizes, options));
  std::vector<std::string> folders;
  for (const ListedCheckpoint& listed : listing.checkpoints) {
    const bool current = listed.folder == JoinPath(run_folder, CheckpointName(listed.step));
    if (current) folders.push_back(listed.folder);
  }
  if (static_cast<int64_t>(folders.size()) < last) {
    return WithExitCode(absl::NotFoundError(absl::StrCat("'", run_folder, "' has ", folders.size(),
                                                         " checkpoints; --last asks for ", last)),
                        ExitCode::kCheckpoint);
  }
  folders.erase(folders.begin(), folders.end() - last);
  return folders;
}

absl::StatusOr<std::vector<std::string>> FoldersOf(const CommandLine& line, FileSystem& fs,
                                                   const ToolOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<std::string> paths,
                   PathArguments(line, 1, "RUN, or several CHECKPOINTs"));
  if (line.flags.Given("last")) {
    ASSIGN_OR_RETURN(const int64_t last, IntegerFrom(line, "last", 1, kMostCheckpoints));
    if (paths.size() == 1) return LastOf(fs, paths[0], last, options);
    return BadFlag("--last: takes one run folder");
  }
  if (paths.size() == 1) {
    return WithExitCode(
        absl::InvalidArgumentError("--last: required with one run folder; or name the checkpoints"),
        ExitCode::kBadConfig);
  }
  std::vector<std::string> folders;
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(std::string folder, ChooseCheckpoint(fs, path, options));
    folders.push_back(std::move(folder));
  }
  return folders;
}

absl::Status RunAverage(const CommandLine& line) {
  ToolBar bar(line, "average");
  ASSIGN_OR_RETURN(const ToolOptions options, ReadToolOptions(line, bar));
  ASSIGN_OR_RETURN(const std::string output, OutputFolder(line));
  const std::unique_ptr<FileSystem> fs = OutputFileSystem(line);
  ASSIGN_OR_RETURN(const std::vector<std::string> folders, FoldersOf(line, *fs, options));
  ASSIGN_OR_RETURN(const std::string written, AverageCheckpoints(*fs, folders, output, options));
  line.out << written << "\n";
  return absl::OkStatus();
}

}  // namespace

Command MakeCheckpointAverageCommand() {
  return {
      .name = "average",
      .summary = "the mean of several checkpoints' weights",
      .description =
          "Adds the weights up in double, by ascending step, and rounds once. The result "
          "translates, scores and evaluates like any checkpoint (--checkpoint FOLDER); it has no "
          "moments, so no run goes on from it. `inspect` says what it was made of. Prints its "
          "folder.",
      .arguments = "RUN | CHECKPOINT...",
      .max_arguments = kMostCheckpoints,
      .flags = {{.name = "last",
                 .kind = FlagKind::kInteger,
                 .value = "K",
                 .help = "The latest K checkpoints of a run folder."},
                OutputFlag(),
                NoSyncFlag(),
                MemoryFlag()},
      .run = RunAverage};
}

}  // namespace deepnet
