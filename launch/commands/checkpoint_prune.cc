#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "launch/commands/checkpoint_tools.h"
#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/tools/prune.h"

namespace deepnet {
namespace {

constexpr int64_t kMostKept = 1'000'000;

std::string Text(const PrunePlan& plan, bool dry_run) {
  std::string text;
  for (const int64_t step : plan.delete_steps) {
    absl::StrAppend(&text, dry_run ? "would delete " : "deleted ", CheckpointName(step), "\n");
  }
  absl::StrAppend(&text, plan.delete_steps.size(), dry_run ? " to delete, " : " deleted, ",
                  ByteText(plan.delete_bytes), "; ", plan.kept, dry_run ? " to keep\n" : " kept\n");
  return text;
}

absl::Status RunPrune(const CommandLine& line) {
  ToolBar bar(line, "prune");
  ASSIGN_OR_RETURN(const ToolOptions options, ReadToolOptions(line, bar));
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, PathArguments(line, 1, "RUN"));
  ASSIGN_OR_RETURN(const int64_t keep, IntegerFrom(line, "keep", 1, kMostKept));
  const std::unique_ptr<FileSystem> fs = MakePosixFileSystem();
  const bool dry_run = line.flags.Switch("dry-run");
  const auto prune = dry_run ? PlanPrune : PruneRun;
  ASSIGN_OR_RETURN(const PrunePlan plan, prune(*fs, paths[0], static_cast<int>(keep), options));
  line.out << Text(plan, dry_run);
  return absl::OkStatus();
}

}  // namespace

Command MakeCheckpointPruneCommand() {
  return {
      .name = "prune",
      .summary = "delete old checkpoints of a run",
      .description =
          "Deletes all but the latest K checkpoints and those that best-* point at, after having "
          "read the newest one and found it whole; else nothing is deleted (exit code 5).",
      .arguments = "RUN",
      .max_arguments = 1,
      .flags = {{.name = "keep",
                 .kind = FlagKind::kInteger,
                 .value = "K",
                 .help = "How many of the latest stay; required."},
                {.name = "dry-run",
                 .kind = FlagKind::kSwitch,
                 .help = "Only say what would be deleted."},
                MemoryFlag()},
      .run = RunPrune};
}

}  // namespace deepnet
