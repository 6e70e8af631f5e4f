// The subcommands of `deepnet checkpoint` that change nothing: list, inspect, verify, diff.
#include <algorithm>
#include <ctime>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include <sys/stat.h>

#include "launch/commands/checkpoint_tools.h"
#include "launch/spec_printer.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/json.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/units.h"
#include "parallel/base/utf8.h"
#include "parallel/comm/agreement.h"
#include "trainer/checkpoint/format.h"
#include "trainer/checkpoint/tools/inspect.h"
#include "trainer/checkpoint/tools/tensor_reader.h"
#include "trainer/telemetry/metrics.h"
#include "trainer/telemetry/spikes.h"

namespace deepnet {
namespace {

// Ends a command with a code; what there is to say was printed.
absl::Status EndWith(ExitCode code) {
  return WithExitCode(absl::FailedPreconditionError(""), code);
}

// When the manifest was written, seconds since 1970; the folder, where there is none. 0: unknown.
int64_t SavedAt(const std::string& folder) {
  struct stat info {};
  if (stat(JoinPath(folder, kManifestFile).c_str(), &info) != 0 &&
      stat(folder.c_str(), &info) != 0) {
    return 0;
  }
  return info.st_mtime;
}

std::string LocalTime(int64_t unix_seconds) {
  if (unix_seconds == 0) return "-";
  const time_t seconds = unix_seconds;
  tm local{};
  localtime_r(&seconds, &local);  // reads every TZ, as the logger does
  return absl::FormatTime("%Y-%m-%d %H:%M", absl::FromTM(local, absl::UTCTimeZone()),
                          absl::UTCTimeZone());
}

std::string StateText(CheckpointState state) {
  static constexpr const char* kTexts[] = {"intact", "damaged", "unfinished", "replaced"};
  return kTexts[static_cast<size_t>(state)];
}

// "best-bleu 14.06" where the checkpoint knows its score.
std::string MarkText(const ListedCheckpoint& listed, const std::string& mark) {
  for (const BestScore& best : listed.manifest.best()) {
    if (mark == absl::StrCat(kBestPointerPrefix, best.metric()) && best.step() == listed.step) {
      return absl::StrFormat("%s %.4g", mark, best.value());
    }
  }
  return mark;
}

std::string Table(const RunListing& listing) {
  if (listing.checkpoints.empty()) return "no checkpoints\n";
  std::string text = absl::StrFormat("%10s  %-16s  %10s  %9s  %15s  %-10s  %s\n", "step", "saved",
                                     "size", "trained", "target tokens", "state", "marks");
  for (const ListedCheckpoint& listed : listing.checkpoints) {
    const std::string marks =
        absl::StrJoin(listed.marks, ", ", [&listed](std::string* out, const std::string& mark) {
          out->append(MarkText(listed, mark));
        });
    const std::string row = absl::StrFormat(
        "%10d  %-16s  %10s  %9s  %15s  %-10s  %s", listed.step, LocalTime(SavedAt(listed.folder)),
        ByteText(listed.bytes), ClockText(listed.manifest.train_seconds()),
        WithCommas(listed.manifest.target_tokens()), StateText(listed.state), marks);
    absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(row), "\n");
  }
  for (const ListedCheckpoint& listed : listing.checkpoints) {
    for (const std::string& problem : listed.problems) absl::StrAppend(&text, problem, "\n");
  }
  for (const std::string& note : listing.notes) absl::StrAppend(&text, note, "\n");
  return text;
}

JsonObject ScoreJson(const BestScore& score) {
  return JsonObject()
      .Add("metric", score.metric())
      .Add("value", score.value())
      .Add("step", score.step());
}

JsonObject ListedJson(const ListedCheckpoint& listed) {
  return JsonObject()
      .Add("folder", listed.folder)
      .Add("step", listed.step)
      .Add("state", StateText(listed.state))
      .Add("bytes", listed.bytes)
      .Add("saved_unix_seconds", SavedAt(listed.folder))
      .Add("train_seconds", listed.manifest.train_seconds())
      .Add("target_tokens", listed.manifest.target_tokens())
      .Add("averaged", listed.manifest.averaged_size())
      .Add("marks", listed.marks)
      .Add("best", JsonObjects(listed.manifest.best(), ScoreJson))
      .Add("problems", listed.problems);
}

absl::Status RunList(const CommandLine& line) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Tool> tool, StartTool(line, "RUN"));
  const ListDepth depth = line.flags.Switch("verify") ? ListDepth::kContents : ListDepth::kSizes;
  ASSIGN_OR_RETURN(const RunListing listing,
                   ListRun(*tool->fs, tool->paths[0], depth, tool->options));
  JsonObject json;
  json.Add("checkpoints", JsonObjects(listing.checkpoints, ListedJson)).Add("notes", listing.notes);
  line.out << (line.flags.Switch("json") ? JsonOf(json) + "\n" : Table(listing));
  return absl::OkStatus();
}

