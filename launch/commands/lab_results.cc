#include "launch/commands/lab_results.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "launch/commands/lab_files.h"
#include "launch/version.h"
#include "parallel/base/host.h"
#include "parallel/base/status_macros.h"
#include "trainer/probe/report.h"

namespace deepnet {
namespace {

std::string MachineText(const LabSetup& setup, int threads) {
  if (!setup.launcher.empty()) return absl::StrCat("by ", absl::StrJoin(setup.launcher, " "));
  const int cores = UsableCores();
  return absl::StrCat(cores, cores == 1 ? " core, " : " cores, ", threads, " a run");
}

// A line each, none twice.
std::string Commands(const std::string& earlier, const std::string& command) {
  std::vector<std::string> lines = absl::StrSplit(earlier, '\n', absl::SkipEmpty());
  if (std::find(lines.begin(), lines.end(), command) == lines.end()) lines.push_back(command);
  return absl::StrJoin(lines, "\n");
}

}  // namespace

absl::Status LabResults::Write() {
  result_.clear_cells();
  for (const LabJob& job : jobs_) {
    const auto cell = cells_.find(job.spec.name);
    if (cell != cells_.end()) *result_.add_cells() = cell->second;
  }
  RETURN_IF_ERROR(WriteLabResult(fs_, folder_, result_));
  return ReplaceFile(fs_, JoinPath(folder_, kLabReportFile), MakeReport({&result_, 1}));
}

int LabResults::NumFailed() const {
  int failed = 0;
  for (const auto& [name, cell] : cells_) failed += cell.status() == CELL_FAILED ? 1 : 0;
  return failed;
}

ExitCode LabResults::FailedCode() const {
  for (const auto& [name, cell] : cells_) {
    const int code = cell.exit_code();
    if (cell.status() != CELL_FAILED) continue;
    const bool known = code >= static_cast<int>(ExitCode::kBadConfig) &&
                       code <= static_cast<int>(ExitCode::kReplicasDisagree);
    return known ? static_cast<ExitCode>(code) : ExitCode::kInternal;
  }
  return ExitCode::kInternal;
}

LabResult MakeLabResult(const LabRequest& request, const Experiment& experiment, LabOrigin origin) {
  LabResult result;
  result.set_experiment(experiment.name);
  result.set_size(LabSizeName(experiment.size));
  result.set_version(kVersion);
  result.set_machine(MachineText(request.setup, origin.threads));
  *result.mutable_data() = std::move(origin.data);
  result.set_seeds(static_cast<int>(NumSeeds(experiment)));
  result.set_cells_planned(static_cast<int>(experiment.cells.size()));
  const bool extends = experiment.cells.size() > request.experiment.cells.size();
  result.set_command(Commands(extends ? origin.earlier_command : "", LabCommandText(request)));
  return result;
}

}  // namespace deepnet
