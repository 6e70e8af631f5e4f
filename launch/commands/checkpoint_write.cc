// The subcommands of `deepnet checkpoint` that write or delete: reshard, average, export, import,
// prune.
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "launch/commands/checkpoint_tools.h"
#include "launch/defaults.h"
#include "launch/flags.h"
#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/retention.h"
#include "trainer/checkpoint/tools/inspect.h"
#include "trainer/checkpoint/tools/rewrite.h"
#include "trainer/interop/export.h"
#include "trainer/interop/import.h"

namespace deepnet {
namespace {

constexpr int64_t kMaxFiles = 99999;  // five digits in a file's name

absl::Status RunReshard(const CommandLine& line) {
  ToolBar bar(line, "reshard");
  ASSIGN_OR_RETURN(const ToolOptions options, ReadToolOptions(line, bar));
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, PathArguments(line, 1, "CHECKPOINT"));
  ASSIGN_OR_RETURN(const int64_t files, IntegerFrom(line, "files", 1, kMaxFiles));
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

namespace {

constexpr int kMaxCheckpoints = 1000;

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
    ASSIGN_OR_RETURN(const int64_t last, IntegerFrom(line, "last", 1, kMaxCheckpoints));
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
      .max_arguments = kMaxCheckpoints,
      .flags = {{.name = "last",
                 .kind = FlagKind::kInteger,
                 .value = "K",
                 .help = "The latest K checkpoints of a run folder."},
                OutputFlag(),
                NoSyncFlag(),
                MemoryFlag()},
      .run = RunAverage};
}

namespace {

absl::StatusOr<ExportOptions> ReadExportOptions(const CommandLine& line, ToolBar& bar) {
  ExportOptions options;
  ASSIGN_OR_RETURN(options.tool, ReadToolOptions(line, bar));
  if (line.flags.Text("format") == "marian") options.format = ExportFormat::kMarian;
  if (line.flags.Text("dtype") == "bfloat16") options.layout.type = FloatType::kBfloat16;
  const absl::StatusOr<int64_t> shard = ParseByteSize(line.flags.Text("max-shard-size"));
  if (!shard.ok()) {
    return WithExitCode(
        absl::InvalidArgumentError(absl::StrCat("--max-shard-size: ", shard.status().message())),
        ExitCode::kBadConfig);
  }
  options.layout.max_shard_bytes = *shard;
  return options;
}

absl::Status RunExport(const CommandLine& line) {
  ToolBar bar(line, "export");
  ASSIGN_OR_RETURN(const ExportOptions options, ReadExportOptions(line, bar));
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, PathArguments(line, 1, "CHECKPOINT"));
  ASSIGN_OR_RETURN(const std::string output, OutputFolder(line));
  const std::unique_ptr<FileSystem> fs = MakePosixFileSystem();
  ASSIGN_OR_RETURN(const std::string folder, ChooseCheckpoint(*fs, paths[0], options.tool));
  ASSIGN_OR_RETURN(const ExportReport report, ExportCheckpoint(*fs, folder, output, options));
  for (const std::string& statement : report.statements) line.err << statement << "\n";
  line.out << output << "\n";
  return absl::OkStatus();
}

}  // namespace

Command MakeCheckpointExportCommand() {
  return {
      .name = "export",
      .summary = "write a checkpoint's weights for other programs",
      .description =
          "safetensors: the weights as they are under Hugging Face's names, with config.json and "
          "the tokenizer; `import` makes a checkpoint of it again, bit by bit. A PRE_LN model "
          "with tied embeddings and sinusoidal positions is a transformers "
          "M2M100ForConditionalGeneration; for others model_type is deepnet, which transformers "
          "does not know. marian: a DEEPNORM or POST_LN model as a transformers MarianMTModel, "
          "which CTranslate2's converter takes too; alpha is folded into out_proj and fc2, exact "
          "up to LayerNorm's epsilon, and what that amounts to is printed on stderr. Prints the "
          "folder.",
      .arguments = "CHECKPOINT",
      .max_arguments = 1,
      .flags = {{.name = "format",
                 .value = "FORMAT",
                 .default_value = "safetensors",
                 .help = "safetensors or marian.",
                 .allowed = {"safetensors", "marian"}},
                {.name = "output",
                 .value = "FOLDER",
                 .help = "A new or empty folder; required. It is there once it is complete."},
                {.name = "dtype",
                 .value = "TYPE",
                 .default_value = "float32",
                 .help = "float32, or bfloat16: half the size, rounded.",
                 .allowed = {"float32", "bfloat16"}},
                {.name = "max-shard-size",
                 .value = "SIZE",
                 .default_value = "5GB",
                 .help = "Above it, several model-0000i-of-0000n.safetensors and an index."},
                MemoryFlag()},
      .run = RunExport};
}

namespace {

absl::Status RunImport(const CommandLine& line) {
  ToolBar bar(line, "import");
  ImportOptions options{.complete = WithDefaults};
  ASSIGN_OR_RETURN(options.tool, ReadToolOptions(line, bar));
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, PathArguments(line, 1, "FOLDER"));
  ASSIGN_OR_RETURN(const std::string output, OutputFolder(line));
  const std::unique_ptr<FileSystem> fs = MakePosixFileSystem();
  ASSIGN_OR_RETURN(const ImportReport report, ImportFolder(*fs, paths[0], output, options));
  for (const std::string& note : report.notes) line.err << note << "\n";
  line.out << report.folder << "\n";
  return absl::OkStatus();
}

}  // namespace

Command MakeCheckpointImportCommand() {
  return {.name = "import",
          .summary = "make a checkpoint of a Hugging Face folder",
          .description =
              "Reads what `export --format safetensors` wrote, or a folder of transformers' "
              "M2M100ForConditionalGeneration (model.safetensors, config.json, vocab.json, "
              "sentencepiece.bpe.model). The result is a run folder with one checkpoint and the "
              "tokenizer: it translates, scores and evaluates (--checkpoint); it has no moments, "
              "so no run goes on from it. What does not fit exactly is said on stderr; a folder "
              "that no model of ours computes is refused with what is in the way. Prints the "
              "checkpoint's folder.",
          .arguments = "FOLDER",
          .max_arguments = 1,
          .flags = {OutputFlag(), MemoryFlag()},
          .run = RunImport};
}

namespace {

constexpr int64_t kMaxKept = 1'000'000;
constexpr int64_t kMaxSteps = 1'000'000'000'000;

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
  ASSIGN_OR_RETURN(const int64_t keep, IntegerFrom(line, "keep", 1, kMaxKept));
  rule.keep_latest = static_cast<int>(keep);
  if (!line.flags.Given("keep-every")) return rule;
  ASSIGN_OR_RETURN(rule.keep_every_steps, IntegerFrom(line, "keep-every", 1, kMaxSteps));
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