Command ListCommand() {
  return {.name = "list",
          .summary = "List the checkpoints of a run.",
          .description =
              "A line for each checkpoint: its step, when it was saved, size, training time and "
              "target tokens so far, what points at it, and whether it is damaged; below, what is "
              "wrong with those that are. Files are only measured, unless --verify is given. "
              "Damaged checkpoints do not change the exit code: `verify` is for that.",
          .arguments = "RUN",
          .max_arguments = 1,
          .flags = {SwitchFlag("verify", "Read every byte and compare checksums."), JsonFlag(),
                    MemoryFlag()},
          .run = RunList};
}

struct Inspection {
  std::string folder = {};
  Manifest manifest = {};
  std::vector<StoredTensor> tensors = {};  // those that were asked for
  bool with_spec = false;
};

void AppendRow(std::string& text, const std::string& name, const std::string& value) {
  if (!value.empty()) absl::StrAppendFormat(&text, "%-17s %s\n", name, value);
}

void AppendBest(std::string* out, const BestScore& best) {
  absl::StrAppendFormat(out, "%s %.6g at step %d", best.metric(), best.value(), best.step());
}

void AppendSkips(std::string* out, const SkippedSteps& run) {  // "3" or "7 to 12"
  absl::StrAppend(out, WithCommas(run.first_step()));
  if (run.count() > 1) absl::StrAppend(out, " to ", WithCommas(run.first_step() + run.count() - 1));
}

void AppendSpike(std::string* out, const SpikeRecord& spike) { *out += SpikeLine(spike); }

void AppendAveraged(std::string* out, const AveragedCheckpoint& averaged) {
  absl::StrAppendFormat(out, "%s (%smanifest %08x)", averaged.folder(),
                        averaged.ema() ? "ema; " : "", averaged.manifest_crc32c());
}

std::string Summary(const Inspection& it) {
  const Manifest& m = it.manifest;
  std::string text;
  AppendRow(text, "checkpoint", it.folder);
  AppendRow(text, "run", ShownText(m.run().name()));  // ends of lines, too
  AppendRow(text, "step", WithCommas(m.step()));
  AppendRow(text, "next data step", WithCommas(m.data().step()));
  AppendRow(text, "updates",
            absl::StrCat(WithCommas(m.optimizer_steps()), ", ", WithCommas(m.skipped_steps()),
                         " steps skipped"));
  AppendRow(text, "skipped", absl::StrJoin(m.skips(), ", ", AppendSkips));
  AppendRow(text, "spikes", absl::StrJoin(m.spikes(), "\n                  ", AppendSpike));
  AppendRow(text, "tokens",
            absl::StrCat(WithCommas(m.source_tokens()), " source, ", WithCommas(m.target_tokens()),
                         " target"));
  AppendRow(text, "trained", ClockText(m.train_seconds()));
  AppendRow(text, "best", absl::StrJoin(m.best(), ", ", AppendBest));
  AppendRow(text, "mean of", absl::StrJoin(m.averaged(), ", ", AppendAveraged));
  AppendRow(text, "inventory", m.inventory_hash());
  AppendRow(text, "corpus", m.corpus_hash());
  AppendRow(text, "tokenizer", m.tokenizer_hash());
  AppendRow(
      text, "format",
      absl::StrCat("version ", m.format_version(), ", checksums of ", ByteText(m.block_bytes()),
                   ", manifest ", absl::StrFormat("%08x", m.manifest_crc32c())));
  for (const ShardFile& file : m.files()) {
    AppendRow(text, "file",
              absl::StrCat(file.file(), "  ", ByteText(file.bytes()), " in ",
                           file.block_crc32c_size(), " blocks"));
  }
  return text;
}

