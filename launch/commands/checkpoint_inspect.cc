#include <algorithm>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "launch/commands/checkpoint_tools.h"
#include "launch/spec_loader.h"
#include "parallel/base/json.h"
#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/tools/run_listing.h"
#include "trainer/checkpoint/tools/tensor_reader.h"
#include "trainer/metrics.h"

namespace deepnet {
namespace {

// What is printed of a checkpoint.
struct Inspection {
  std::string folder = {};
  Manifest manifest = {};
  std::vector<StoredTensor> tensors = {};  // those that were asked for
  bool with_spec = false;
};

void AppendRow(std::string& text, const std::string& name, const std::string& value) {
  if (!value.empty()) absl::StrAppendFormat(&text, "%-17s %s\n", name, value);
}

std::string BestText(const Manifest& manifest) {
  return absl::StrJoin(manifest.best(), ", ", [](std::string* out, const BestScore& best) {
    absl::StrAppendFormat(out, "%s %.6g at step %d", best.metric(), best.value(), best.step());
  });
}

// "3, 7 to 12".
std::string SkipsText(const Manifest& manifest) {
  return absl::StrJoin(manifest.skips(), ", ", [](std::string* out, const SkippedSteps& run) {
    absl::StrAppend(out, WithCommas(run.first_step()));
    if (run.count() > 1)
      absl::StrAppend(out, " to ", WithCommas(run.first_step() + run.count() - 1));
  });
}

std::string AveragedText(const Manifest& manifest) {
  return absl::StrJoin(manifest.averaged(), ", ",
                       [](std::string* out, const AveragedCheckpoint& averaged) {
                         absl::StrAppendFormat(out, "%s (manifest %08x)", averaged.folder(),
                                               averaged.manifest_crc32c());
                       });
}

std::string Summary(const Inspection& it) {
  const Manifest& m = it.manifest;
  std::string text;
  AppendRow(text, "checkpoint", it.folder);
  AppendRow(text, "run", m.run().name());
  AppendRow(text, "step", WithCommas(m.step()));
  AppendRow(text, "next data step", WithCommas(m.data().step()));
  AppendRow(text, "updates",
            absl::StrCat(WithCommas(m.optimizer_steps()), ", ", WithCommas(m.skipped_steps()),
                         " steps skipped"));
  AppendRow(text, "skipped", SkipsText(m));
  AppendRow(text, "tokens",
            absl::StrCat(WithCommas(m.source_tokens()), " source, ", WithCommas(m.target_tokens()),
                         " target"));
  AppendRow(text, "trained", ClockText(m.train_seconds()));
  AppendRow(text, "best", BestText(m));
  AppendRow(text, "mean of", AveragedText(m));
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

std::string Json(const Manifest& manifest, const StoredTensor& tensor) {
  const std::string parts =
      absl::StrJoin(tensor.parts, ", ", [&manifest](std::string* out, const StoredPart& part) {
        absl::StrAppend(out, "{\"file\": ", JsonQuoted(manifest.files(part.file).file()),
                        ", \"first_element\": ", part.first_element,
                        ", \"num_elements\": ", part.num_elements, ", \"offset\": ", part.offset,
                        "}");
      });
  return absl::StrCat("{\"name\": ", JsonQuoted(tensor.name), ", \"dtype\": \"float32\"",
                      ", \"shape\": ", JsonShape(tensor.shape),
                      ", \"num_elements\": ", tensor.num_elements, ", \"parts\": [", parts, "]}");
}

std::string Json(const Inspection& it) {
  Manifest head = it.manifest;  // the fields under the names that proto/checkpoint.proto has
  head.clear_files();
  if (!it.with_spec) head.clear_run();
  const std::string files =
      absl::StrJoin(it.manifest.files(), ", ", [](std::string* out, const ShardFile& file) {
        absl::StrAppend(out, "{\"file\": ", JsonQuoted(file.file()), ", \"bytes\": ", file.bytes(),
                        ", \"blocks\": ", file.block_crc32c_size(), "}");
      });
  const std::string tensors =
      absl::StrJoin(it.tensors, ",\n  ", [&it](std::string* out, const StoredTensor& tensor) {
        out->append(Json(it.manifest, tensor));
      });
  return absl::StrCat("{\"folder\": ", JsonQuoted(it.folder), ",\n \"manifest\": ", ToJson(head),
                      ",\n \"files\": [", files, "],\n \"tensors\": [\n  ", tensors, "]}\n");
}

absl::Status RunInspect(const CommandLine& line) {
  ToolBar bar(line, "inspect");
  ASSIGN_OR_RETURN(const ToolOptions options, ReadToolOptions(line, bar));
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, PathArguments(line, 1, "CHECKPOINT"));
  const std::unique_ptr<FileSystem> fs = MakePosixFileSystem();
  Inspection it{.with_spec = line.flags.Switch("spec")};
  ASSIGN_OR_RETURN(it.folder, ChooseCheckpoint(*fs, paths[0], options));
  ASSIGN_OR_RETURN(it.manifest, ReadManifestWithin(*fs, it.folder, options));
  it.tensors = IndexTensors(it.manifest);
  std::erase_if(it.tensors, [&line](const StoredTensor& tensor) {
    return !absl::StrContains(tensor.name, line.flags.Text("filter"));
  });
  line.out << (line.flags.Switch("json") ? Json(it) : Table(it));
  return absl::OkStatus();
}

}  // namespace

Command MakeCheckpointInspectCommand() {
  return {.name = "inspect",
          .summary = "what a checkpoint says of itself, and its tensors",
          .description =
              "Prints the manifest (step, where the data goes on, counters, best scores, hashes, "
              "files) and the name, shape and place of each tensor. Reads the manifest only, and "
              "compares its checksum. Tensors are float32: weight/NAME, and moment1/NAME and "
              "moment2/NAME of Adam.",
          .arguments = "CHECKPOINT",
          .max_arguments = 1,
          .flags = {{.name = "filter",
                     .value = "TEXT",
                     .help = "Only tensors with this in their names."},
                    {.name = "spec",
                     .kind = FlagKind::kSwitch,
                     .help = "Also print the RunSpec that it was saved by."},
                    JsonFlag(),
                    MemoryFlag()},
          .run = RunInspect};
}

}  // namespace deepnet
