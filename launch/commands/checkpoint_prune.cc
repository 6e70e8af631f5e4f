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
constexpr int64_t kMostSteps = 1'000'000'000'000;

std::string Text(const PrunePlan& plan, bool dry_run) {
  std::string text;
  for (const int64_t step : plan.delete_steps) {
    absl::StrAppend(&text, dry_run ? "would delete " : "deleted ", CheckpointName(step), "\n");
  }
  absl::StrAppend(&text, plan.delete_steps.size(), dry_run ? " to delete, " : " deleted, ",
                  ByteText(plan.delete_bytes), "; ", plan.kept, dry_run ? " to keep\n" : " kept\n");
  return text;
}

absl::StatusOr<PruneRule> ReadRule(const CommandLine& line) {
  PruneRule rule;
  ASSIGN_OR_RETURN(const int64_t keep, IntegerFrom(line, "keep", 1, kMostKept));
  rule.keep_latest = static_cast<int>(keep);
  if (!line.flags.Given("keep-every")) return rule;
  ASSIGN_OR_RETURN(rule.keep_every_steps, IntegerFrom(line, "keep-every", 1, kMostSteps));
  return rule;
}

absl::StatusOr<PrunePlan> Prune(const CommandLine& line, const std::string& run_folder,
                                const ToolOptions& options) {
  ASSIGN_OR_RETURN(const PruneRule rule, ReadRule(line));
  const std::unique_ptr<FileSystem> fs = MakePosixFileSystem();
  if (line.flags.Switch("dry-run")) return PlanPrune(*fs, run_folder, rule, options);
  const RunLockOptions lock{.note = [&line](const std::string& text) { line.err << text << "\n"; }};
  return PruneRun(*fs, run_folder, rule, lock, options);
}

absl::Status RunPrune(const CommandLine& line) {
  ToolBar bar(line, "prune");
  ASSIGN_OR_RETURN(const ToolOptions options, ReadToolOptions(line, bar));
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, PathArguments(line, 1, "RUN"));
  ASSIGN_OR_RETURN(const PrunePlan plan, Prune(line, paths[0], options));
  line.out << Text(plan, line.flags.Switch("dry-run"));
  return absl::OkStatus();
}

}  // namespace

Command MakeCheckpointPruneCommand() {
  return {
      .name = "prune",
      .summary = "delete old checkpoints of a run",
      .description =
          "Deletes all but the latest K checkpoints, those that best-* point at and, with "
          "--keep-every, every N-th step's, after having read the newest one and found it whole; "
          "else nothing is deleted (exit code 5). Takes the run's lock: while a run is alive it is "
          "refused and names who runs (exit code 5); a lock whose owner may be alive on another "
          "host is watched for a minute.",
      .arguments = "RUN",
      .max_arguments = 1,
      .flags = {{.name = "keep",
                 .kind = FlagKind::kInteger,
                 .value = "K",
                 .help = "How many of the latest stay; required."},
                {.name = "keep-every",
                 .kind = FlagKind::kInteger,
                 .value = "N",
                 .help = "Checkpoints whose step is a multiple of N stay, too."},
                {.name = "dry-run",
                 .kind = FlagKind::kSwitch,
                 .help = "Only say what would be deleted; needs no lock."},
                MemoryFlag()},
      .run = RunPrune};
}

}  // namespace deepnet