std::string FilesText(const Manifest& manifest, const StoredTensor& tensor) {
  return absl::StrJoin(tensor.parts, " ", [&manifest](std::string* out, const StoredPart& part) {
    absl::StrAppend(out, manifest.files(part.file).file(), "+", part.offset);
  });
}

std::string Table(const Inspection& it) {
  std::string text = Summary(it);
  if (it.with_spec) absl::StrAppend(&text, "\n", ToTextproto(it.manifest.run()));
  size_t width = 6;
  for (const StoredTensor& tensor : it.tensors) width = std::max(width, tensor.name.size());
  absl::StrAppendFormat(&text, "\n%-*s  %14s  %14s  %s\n", static_cast<int>(width), "tensor",
                        "shape", "elements", "in file + byte");
  for (const StoredTensor& tensor : it.tensors) {
    absl::StrAppendFormat(&text, "%-*s  %14s  %14s  %s\n", static_cast<int>(width), tensor.name,
                          absl::StrJoin(tensor.shape, "x"), WithCommas(tensor.num_elements),
                          FilesText(it.manifest, tensor));
  }
  return text;
}

JsonObject FileJson(const ShardFile& file) {
  return JsonObject()
      .Add("file", file.file())
      .Add("bytes", file.bytes())
      .Add("blocks", file.block_crc32c_size());
}

JsonObject TensorJson(const Manifest& manifest, const StoredTensor& tensor) {
  const auto part_json = [&manifest](const StoredPart& part) {
    return JsonObject()
        .Add("file", manifest.files(part.file).file())
        .Add("first_element", part.first_element)
        .Add("num_elements", part.num_elements)
        .Add("offset", part.offset);
  };
  return JsonObject()
      .Add("name", tensor.name)
      .Add("dtype", "float32")
      .Add("shape", tensor.shape)
      .Add("num_elements", tensor.num_elements)
      .Add("parts", JsonObjects(tensor.parts, part_json));
}

JsonObject InspectionJson(const Inspection& it) {
  Manifest head = it.manifest;  // the fields under the names that proto/checkpoint.proto has
  head.clear_files();
  if (!it.with_spec) head.clear_run();
  const auto tensor_json = [&it](const StoredTensor& tensor) {
    return TensorJson(it.manifest, tensor);
  };
  return JsonObject()
      .Add("folder", it.folder)
      .AddJson("manifest", ToJson(head))
      .Add("files", JsonObjects(it.manifest.files(), FileJson))
      .Add("tensors", JsonObjects(it.tensors, tensor_json));
}

absl::Status RunInspect(const CommandLine& line) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Tool> tool, StartTool(line, "CHECKPOINT"));
  Inspection it{.with_spec = line.flags.Switch("spec")};
  ASSIGN_OR_RETURN(it.folder, ChooseCheckpoint(*tool->fs, tool->paths[0], tool->options));
  ASSIGN_OR_RETURN(it.manifest, ReadManifestWithin(*tool->fs, it.folder, tool->options));
  it.tensors = IndexTensors(it.manifest);
  std::erase_if(it.tensors, [&line](const StoredTensor& tensor) {
    return !absl::StrContains(tensor.name, line.flags.Text("filter"));
  });
  line.out << (line.flags.Switch("json") ? JsonOf(InspectionJson(it)) + "\n" : Table(it));
  return absl::OkStatus();
}

Command InspectCommand() {
  return {.name = "inspect",
          .summary = "Print what a checkpoint says of itself, and its tensors.",
          .description =
              "Prints the manifest (step, where the data goes on, counters, best scores, hashes, "
              "files) and the name, shape and place of each tensor. Reads the manifest only, and "
              "compares its checksum. Tensors are float32: weight/NAME, and moment1/NAME and "
              "moment2/NAME of Adam, ema/NAME with optim.ema_decay.",
          .arguments = "CHECKPOINT",
          .max_arguments = 1,
          .flags = {TextFlag("filter", "TEXT", "Only tensors with this in their names."),
                    SwitchFlag("spec", "Also print the RunSpec that it was saved by."), JsonFlag(),
                    MemoryFlag()},
          .run = RunInspect};
}

bool IsIntact(const absl::StatusOr<VerifyReport>& report) {
  return report.ok() && report->damage.empty();
}

