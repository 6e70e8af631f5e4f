// What `deepnet lab run` would do, for reading: commands, and what each run costs.
#pragma once

#include <iosfwd>
#include <vector>

#include "launch/commands/lab_cells.h"

namespace deepnet {

// A line a program that would be started, as a shell takes it. Before it, where a run's cluster
// says so, how many ranks that is.
void PrintLabCommands(const Experiment& experiment, const LabSetup& setup,
                      const std::vector<LabJob>& jobs, std::ostream& out);

// A table with a row a run: ranks, parameters, GiB of the fullest rank, FLOPs of all its steps.
void PrintLabPlan(const std::vector<LabJob>& jobs, std::ostream& out);

}  // namespace deepnet
