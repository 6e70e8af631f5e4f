// `train --text SOURCE TARGET`: a run of two files of text, without a RunSpec file and without
// `prepare` before it.
//
// The run's folder gets text/ (the two files, cut into train and dev) and corpus/ (what `prepare`
// makes of them), each of them once: a second start with the same text finds them, one with another
// text is refused.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "launch/commands/command.h"
#include "launch/flags.h"
#include "parallel/base/logging.h"
#include "parallel/comm/communicator.h"
#include "proto/run.pb.h"

namespace deepnet {

// Returns --text, --from and --to. TARGET is a word of its own.
std::vector<Flag> TextFlags();

// Returns the RunSpec of `train`: with --text a small model and what fits the files, changed by
// --config and --set, else that of --config. Errors carry ExitCode::kBadConfig, or kData where a
// text cannot be found.
absl::StatusOr<RunSpec> LoadTrainConfig(const CommandLine& line);

// Writes what `run` (LoadTrainConfig, --text) names in its `prepare`: of line i (from 0) of n every
// k-th into dev, k = max(20, n / 1000 rounded up), the others into train. Then prepares
// data.folder. Errors carry ExitCode::kData and name the file. Collective.
absl::Status PrepareText(const CommandLine& line, const RunSpec& run, Communicator& world,
                         Logger& log);

}  // namespace deepnet
