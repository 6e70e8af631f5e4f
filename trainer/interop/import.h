// `deepnet checkpoint import`: a Hugging Face folder as a run folder with one checkpoint.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "proto/run.pb.h"
#include "trainer/checkpoint/tools/tool_options.h"

namespace deepnet {

struct ImportOptions {
  // Fills in what an M2M-100 folder does not say: everything but model and tags.
  std::function<RunSpec(RunSpec run)> complete = [](RunSpec run) { return run; };
  ToolOptions tool = {};
};

struct ImportReport {
  std::string folder = {};              // of the checkpoint
  std::vector<std::string> notes = {};  // what did not fit exactly, a sentence each
};

// Reads a folder that `export --format safetensors` wrote (weights, run and vocabulary come back
// bit by bit, if they were not rounded) or one of transformers' M2M100ForConditionalGeneration. The
// result has weights and no moments: it translates, scores, evaluates and initialises a run.
// `output_run` is new or empty (ExitCode::kBadConfig otherwise). Every other model_type, and what
// no model of ours computes, is refused by name with ExitCode::kCheckpoint.
absl::StatusOr<ImportReport> ImportFolder(FileSystem& fs, const std::string& folder,
                                          const std::string& output_run,
                                          const ImportOptions& options);

}  // namespace deepnet
