// `deepnet checkpoint export`: writes a checkpoint as a folder that other programs read.
// docs/design/interop.md says what is in it and how exact it is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "trainer/checkpoint/tools/tool_options.h"
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

struct ExportReport {
  int64_t tensors = 0;
  std::vector<std::string> statements = {};  // for the user, a sentence or two each
};

// Writes `output`, which does not exist or is an empty folder, by way of `output` + ".tmp": it
// exists completely or not at all. The tokenizer is that of the run folder that holds
// `checkpoint_folder`. Errors carry ExitCode::kCheckpoint; kBadConfig for the output folder,
// kDoesNotFit for memory.
absl::StatusOr<ExportReport> ExportCheckpoint(FileSystem& fs, const std::string& checkpoint_folder,
                                              const std::string& output,
                                              const ExportOptions& options);

}  // namespace deepnet
