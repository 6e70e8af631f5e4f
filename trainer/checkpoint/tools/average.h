// The mean of several checkpoints' weights: often a better model than the last one alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "trainer/checkpoint/tools/tool_options.h"

namespace deepnet {

// Writes `output_run`/step-N, where N is the latest step of `checkpoint_folders`, with the
// mean of their weights: each element is added in double, by ascending step (then by folder), is
// divided by the number of checkpoints and rounded once, so that neither the order of the arguments
// nor how they are stored changes a bit. The checkpoint has no moments: it translates, scores and
// initialises, but no run goes on from it. Its manifest is that of the latest, with `averaged` for
// what went in and without best scores, which belong to other weights. The rest of the run folder
// that translating needs is copied; `output_run` is new or empty (ExitCode::kBadConfig otherwise).
// Returns the checkpoint's folder.
//
// Refused, with ExitCode::kCheckpoint and both values: checkpoints of other models or vocabularies;
// one given twice. Holds at least a block of each checkpoint.
absl::StatusOr<std::string> AverageCheckpoints(FileSystem& fs,
                                               std::span<const std::string> checkpoint_folders,
                                               const std::string& output_run,
                                               const ToolOptions& options);

}  // namespace deepnet
