// `deepnet checkpoint export` and `import`: a checkpoint as a folder that other programs read, and
// a run folder with one checkpoint made of a Hugging Face folder. docs/design/interop.md says what
// is in them and how exact they are.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "proto/run.pb.h"
#include "trainer/checkpoint/tools/tensor_reader.h"
#include "trainer/interop/safetensors.h"

namespace deepnet {

enum class ExportFormat {
  kSafetensors,  // our weights under Hugging Face's names
  kMarian,       // weights changed so that MarianMTModel computes the same
};

struct ExportOptions {
  ExportFormat format = ExportFormat::kSafetensors;
  SafetensorsLayout layout = {};
  ToolOptions tool = {};
};

// Writes `output`, which does not exist or is an empty folder, by way of `output` + kUnfinishedEnd:
// it exists completely or not at all. The ranks of options.tool.world write a file of weights each.
// The tokenizer is that of the run folder that holds `checkpoint_folder`. Errors carry
// ExitCode::kCheckpoint; kBadConfig for the output folder, kDoesNotFit for memory.
// Returns statements for the user, a sentence or two each.
absl::StatusOr<std::vector<std::string>> ExportCheckpoint(FileSystem& fs,
                                                          const std::string& checkpoint_folder,
                                                          const std::string& output,
                                                          const ExportOptions& options);

struct ImportOptions {
  // Completes the RunSpec of a folder of another program, which gives only model and tags.
  std::function<RunSpec(RunSpec run)> complete = [](RunSpec run) { return run; };
  ToolOptions tool = {};
};

struct ImportReport {
  std::string folder = {};              // the checkpoint's
  std::vector<std::string> notes = {};  // a sentence for each thing that did not fit exactly
};

// Reads a folder that `export --format safetensors` wrote (weights, run and vocabulary come back
// bit by bit, if they were not rounded) or one of transformers' M2M100ForConditionalGeneration. The
// result has weights and no moments: it translates, scores, evaluates and initialises a run.
// `output_run` is new or empty (ExitCode::kBadConfig otherwise). Refuses by name, with
// ExitCode::kCheckpoint, every other model_type and every setting that no model here has.
absl::StatusOr<ImportReport> ImportFolder(FileSystem& fs, const std::string& folder,
                                          const std::string& output_run,
                                          const ImportOptions& options);

}  // namespace deepnet
