#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "launch/byte_size.h"
#include "launch/commands/checkpoint_tools.h"
#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/tools/run_listing.h"
#include "trainer/interop/export.h"

namespace deepnet {
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

}  // namespace deepnet
