#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "launch/commands/checkpoint_tools.h"
#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/tools/reshard.h"
#include "trainer/checkpoint/tools/run_listing.h"

namespace deepnet {
namespace {

constexpr int64_t kMostFiles = 99999;  // five digits in a file's name

absl::Status RunReshard(const CommandLine& line) {
  ToolBar bar(line, "reshard");
  ASSIGN_OR_RETURN(const ToolOptions options, ReadToolOptions(line, bar));
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, PathArguments(line, 1, "CHECKPOINT"));
  ASSIGN_OR_RETURN(const int64_t files, IntegerFrom(line, "files", 1, kMostFiles));
  ASSIGN_OR_RETURN(const std::string output, OutputFolder(line));
  const std::unique_ptr<FileSystem> fs = OutputFileSystem(line);
  ASSIGN_OR_RETURN(const std::string folder, ChooseCheckpoint(*fs, paths[0], options));
  ASSIGN_OR_RETURN(const std::string written,
                   ReshardCheckpoint(*fs, folder, static_cast<int>(files), output, options));
  line.out << written << "\n";
  return absl::OkStatus();
}

}  // namespace

Command MakeCheckpointReshardCommand() {
  return {.name = "reshard",
          .summary = "write a checkpoint anew over a number of files",
          .description =
              "Writes the same tensors into FOLDER, over N files of equal size, for copying "
              "or for other programs; continuing a run on another number of ranks never needs it. "
              "Every byte is compared with its checksum on the way. The copy is a checkpoint like "
              "any other, and is only there once it is complete. Prints its folder.",
          .arguments = "CHECKPOINT",
          .max_arguments = 1,
          .flags = {{.name = "files",
                     .kind = FlagKind::kInteger,
                     .value = "N",
                     .help = "How many files of tensors; required."},
                    OutputFlag(),
                    NoSyncFlag(),
                    MemoryFlag()},
          .run = RunReshard};
}

}  // namespace deepnet