std::string Text(const VerifyReport& report) {
  std::string text;
  for (const Damage& damage : report.damage) {
    absl::StrAppend(&text, damage.text, "\n");
    for (const std::string& tensor : damage.tensors) absl::StrAppend(&text, "    ", tensor, "\n");
  }
  const size_t places = report.damage.size();
  std::string state = "intact";
  if (places > 0) state = absl::StrCat("DAMAGED in ", places, places == 1 ? " place" : " places");
  absl::StrAppend(&text, report.folder, ": ", state, ", ", report.tensors, " tensors, ",
                  ByteText(report.bytes), " in ", report.blocks, " blocks of ", report.files,
                  report.files == 1 ? " file\n" : " files\n");
  return text;
}

JsonObject DamageJson(const Damage& damage) {
  return JsonObject()
      .Add("file", damage.file)
      .AddJson("block", damage.block < 0 ? "null" : absl::StrCat(damage.block))
      .Add("begin", damage.begin)
      .Add("end", damage.end)
      .Add("text", damage.text)
      .Add("tensors", damage.tensors);
}

JsonObject VerdictJson(const std::string& folder, const absl::StatusOr<VerifyReport>& report) {
  JsonObject json;
  json.Add("folder", folder).Add("intact", IsIntact(report));
  if (!report.ok()) return json.Add("error", std::string(report.status().message()));
  return json.Add("step", report->step)
      .Add("files", report->files)
      .Add("blocks", report->blocks)
      .Add("bytes", report->bytes)
      .Add("tensors", report->tensors)
      .Add("damage", JsonObjects(report->damage, DamageJson));
}

// The checkpoint that the path means, or all of a run folder but unfinished ones.
absl::StatusOr<std::vector<std::string>> ChooseForVerify(const CommandLine&, const Tool& tool) {
  FileSystem& fs = *tool.fs;
  const std::string& path = tool.paths[0];
  ASSIGN_OR_RETURN(const bool is_checkpoint,
                   CheckpointError(Exists(fs, JoinPath(path, kManifestFile)),
                                   absl::StrCat("checkpoint '", path, "'")));
  std::vector<std::string> folders;
  if (!is_checkpoint && fs.List(path).ok()) {
    ASSIGN_OR_RETURN(const RunListing listing, ListRun(fs, path, ListDepth::kSizes, tool.options));
    for (const ListedCheckpoint& listed : listing.checkpoints) {
      if (listed.state != CheckpointState::kUnfinished) folders.push_back(listed.folder);
    }
  }
  if (!folders.empty()) return folders;
  ASSIGN_OR_RETURN(std::string folder, ChooseCheckpoint(fs, path, tool.options));
  return std::vector<std::string>{std::move(folder)};
}

absl::Status Verify(const CommandLine& line, const Tool& tool,
                    const std::vector<std::string>& folders) {
  const bool json = line.flags.Switch("json");
  bool all_intact = true;
  std::vector<JsonObject> verdicts;
  for (const std::string& folder : folders) {
    const auto report = VerifyCheckpoint(*tool.fs, folder, tool.options);
    if (absl::IsResourceExhausted(report.status())) return report.status();
    all_intact = all_intact && IsIntact(report);
    if (json) verdicts.push_back(VerdictJson(folder, report));
    if (!json)
      line.out << (report.ok() ? Text(*report) : absl::StrCat(report.status().message(), "\n"));
  }
  if (json) {
    line.out << JsonOf(JsonObject().Add("checkpoints", verdicts).Add("intact", all_intact)) << "\n";
  }
  return AgreeOnStatus(*tool.options.world,
                       all_intact ? absl::OkStatus() : EndWith(ExitCode::kCheckpoint));
}

Command VerifyCommand() {
  return {.name = "verify",
          .summary = "Compare every byte with its checksum.",
          .description =
              "Reads all of a checkpoint, or all checkpoints of a run folder, and names every "
              "damaged place: file, block, bytes and the tensors there. Exit code 0: intact; 5: "
              "damaged.",
          .arguments = "CHECKPOINT",
          .max_arguments = 1,
          .flags = {JsonFlag(), MemoryFlag()},
          .run = [](const CommandLine& line) {
            return RunShared(line, {"CHECKPOINT", ChooseForVerify, Verify});
          }};
}

