// `deepnet checkpoint`: what its subcommands share, and those that write or delete: reshard,
// average, export, import, prune. A new one is a function here or in checkpoint_read.cc.
#include "trainer/checkpoint/checkpoint.h"

#include <algorithm>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "launch/commands/checkpoint_tools.h"
#include "launch/commands/command.h"
#include "launch/defaults.h"
#include "launch/flags.h"
#include "launch/job.h"
#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/units.h"
#include "parallel/base/utf8.h"
#include "parallel/comm/agreement.h"
#include "trainer/checkpoint/retention.h"
#include "trainer/checkpoint/tools/inspect.h"
#include "trainer/checkpoint/tools/rewrite.h"
#include "trainer/interop/interop.h"

namespace deepnet {
namespace {

// Returns what shows a tool's progress in `log`, from now on.
ToolProgress Bar(Logger& log, const std::string& label) {
  return [&log, label, start_seconds = SecondsNow()](int64_t done, int64_t total) {
    if (total <= 0) return;
    const double seconds = std::max(SecondsNow() - start_seconds, 1e-3);
    const double rate = static_cast<double>(done) / seconds;
    log.Show({.label = label,
              .fraction = static_cast<double>(done) / static_cast<double>(total),
              .figures = absl::StrCat(ByteText(done), " of ", ByteText(total), "  ",
                                      ByteText(static_cast<int64_t>(rate)), "/s"),
              .seconds_left = rate > 0.0 ? static_cast<double>(total - done) / rate : -1.0});
    if (done >= total) log.EndProgress();  // results start on a new line
  };
}

absl::StatusOr<int64_t> SizeFlag(const CommandLine& line, const std::string& flag) {
  absl::StatusOr<int64_t> size = ParseByteSize(line.flags.Text(flag));
  if (size.ok()) return size;
  return ConfigError("--", flag, ": ", size.status().message());
}

Flag OutputFlag() {
  return Required(
      TextFlag("output", "FOLDER",
               "A new or empty folder, which becomes a run folder with one checkpoint; required."));
}

Flag NoSyncFlag() {
  return SwitchFlag("no-sync",
                    "Do not wait for the disk, as cp does not: faster, but a power failure soon "
                    "after may leave a checkpoint that `verify` finds damaged.");
}

constexpr int64_t kMaxFiles = 99999;  // five digits in a file's name

absl::StatusOr<std::vector<std::string>> ChooseOne(const CommandLine&, const Tool& tool) {
  ASSIGN_OR_RETURN(std::string folder, ChooseCheckpoint(*tool.fs, tool.paths[0], tool.options));
  return std::vector<std::string>{std::move(folder)};
}

absl::Status Reshard(const CommandLine& line, const Tool& tool,
                     const std::vector<std::string>& folders) {
  ASSIGN_OR_RETURN(
      const std::string written,
      ReshardCheckpoint(*tool.fs, folders[0], static_cast<int>(line.flags.Integer("files")),
                        tool.output, tool.options));
  line.out << written << "\n";
  return absl::OkStatus();
}

Command ReshardCommand() {
  return {.name = "reshard",
          .summary = "Write a checkpoint anew over a number of files.",
          .description =
              "Writes the same tensors into FOLDER, over N files of equal size, for copying or for "
              "other programs; continuing a run on another number of ranks never needs it. Every "
              "byte is compared with its checksum on the way. The copy is a checkpoint like any "
              "other, and is only there once it is complete. Prints its folder.",
          .arguments = "CHECKPOINT",
          .max_arguments = 1,
          .flags = {Required(IntegerFlag("files", "How many files of tensors; required.", "",
                                         {1, kMaxFiles})),
                    OutputFlag(), NoSyncFlag(), MemoryFlag()},
          .run = [](const CommandLine& line) {
            return RunShared(line, {"CHECKPOINT", ChooseOne, Reshard});
          }};
}

constexpr int kMaxCheckpoints = 1000;

absl::StatusOr<std::vector<std::string>> LastOf(FileSystem& fs, const std::string& run_folder,
                                                int64_t last, const ToolOptions& options) {
  ASSIGN_OR_RETURN(const RunListing listing, ListRun(fs, run_folder, ListDepth::kSizes, options));
  std::vector<std::string> folders;
  for (const ListedCheckpoint& listed : listing.checkpoints) {
    const bool current = listed.folder == JoinPath(run_folder, CheckpointName(listed.step));
    if (current) folders.push_back(listed.folder);
  }
  if (static_cast<int64_t>(folders.size()) < last) {
    return WithExitCode(
        NotFound("'", run_folder, "' has ", folders.size(), " checkpoints; --last asks for ", last),
        ExitCode::kCheckpoint);
  }
  folders.erase(folders.begin(), folders.end() - last);
  return folders;
}

absl::StatusOr<std::vector<std::string>> ChooseForAverage(const CommandLine& line,
                                                          const Tool& tool) {
  const std::vector<std::string>& paths = tool.paths;
  if (line.flags.Given("last")) {
    const int64_t last = line.flags.Integer("last");
    if (paths.size() == 1) return LastOf(*tool.fs, paths[0], last, tool.options);
    return ConfigError("--last: takes one run folder");
  }
  if (paths.size() == 1 && !line.flags.Switch("ema")) {
    return ConfigError("--last: required with one run folder; or name the checkpoints");
  }
  std::vector<std::string> folders;
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(std::string folder, ChooseCheckpoint(*tool.fs, path, tool.options));
    folders.push_back(std::move(folder));
  }
  return folders;
}

absl::Status Average(const CommandLine& line, const Tool& tool,
                     const std::vector<std::string>& folders) {
  ASSIGN_OR_RETURN(const std::string written,
                   AverageCheckpoints(*tool.fs, folders, tool.output, tool.options,
                                      line.flags.Switch("ema") ? kEmaPrefix : kWeightPrefix));
  line.out << written << "\n";
  return absl::OkStatus();
}

Command AverageCommand() {
  return {.name = "average",
          .summary = "Write the mean of several checkpoints' weights, or the average of training.",
          .description =
              "Adds the weights up in double, by ascending step, and rounds once. The result "
              "translates, scores and evaluates like any checkpoint (--checkpoint FOLDER); it has "
              "no moments, so no run goes on from it. `inspect` says what it was made of. Prints "
              "its folder.",
          .arguments = "RUN | CHECKPOINT...",
          .max_arguments = kMaxCheckpoints,
          .flags = {IntegerFlag("last", "The latest K checkpoints of a run folder.", "",
                                {1, kMaxCheckpoints}, "K"),
                    SwitchFlag("ema",
                               "Take the averages that training kept (optim.ema_decay) instead of "
                               "the weights; one checkpoint is enough then."),
                    OutputFlag(), NoSyncFlag(), MemoryFlag()},
          .run = [](const CommandLine& line) {
            return RunShared(line, {"RUN, or several CHECKPOINTs", ChooseForAverage, Average});
          }};
}

absl::StatusOr<std::vector<std::string>> ChooseForExport(const CommandLine& line,
                                                         const Tool& tool) {
  RETURN_IF_ERROR(SizeFlag(line, "max-shard-size").status());
  return ChooseOne(line, tool);
}

absl::Status Export(const CommandLine& line, const Tool& tool,
                    const std::vector<std::string>& folders) {
  ExportOptions options{.tool = tool.options};
  if (line.flags.Text("format") == "marian") options.format = ExportFormat::kMarian;
  if (line.flags.Text("dtype") == "bfloat16") options.layout.type = FloatType::kBfloat16;
  ASSIGN_OR_RETURN(options.layout.max_shard_bytes, SizeFlag(line, "max-shard-size"));
  ASSIGN_OR_RETURN(const std::vector<std::string> statements,
                   ExportCheckpoint(*tool.fs, folders[0], tool.output, options));
  for (const std::string& statement : statements) line.err << ShownLines(statement) << "\n";
  line.out << tool.output << "\n";
  return absl::OkStatus();
}

Command ExportCommand() {
  return {
      .name = "export",
      .summary = "Write a checkpoint's weights for other programs.",
      .description =
          "safetensors: the weights as they are under Hugging Face's names, with config.json and "
          "the tokenizer; `import` makes a checkpoint of it again, bit by bit. A PRE_LN model with "
          "tied embeddings and sinusoidal positions is a transformers "
          "M2M100ForConditionalGeneration; for others model_type is deepnet, which transformers "
          "does not know. marian: a DEEPNORM or POST_LN model as a transformers MarianMTModel, "
          "which CTranslate2's converter takes too; alpha is folded into out_proj and fc2, exact "
          "up to LayerNorm's epsilon, and what that amounts to is printed on stderr. Prints the "
          "folder.",
      .arguments = "CHECKPOINT",
      .max_arguments = 1,
      .flags = {ChoiceFlag("format", "FORMAT", {"safetensors", "marian"}, "safetensors or marian.",
                           "safetensors"),
                Required(
                    TextFlag("output", "FOLDER",
                             "A new or empty folder; required. It is there once it is complete.")),
                ChoiceFlag("dtype", "TYPE", {"float32", "bfloat16"},
                           "float32, or bfloat16: half the size, rounded.", "float32"),
                TextFlag("max-shard-size", "SIZE",
                         "Above it, several model-0000i-of-0000n.safetensors and an index.", "5GB"),
                MemoryFlag()},
      .run = [](const CommandLine& line) {
        return RunShared(line, {"CHECKPOINT", ChooseForExport, Export});
      }};
}

absl::Status RunImport(const CommandLine& line) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Tool> tool, StartTool(line, "FOLDER"));
  const ImportOptions options{.complete = WithDefaults, .tool = tool->options};
  ASSIGN_OR_RETURN(const ImportReport report,
                   ImportFolder(*tool->fs, tool->paths[0], tool->output, options));
  for (const std::string& note : report.notes) line.err << ShownLines(note) << "\n";
  line.out << report.folder << "\n";
  return absl::OkStatus();
}

