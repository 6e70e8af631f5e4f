#include "launch/commands/lab_print.h"

#include <algorithm>
#include <ostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/logging.h"

namespace deepnet {

void PrintLabCommands(const Experiment& experiment, const LabSetup& setup,
                      const std::vector<LabJob>& jobs, std::ostream& out) {
  int said = 0;
  for (const LabJob& job : jobs) {
    if (job.spec.checkpoint.empty() && job.ranks != said) {
      out << absl::StrFormat("# %d rank%s a run, one for `evaluate`\n", job.ranks,
                             job.ranks == 1 ? "" : "s");
      said = job.ranks;
    }
    if (job.spec.checkpoint.empty()) out << ShellText(TrainWords(setup, job, 0)) << "\n";
    const std::vector<std::string> evaluate = EvaluateWords(setup, experiment, job, 0);
    if (!evaluate.empty()) out << ShellText(evaluate) << "\n";
  }
}

void PrintLabPlan(const std::vector<LabJob>& jobs, std::ostream& out) {
  size_t width = 3;
  double flops = 0.0;
  for (const LabJob& job : jobs) {
    width = std::max(width, job.spec.name.size());
    flops += job.flops;
  }
  const int column = static_cast<int>(width);
  out << absl::StrFormat("%-*s  %5s  %14s  %10s  %9s\n", column, "run", "ranks", "parameters",
                         "GiB a rank", "FLOPs");
  for (const LabJob& job : jobs) {
    out << absl::StrFormat("%-*s  %5s  %14s  %10.2f  %9s\n", column, job.spec.name,
                           job.ranks > 0 ? absl::StrCat(job.ranks) : "any",
                           WithCommas(job.parameters),
                           static_cast<double>(job.rank_bytes) / (int64_t{1} << 30),
                           job.flops > 0 ? absl::StrFormat("%.2e", job.flops) : "scored");
  }
  out << absl::StrFormat(
      "\n%d runs, %.2e FLOPs. GiB: of the fullest rank; any: on one rank. FLOPs: of training, what "
      "is computed twice to save memory not counted.\n",
      jobs.size(), flops);
}

}  // namespace deepnet
