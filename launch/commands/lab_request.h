// What the user asked of `deepnet lab run`: which cells of which experiment, and how to run them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "launch/commands/command.h"
#include "launch/commands/lab_cells.h"
#include "parallel/base/file_system.h"
#include "trainer/probe/experiment.h"

namespace deepnet {

struct LabRequest {
  ExperimentOptions options;
  Experiment experiment;  // by these options: the cells that were asked for
  LabSetup setup;
  std::vector<std::string> given;  // flags that are neither in `options` nor in `setup.sets`,
                                   // --only and --at, as the user wrote them
};

// The flags that ReadLabRequest reads.
std::vector<Flag> LabRequestFlags();

// Errors carry ExitCode::kBadConfig.
absl::StatusOr<LabRequest> ReadLabRequest(const CommandLine& line);

// What the report of the folder shows: the cells asked for, and those that ended there after
// earlier requests for the same experiment, with other --only, --at and --seeds. In the
// experiment's order. ExitCode::kBadConfig where the folder is another experiment's.
absl::StatusOr<Experiment> WithEarlierCells(FileSystem& fs, const LabRequest& request);

// The request as one types it.
std::string LabCommandText(const LabRequest& request);

}  // namespace deepnet
