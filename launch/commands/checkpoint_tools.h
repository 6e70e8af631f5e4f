// Declares what the subcommands of `deepnet checkpoint` share. Those that change nothing are in
// checkpoint_read.cc, the others in checkpoint.cc.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "launch/commands/command.h"
#include "parallel/base/file_system.h"
#include "parallel/base/logging.h"
#include "trainer/checkpoint/tools/tensor_reader.h"

namespace deepnet {

// Every subcommand works with these.
struct Tool {
  ToolOptions options = {};             // --memory, and a bar that shows progress
  std::vector<std::string> paths = {};  // the positional words, without a slash at the end
  std::string output = {};              // --output, where the subcommand has it
  std::unique_ptr<FileSystem> fs;       // with --no-sync one that does not wait for the disk
  Logger log;                           // on a terminal only, so that files and pipes stay clean
};

// Reads the command line. ExitCode::kBadConfig for a bad --memory, or if there are fewer than
// `least` positional words; `what` names them.
absl::StatusOr<std::unique_ptr<Tool>> StartTool(const CommandLine& line, const std::string& what,
                                                size_t least = 1);

// A tool that ranks share. `choose` checks all flags and returns the checkpoints that are meant;
// then `run` is called with those of rank 0, and with the ranks in the Tool's options. Only rank 0
// prints anything. `run` returns the same on every rank.
struct SharedTool {
  std::string what;  // the positional words
  std::function<absl::StatusOr<std::vector<std::string>>(const CommandLine& line, const Tool& tool)>
      choose;
  std::function<absl::Status(const CommandLine& line, const Tool& tool,
                             const std::vector<std::string>& folders)>
      run;
};

// Joins the job that this process was started for and runs the tool on its ranks.
absl::Status RunShared(const CommandLine& line, const SharedTool& shared);

// --memory.
Flag MemoryFlag();

// Returns list, inspect, verify and diff.
std::vector<Command> CheckpointReaders();

}  // namespace deepnet
