// The subcommands of `deepnet checkpoint` and what they share. A new one is a function here and a
// line in checkpoint.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "launch/commands/command.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/logging.h"
#include "trainer/checkpoint/tools/tool_options.h"

namespace deepnet {

Command MakeCheckpointListCommand();
Command MakeCheckpointInspectCommand();
Command MakeCheckpointVerifyCommand();
Command MakeCheckpointDiffCommand();
Command MakeCheckpointReshardCommand();
Command MakeCheckpointAverageCommand();
Command MakeCheckpointPruneCommand();
Command MakeCheckpointExportCommand();
Command MakeCheckpointImportCommand();

// A bar on stderr while a tool works: on a terminal only, so that files and pipes stay clean.
class ToolBar {
 public:
  ToolBar(const CommandLine& line, std::string label);

  // Feeds the bar; may be used as long as it lives.
  ToolProgress progress();

 private:
  const std::string label_;
  const double start_seconds_;
  Logger log_;
};

// --memory, and what it says with `bar` to report to. ExitCode::kBadConfig for a bad size.
Flag MemoryFlag();
absl::StatusOr<ToolOptions> ReadToolOptions(const CommandLine& line, ToolBar& bar);

// --output: a new or empty folder. ExitCode::kBadConfig if it is not given.
Flag OutputFlag();
absl::StatusOr<std::string> OutputFolder(const CommandLine& line);

// --no-sync: files are written as cp does. OutputFileSystem returns the file system that tools
// write to; it waits for the disk unless the flag is given.
Flag NoSyncFlag();
std::unique_ptr<FileSystem> OutputFileSystem(const CommandLine& line);

// The positional words as paths that can be opened. ExitCode::kBadConfig if there are fewer than
// `least`; `what` names them.
absl::StatusOr<std::vector<std::string>> PathArguments(const CommandLine& line, size_t least,
                                                       const std::string& what);

// The value of an integer flag. ExitCode::kBadConfig unless it is from `least` to `most`.
absl::StatusOr<int64_t> IntegerFrom(const CommandLine& line, const std::string& flag, int64_t least,
                                    int64_t most);

// Ends a command with `code`; what there is to say was printed.
absl::Status EndWith(ExitCode code);

// JSON of a list of texts; of a list of numbers.
std::string JsonTexts(std::span<const std::string> texts);
std::string JsonShape(std::span<const int64_t> shape);

}  // namespace deepnet
