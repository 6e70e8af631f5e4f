// What the user asked of `deepnet lab run`: which cells of which experiment, and how to run them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "launch/commands/command.h"
#include "launch/commands/lab_cells.h"
#include "trainer/probe/experiment.h"

namespace deepnet {

struct LabRequest {
  Experiment experiment;  // the cells that were asked for
  LabSetup setup;
  // For LabCommandText: --only, --at, --root, --recipes, --launcher, --program and --m2m100 as the
  // user gave them.
  std::vector<std::string> given = {};
};

// --recipes.
Flag RecipesFlag();

// The flags that ReadLabRequest reads.
std::vector<Flag> LabRequestFlags();

// Errors carry ExitCode::kBadConfig.
absl::StatusOr<LabRequest> ReadLabRequest(const CommandLine& line);

// The request as one types it.
std::string LabCommandText(const LabRequest& request);

}  // namespace deepnet