Command ImportCommand() {
  return {.name = "import",
          .summary = "Make a checkpoint of a Hugging Face folder.",
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

absl::Status RunPrune(const CommandLine& line) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Tool> tool, StartTool(line, "RUN"));
  const RetentionRule rule = {.keep_latest = static_cast<int>(line.flags.Integer("keep")),
                              .keep_every_steps = line.flags.Integer("keep-every")};
  const bool dry_run = line.flags.Switch("dry-run");
  const RunLockOptions lock{
      .note = [&line](const std::string& text) { line.err << ShownLines(text) << "\n"; }};
  ASSIGN_OR_RETURN(const PrunePlan plan,
                   dry_run ? PlanPrune(*tool->fs, tool->paths[0], rule, tool->options)
                           : PruneRun(*tool->fs, tool->paths[0], rule, lock, tool->options));
  line.out << Text(plan, dry_run);
  return absl::OkStatus();
}

Command PruneCommand() {
  return {
      .name = "prune",
      .summary = "Delete old checkpoints of a run.",
      .description =
          "Deletes all but the latest K checkpoints, those that best-* point at and, with "
          "--keep-every, every N-th step's, after having read the newest one and found it intact; "
          "else nothing is deleted (exit code 5). Takes the run's lock: while a run is alive it is "
          "refused and names who runs (exit code 5); a lock whose owner may be alive on another "
          "host is watched for a minute.",
      .arguments = "RUN",
      .max_arguments = 1,
      .flags = {Required(IntegerFlag("keep", "How many of the latest stay; required.", "",
                                     {1, kMaxKept}, "K")),
                IntegerFlag("keep-every", "Checkpoints whose step is a multiple of N stay, too.",
                            "", {1, kMaxSteps}),
                SwitchFlag("dry-run", "Only say what would be deleted; needs no lock."),
                MemoryFlag()},
      .run = RunPrune};
}

}  // namespace

