#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "launch/commands/checkpoint_tools.h"
#include "launch/commands/commands.h"
#include "launch/flags.h"
#include "parallel/base/clock.h"
#include "parallel/base/json.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

LoggerOptions BarOptions(const CommandLine& line) {
  LoggerOptions options = StderrOptions();
  options.stream = &line.err;
  options.warnings_only = !options.terminal;
  return options;
}

std::string WithoutSlash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

ToolBar::ToolBar(const CommandLine& line, std::string label)
    : label_(std::move(label)), start_seconds_(SecondsNow()), log_(BarOptions(line)) {}

ToolProgress ToolBar::progress() {
  return [this](int64_t done, int64_t total) {
    if (total <= 0) return;
    const double seconds = std::max(SecondsNow() - start_seconds_, 1e-3);
    const double rate = static_cast<double>(done) / seconds;
    log_.Show({.label = label_,
               .fraction = static_cast<double>(done) / static_cast<double>(total),
               .figures = absl::StrCat(ByteText(done), " of ", ByteText(total), "  ",
                                       ByteText(static_cast<int64_t>(rate)), "/s"),
               .seconds_left = rate > 0.0 ? static_cast<double>(total - done) / rate : -1.0});
    if (done >= total) log_.EndProgress();  // results start on a new line
  };
}

Flag MemoryFlag() {
  return {.name = "memory",
          .value = "SIZE",
          .default_value = "256MiB",
          .help =
              "Bound on the memory that the work takes beyond the idle program, whatever the "
              "checkpoint's size: a number and a unit, B, KiB, MiB, GiB, kB, MB or GB. Too "
              "little is an error (exit code 6) that says what is needed."};
}

absl::StatusOr<ToolOptions> ReadToolOptions(const CommandLine& line, ToolBar& bar) {
  const absl::StatusOr<int64_t> memory = ParseByteSize(line.flags.Text("memory"));
  if (!memory.ok()) return BadFlag(absl::StrCat("--memory: ", memory.status().message()));
  return ToolOptions{.memory_bytes = *memory, .progress = bar.progress()};
}

Flag OutputFlag() {
  return {
      .name = "output",
      .value = "FOLDER",
      .help = "A new or empty folder, which becomes a run folder with one checkpoint; required."};
}

absl::StatusOr<std::string> OutputFolder(const CommandLine& line) {
  if (line.flags.Text("output").empty()) return BadFlag("--output: required");
  return WithoutSlash(ResolvePath(line, line.flags.Text("output")));
}

Flag NoSyncFlag() {
  return {.name = "no-sync",
          .kind = FlagKind::kSwitch,
          .help =
              "Do not wait for the disk, as cp does not: faster, but a power failure soon "
              "after may leave a checkpoint that `verify` finds damaged."};
}

std::unique_ptr<FileSystem> OutputFileSystem(const CommandLine& line) {
  const bool waits = !line.flags.Switch("no-sync");
  return MakePosixFileSystem(waits ? Durability::kDisk : Durability::kProcessEnd);
}

absl::StatusOr<std::vector<std::string>> PathArguments(const CommandLine& line, size_t least,
                                                       const std::string& what) {
  std::vector<std::string> paths;
  for (const std::string& word : line.flags.positional()) {
    paths.push_back(WithoutSlash(ResolvePath(line, word)));
  }
  if (paths.size() >= least) return paths;
  return BadFlag(absl::StrCat(what, ": required; `deepnet checkpoint ", line.command.name,
                              " --help` says more"));
}

absl::StatusOr<int64_t> IntegerFrom(const CommandLine& line, const std::string& flag, int64_t least,
                                    int64_t most) {
  const int64_t value = line.flags.Integer(flag);
  if (value >= least && value <= most) return value;
  if (!line.flags.Given(flag)) return BadFlag(absl::StrCat("--", flag, ": required"));
  return BadFlag(absl::StrCat("--", flag, ": ", value, ": must be from ", least, " to ", most));
}

absl::Status EndWith(ExitCode code) {
  return WithExitCode(absl::Status(absl::StatusCode::kFailedPrecondition, ""), code);
}

std::string JsonTexts(std::span<const std::string> texts) {
  return absl::StrCat("[",
                      absl::StrJoin(texts, ", ",
                                    [](std::string* out, const std::string& text) {
                                      out->append(JsonQuoted(text));
                                    }),
                      "]");
}

std::string JsonShape(std::span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

Command MakeCheckpointCommand() {
  return {.name = "checkpoint",
          .summary = "list, inspect, verify, compare, convert and delete checkpoints",
          .description =
              "Where a CHECKPOINT is asked for, a checkpoint folder, a pointer file such as "
              "runs/a/best-bleu, or a run folder will do; of a run folder, its newest checkpoint. "
              "Memory is bounded by --memory, however large the checkpoint is.",
          .subcommands = {MakeCheckpointListCommand(), MakeCheckpointInspectCommand(),
                          MakeCheckpointVerifyCommand(), MakeCheckpointDiffCommand(),
                          MakeCheckpointReshardCommand(), MakeCheckpointAverageCommand(),
                          MakeCheckpointExportCommand(), MakeCheckpointImportCommand(),
                          MakeCheckpointPruneCommand()}};
}

}  // namespace deepnet
