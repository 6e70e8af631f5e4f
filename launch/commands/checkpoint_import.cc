#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "launch/commands/checkpoint_tools.h"
#include "launch/defaults.h"
#include "parallel/base/status_macros.h"
#include "trainer/interop/import.h"

namespace deepnet {
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

}  // namespace deepnet