Flag MemoryFlag() {
  return TextFlag("memory", "SIZE",
                  "Bound on the memory that the work takes beyond the idle program, whatever the "
                  "checkpoint's size: a number and a unit, B, KiB, MiB, GiB, kB, MB or GB. Too "
                  "little is an error (exit code 6) that says what is needed.",
                  "256MiB");
}

absl::StatusOr<std::unique_ptr<Tool>> StartTool(const CommandLine& line, const std::string& what,
                                                size_t least) {
  RETURN_IF_ERROR(line.flags.CheckRequired());
  const bool waits = !line.flags.Has("no-sync") || !line.flags.Switch("no-sync");
  LoggerOptions log = StderrOptions();
  log.stream = &line.err;
  log.warnings_only = !log.terminal;
  std::unique_ptr<Tool> tool(
      new Tool{.fs = MakePosixFileSystem(waits ? Durability::kDisk : Durability::kProcessEnd),
               .log = Logger(log)});
  ASSIGN_OR_RETURN(tool->options.memory_bytes, SizeFlag(line, "memory"));
  if (line.flags.Has("output")) {
    const auto output = FollowOwnLinks(ResolvePath(line, line.flags.Text("output")));
    RETURN_IF_ERROR(WithExitCode(WithPrefix("--output", output.status()), ExitCode::kBadConfig));
    tool->output = *output;
  }
  tool->options.progress = Bar(tool->log, line.command.name);
  for (const std::string& word : line.flags.positional()) {
    tool->paths.push_back(CheckpointPath(*tool->fs, ResolvePath(line, word)));
  }
  if (tool->paths.size() >= least) return tool;
  return ConfigError(what, ": required; `deepnet checkpoint ", line.command.name,
                     " --help` says more");
}

