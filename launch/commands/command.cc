#include "launch/commands/command.h"

#include <filesystem>
#include <utility>

#include "launch/defaults.h"
#include "launch/spec_loader.h"
#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"

namespace deepnet {

absl::StatusOr<RunSpec> LoadRunSpec(const CommandLine& line, RunSpec base) {
  DEEPNET_CHECK(line.command.spec != SpecUse::kNone) << line.command.name << " takes no --config";
  const SpecSources sources{
      .root = RootFolder(line), .files = line.flags.List("config"), .sets = line.flags.List("set")};
  ASSIGN_OR_RETURN(RunSpec run, ReadRunSpec(sources, std::move(base)));
  run = WithDefaults(std::move(run));
  if (line.command.validate != nullptr) RETURN_IF_ERROR(line.command.validate(run));
  return run;
}

std::string RootFolder(const CommandLine& line) { return line.flags.Text("root"); }

std::string ResolvePath(const CommandLine& line, const std::string& path) {
  return std::filesystem::path(RootFolder(line)) / path;
}

absl::Status BadFlag(const std::string& text) {
  return WithExitCode(absl::InvalidArgumentError(text), ExitCode::kBadConfig);
}

Flag JsonFlag() {
  return {.name = "json", .kind = FlagKind::kSwitch, .help = "Print JSON instead of a table."};
}

std::vector<Flag> AllFlags(const Command& command) {
  std::vector<Flag> flags = command.flags;
  if (command.spec != SpecUse::kNone) {
    flags.push_back({.name = "config",
                     .kind = FlagKind::kList,
                     .value = "FILE",
                     .help =
                         "RunSpec as a textproto, or as JSON if the name ends in .json "
                         "(proto/run.proto; complete ones: launch/recipes). A later file wins."});
    flags.push_back({.name = "set",
                     .kind = FlagKind::kList,
                     .value = "FIELD=VALUE",
                     .help = "Change one field after all files: model.encoder_layers=50, "
                             "model.residual=POST_LN, data.directions=de-en,en-de. "
                             "An empty value means the default."});
  }
  if (command.spec == SpecUse::kRequired) {
    flags.push_back(
        {.name = "dump-config",
         .kind = FlagKind::kSwitch,
         .help = "Print the complete RunSpec, defaults filled in, and do nothing else."});
  }
  flags.push_back({.name = "root",
                   .value = "FOLDER",
                   .default_value = ".",
                   .help = "What relative paths, those of the RunSpec included, start from."});
  flags.push_back({.name = "help", .kind = FlagKind::kSwitch, .help = "Print this."});
  return flags;
}

}  // namespace deepnet