std::string Table(const CheckpointDiff& diff) {
  std::string text = absl::StrCat("a  ", diff.folder_a, "\nb  ", diff.folder_b, "\n");
  for (const std::string& name : diff.only_a) absl::StrAppend(&text, "only in a  ", name, "\n");
  for (const std::string& name : diff.only_b) absl::StrAppend(&text, "only in b  ", name, "\n");
  for (const ReshapedTensor& tensor : diff.reshaped) {
    absl::StrAppend(&text, "reshaped   ", tensor.name, "  ", absl::StrJoin(tensor.shape_a, "x"),
                    " -> ", absl::StrJoin(tensor.shape_b, "x"), "\n");
  }
  if (!diff.different.empty()) {
    absl::StrAppendFormat(&text, "%12s  %12s  %14s  %s\n", "max |a-b|", "relative", "of elements",
                          "tensor");
  }
  for (const TensorDifference& tensor : diff.different) {
    absl::StrAppendFormat(&text, "%12.4g  %12.4g  %13.6g%%  %s\n", tensor.max_absolute,
                          tensor.max_relative,
                          100.0 * static_cast<double>(tensor.num_different) /
                              static_cast<double>(tensor.num_elements),
                          tensor.name);
  }
  if (diff.Identical()) return absl::StrCat(text, "identical: ", diff.num_equal, " tensors\n");
  return absl::StrCat(text, diff.num_equal, " tensors equal, ", diff.different.size(),
                      " different, ", diff.reshaped.size(), " reshaped, ",
                      diff.only_a.size() + diff.only_b.size(), " in one of them only\n");
}

JsonObject DifferenceJson(const TensorDifference& tensor) {
  return JsonObject()
      .Add("name", tensor.name)
      .Add("num_elements", tensor.num_elements)
      .Add("num_different", tensor.num_different)
      .Add("max_absolute", tensor.max_absolute)
      .Add("max_relative", tensor.max_relative);
}

JsonObject ReshapedJson(const ReshapedTensor& tensor) {
  return JsonObject()
      .Add("name", tensor.name)
      .Add("shape_a", tensor.shape_a)
      .Add("shape_b", tensor.shape_b);
}

JsonObject DiffJson(const CheckpointDiff& diff) {
  return JsonObject()
      .Add("a", diff.folder_a)
      .Add("b", diff.folder_b)
      .Add("step_a", diff.step_a)
      .Add("step_b", diff.step_b)
      .Add("identical", diff.Identical())
      .Add("num_equal", diff.num_equal)
      .Add("different", JsonObjects(diff.different, DifferenceJson))
      .Add("reshaped", JsonObjects(diff.reshaped, ReshapedJson))
      .Add("only_a", diff.only_a)
      .Add("only_b", diff.only_b);
}

absl::Status RunDiff(const CommandLine& line) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Tool> tool, StartTool(line, "A B", 2));
  ASSIGN_OR_RETURN(const std::string a, ChooseCheckpoint(*tool->fs, tool->paths[0], tool->options));
  ASSIGN_OR_RETURN(const std::string b, ChooseCheckpoint(*tool->fs, tool->paths[1], tool->options));
  ASSIGN_OR_RETURN(const CheckpointDiff diff,
                   DiffCheckpoints(*tool->fs, a, b, line.flags.Text("filter"), tool->options));
  line.out << (line.flags.Switch("json") ? JsonOf(DiffJson(diff)) + "\n" : Table(diff));
  return diff.Identical() ? absl::OkStatus() : EndWith(ExitCode::kCheckpoint);
}

Command DiffCommand() {
  return {.name = "diff",
          .summary = "Print how far two checkpoints' tensors are apart.",
          .description =
              "For each tensor whose bits are not equal: the greatest |a-b|, the same over the "
              "greatest |a| or |b| of the tensor, and how many elements differ. Tensors that only "
              "one has, or with another shape, are named. How they are stored, counters and hashes "
              "are not compared. Exit code 0: identical tensors; 5: different (1 stays what it is "
              "everywhere, an internal error).",
          .arguments = "A B",
          .max_arguments = 2,
          .flags = {TextFlag("filter", "TEXT",
                             "Only tensors with this in their names, for example weight/."),
                    JsonFlag(), MemoryFlag()},
          .run = RunDiff};
}

}  // namespace

std::vector<Command> CheckpointReaders() {
  return {ListCommand(), InspectCommand(), VerifyCommand(), DiffCommand()};
}

}  // namespace deepnet
