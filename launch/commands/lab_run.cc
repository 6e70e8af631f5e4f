#include "launch/commands/lab_run.h"

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "launch/commands/lab_files.h"
#include "launch/commands/lab_print.h"
#include "launch/commands/lab_request.h"
#include "launch/commands/lab_results.h"
#include "launch/commands/lab_schedule.h"
#include "launch/commands/lab_work.h"
#include "launch/job.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/host.h"
#include "parallel/base/status_macros.h"
#include "parallel/plan/host_memory.h"
#include "trainer/probe/findings.h"

namespace deepnet {
namespace {

constexpr double kMemoryShare = 0.8;    // of this host, for cells
constexpr double kPlainSeconds = 20.0;  // between lines of progress in a file

LabLimits LimitsOf(const CommandLine& line, const LabSetup& setup,
                   const std::vector<const LabJob*>& jobs) {
  const int wanted = static_cast<int>(line.flags.Integer("jobs"));
  if (!setup.launcher.empty()) return MakeLaunchedLimits(wanted);
  const double host_gib = WithHostMemory(ClusterSpec()).device_memory_gib();
  const auto host_bytes = static_cast<int64_t>(kMemoryShare * host_gib * (int64_t{1} << 30));
  return MakeLabLimits(jobs, UsableCores(), host_bytes, wanted);
}

absl::Status Outcome(const LabResults& results, size_t num_jobs, const std::string& out) {
  if (results.NumFailed() == 0) return absl::OkStatus();
  return WithExitCode(absl::AbortedError(absl::StrCat(
                          results.NumFailed(), " of ", num_jobs, " runs failed; their log.txt in ",
                          out, "/cells says why; run the same again to try them again")),
                      results.FailedCode());
}

absl::Status RunJobs(const CommandLine& line, const LabRequest& request) {
  const auto fs = MakePosixFileSystem();
  const LabSetup& setup = request.setup;
  ASSIGN_OR_RETURN(const std::unique_ptr<LabWork> work, FindLabWork(*fs, request));
  const auto& [experiment, earlier_command, jobs, ended, pending, data] = *work;
  std::vector<const LabJob*> all;
  for (const LabJob& job : jobs) all.push_back(&job);
  const LabLimits limits = LimitsOf(line, setup, pending.empty() ? all : pending);
  const std::string folder = ResolveFrom(setup.root, setup.out);
  RETURN_IF_ERROR(fs->MakeFolder(folder));
  LabResults results(
      *fs, folder,
      MakeLabResult(request, experiment,
                    {.threads = limits.threads, .data = data, .earlier_command = earlier_command}),
      jobs);
  for (const auto& [name, cell] : ended) results.Add(cell);

  LoggerOptions log_options = StderrOptions();
  log_options.stream = &line.err;
  log_options.plain_seconds = kPlainSeconds;
  Logger log(log_options);
  log.Info(absl::StrCat(
      experiment.name, ": ", jobs.size(), " runs, ", ended.size(), " of them done; ", limits.jobs,
      " at once",
      limits.threads > 0 ? absl::StrCat(", threads each: ", limits.threads) : ", by the launcher"));
  const LabSchedule schedule{.experiment = experiment,
                             .setup = setup,
                             .limits = limits,
                             .keep_models = line.flags.Switch("keep-models"),
                             .request = &SignalRequests(),
                             .ended = [&results](const LabCell& cell) {
                               results.Add(cell);
                               return results.Write();
                             }};
  const absl::Status status = RunLabJobs(*fs, pending, schedule, log);
  RETURN_IF_ERROR(results.Write());
  line.out << FindingsText(results.result()) << JoinPath(setup.out, kLabReportFile) << "\n";
  if (absl::IsCancelled(status)) return WithExitCode(status, ExitCode::kSavedRunAgain);
  RETURN_IF_ERROR(status);
  return Outcome(results, jobs.size(), setup.out);
}

absl::Status RunLabRun(const CommandLine& line) {
  ListenToSignals();
  ASSIGN_OR_RETURN(const LabRequest request, ReadLabRequest(line));
  if (line.flags.Integer("jobs") < 0) {
    return BadFlag("--jobs: must be at least 1, or 0: as many as make sense");
  }
  const bool commands = line.flags.Switch("commands"), plan = line.flags.Switch("plan");
  if (!commands && !plan) return RunJobs(line, request);
  LabData data;
  ASSIGN_OR_RETURN(const std::vector<LabJob> jobs,
                   PlanForCorpus(request.experiment, request.setup, /*needed=*/false, &data));
  if (plan) PrintLabPlan(jobs, line.out);
  if (commands) PrintLabCommands(request.experiment, request.setup, jobs, line.out);
  return absl::OkStatus();
}

std::vector<Flag> LabRunFlags() {
  std::vector<Flag> flags = LabRequestFlags();
  const std::vector<Flag> more = {
      {.name = "jobs",
       .kind = FlagKind::kInteger,
       .value = "N",
       .default_value = "0",
       .help = "Runs side by side; 0: as many as cores and memory allow, one with --launcher."},
      {.name = "keep-models",
       .kind = FlagKind::kSwitch,
       .help = "Keep the checkpoints of runs that are done; by default only records stay."},
      {.name = "plan",
       .kind = FlagKind::kSwitch,
       .help = "Print a line a run (ranks, parameters, GiB, FLOPs) and do nothing else."},
      {.name = "commands",
       .kind = FlagKind::kSwitch,
       .help = "Print the commands of all runs and do nothing else."}};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

}  // namespace

Command MakeLabRunCommand() {
  return {
      .name = "run",
      .summary = "run an experiment, or go on with it, and write its report",
      .description =
          "Starts `train` and `evaluate` for every run of the EXPERIMENT, as many side by side as "
          "fit, writes result.json and report.html into --out after each, and prints what they "
          "show. Runs that have ended are not run again, and others may be added to them by "
          "--only, --at and --seeds; one that was interrupted goes on where it stopped. That a "
          "run diverges is a result. One Ctrl-C saves and ends with code 75.",
      .arguments = "EXPERIMENT",
      .max_arguments = 1,
      .flags = LabRunFlags(),
      .run = RunLabRun};
}

}  // namespace deepnet