absl::Status RunShared(const CommandLine& line, const SharedTool& shared) {
  return RunOnRanks(line, [&](const CommandLine&, Communicator& world) -> absl::Status {
    const bool is_first = world.rank() == 0;
    std::ostream nothing(nullptr);
    const CommandLine own = {
        WithStreams(line, is_first ? line.out : nothing, is_first ? line.err : nothing),
        line.command, line.flags};
    ASSIGN_OR_RETURN(const std::unique_ptr<Tool> tool, AgreeOn(world, StartTool(own, shared.what)));
    ASSIGN_OR_RETURN(const std::vector<std::string> chosen,
                     AgreeOn(world, shared.choose(own, *tool)));
    const std::string separator(1, '\0');  // in no path
    ASSIGN_OR_RETURN(const std::string folders,
                     BroadcastText(world, absl::StrJoin(chosen, separator), 0));
    tool->options.world = &world;
    return shared.run(own, *tool, absl::StrSplit(folders, separator));
  });
}

Command MakeCheckpointCommand() {
  std::vector<Command> subcommands = CheckpointReaders();
  for (const auto make :
       {ReshardCommand, AverageCommand, ExportCommand, ImportCommand, PruneCommand}) {
    subcommands.push_back(make());
  }
  return {.name = "checkpoint",
          .summary = "List, inspect, verify, compare, convert and delete checkpoints.",
          .description =
              "Where a CHECKPOINT is asked for, a checkpoint folder, a pointer file such as "
              "runs/a/best-bleu, or a run folder will do; of a run folder, its newest checkpoint. "
              "Memory is bounded by --memory, however large the checkpoint is.\n"
              "`mpirun -n R deepnet checkpoint verify|reshard|average|export ...` shares the work "
              "between R ranks that see one file system; the output is the same to the byte.",
          .subcommands = std::move(subcommands)};
}

}  // namespace deepnet
