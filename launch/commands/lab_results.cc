#include "launch/commands/lab_results.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "launch/commands/lab_files.h"
#include "launch/version.h"
#include "parallel/base/host.h"
#include "parallel/base/status_macros.h"
#include "trainer/probe/report.h"

namespace deepnet {

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

LabResult MakeLabResult(const Experiment& experiment, const LabSetup& setup,
                        const std::vector<std::string>& selection, int threads, LabData data) {
  LabResult result;
  result.set_experiment(experiment.name);
  result.set_size(LabSizeName(experiment.size));
  result.set_version(kVersion);
  result.set_machine(absl::StrCat(UsableCores(), " cores, ", threads, " a run"));
  *result.mutable_data() = std::move(data);
  uint64_t seeds = 0;
  for (const CellSpec& cell : experiment.cells) seeds = std::max(seeds, cell.seed);
  result.set_seeds(static_cast<int>(seeds));
  result.set_cells_planned(static_cast<int>(experiment.cells.size()));
  std::vector<std::string> words = {"deepnet", "lab",         "run",     experiment.name,
                                    "--size",  result.size(), "--seeds", absl::StrCat(seeds),
                                    "--out",   setup.out};
  if (!setup.data.empty()) words.insert(words.end(), {"--data", setup.data});
  words.insert(words.end(), selection.begin(), selection.end());
  for (const std::string& set : setup.sets) words.insert(words.end(), {"--set", set});
  result.set_command(ShellText(words));
  return result;
}

}  // namespace deepnet
