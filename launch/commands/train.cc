#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "launch/commands/command.h"
#include "launch/commands/doctor.h"
#include "launch/commands/train_text.h"
#include "launch/defaults.h"
#include "launch/device_group.h"
#include "launch/job.h"
#include "launch/validate.h"
#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/logging.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/heartbeat.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/interop/interop.h"
#include "trainer/trainer.h"

namespace deepnet {
namespace {

// Rank 0 speaks for all; the others only warn. Through mpirun a terminal looks like a pipe, so the
// launching script may say that there is one.
LoggerOptions LogOptions(const CommandLine& line, const Communicator& world) {
  LoggerOptions options = StderrOptions();
  options.rank = world.rank();
  options.num_ranks = world.size();
  options.warnings_only = world.rank() != 0;
  if (line.flags.Text("progress") != "auto")
    options.terminal = line.flags.Text("progress") == "bar";
  options.plain_seconds = line.flags.Number("log-seconds");
  return options;
}

// Returns the path of --init-from; rank 0 first imports a Hugging Face folder, beside the run's.
absl::StatusOr<std::string> InitialWeights(const CommandLine& line, const RunSpec& run,
                                           Communicator& world, Logger& log) {
  if (line.flags.Text("init-from").empty()) return "";
  const std::string path = ResolvePath(line, line.flags.Text("init-from"));
  const auto fs = MakePosixFileSystem();
  if (!Exists(*fs, JoinPath(path, "config.json")).value_or(false)) return path;
  const std::string imported = ResolvePath(line, run.folder() + ".imported");
  absl::Status status;
  if (world.rank() == 0 && !Exists(*fs, imported).value_or(false)) {
    const auto report = ImportFolder(*fs, path, imported, {.complete = WithDefaults});
    status = report.status();
    if (report.ok()) {
      for (const std::string& note : report->notes) log.Info(note);
    }
  }
  RETURN_IF_ERROR(AgreeOnStatus(world, status));
  return imported;
}

// Decides compute.device "auto" for all ranks: a run that goes on keeps its device, a new one takes
// what rank 0 has. Collective.
absl::Status DecideDevice(const CommandLine& line, Communicator& hosts, RunSpec* run) {
  std::string device = run->compute().device();
  if (hosts.rank() == 0 && device == "auto") {
    const auto fs = MakePosixFileSystem();
    const auto folder = ResolveCheckpoint(*fs, ResolvePath(line, run->folder()));
    if (folder.ok()) {
      const auto earlier = ReadManifest(*fs, *folder);
      if (earlier.ok()) run->mutable_compute()->set_device(earlier->run().compute().device());
    }
    if (run->compute().device().empty()) run->mutable_compute()->set_device("cpu");
    ResolveDevice(line, run->mutable_compute());
    device = run->compute().device();
  }
  ASSIGN_OR_RETURN(device, BroadcastText(hosts, device, 0));
  if (run->compute().device() == "auto") run->mutable_compute()->set_device(device);
  return absl::OkStatus();
}

// Returns the steps that --trace names.
absl::StatusOr<StepRange> TracedSteps(const CommandLine& line, const RunSpec& run) {
  const std::string& text = line.flags.Text("trace");
  if (text.empty()) return StepRange();
  const auto range = ParseStepRange(text);
  if (!range.ok()) return ConfigError("--trace: ", range.status().message());
  const StepRange steps{range->first, range->second};
  if (run.train().steps() > 0 && steps.to > run.train().steps()) {
    return ConfigError("--trace: ", text, ": the run ends with step ", run.train().steps(),
                       " (train.steps)");
  }
  return steps;
}

// Holds what the command line asks for.
struct Request {
  RunSpec run;
  StepRange traced;
};

absl::StatusOr<Request> ReadRequest(const CommandLine& line) {
  Request request;
  ASSIGN_OR_RETURN(request.run, LoadTrainConfig(line));
  // A shell that outlived its job still has its limit: the run would save and stop at each start.
  if (JobDeadline() <= SecondsNow()) {
    return PreflightError(
        "SLURM_JOB_END_TIME: the time limit of the job is over; where there is no job any more, "
        "unset it");
  }
  ASSIGN_OR_RETURN(request.traced, TracedSteps(line, request.run));
  return request;
}

// Examines the job as `doctor` does, before anything else is done. Failures end the run; outliers,
// which are slow but right, are warnings. Collective.
absl::Status CheckBeforeTraining(const CommandLine& line, const RunSpec& run, Communicator& world,
                                 Logger& log) {
  ASSIGN_OR_RETURN(const DoctorReport report, ExamineJob(line, run, /*has_run=*/true, world));
  std::string failures;
  for (const DoctorFinding& finding : report.findings()) {
    if (finding.failure()) absl::StrAppend(&failures, failures.empty() ? "" : "\n", finding.text());
    if (!finding.failure() && world.rank() == 0) log.Warning("--check: " + finding.text());
  }
  if (failures.empty()) {
    log.Info(absl::StrFormat("--check: %d checks passed in %.1f s", report.checks_size(),
                             report.seconds()));
    return absl::OkStatus();
  }
  return AgreeOnStatus(
      world, WithExitCode(absl::FailedPreconditionError("--check: " + failures), CodeOf(report)));
}

// `hosts` are all ranks of the job. The run trains over `world`: the same ranks, whose messages go
// from GPU to GPU where compute.device is "cuda".
absl::Status TrainOnAllRanks(const CommandLine& line, Communicator& hosts) {
  ASSIGN_OR_RETURN(Request request, AgreeOn(hosts, ReadRequest(line)));
  RunSpec& run = request.run;
  Logger log(LogOptions(line, hosts));
  if (line.flags.Given("text")) {
    RETURN_IF_ERROR(PrepareText(line, run, hosts, log));
    EndAtSignals();  // until here a signal ends the process, as it does `prepare`
  }
  RETURN_IF_ERROR(DecideDevice(line, hosts, &run));
  ASSIGN_OR_RETURN(const auto devices, JoinDevices(run.compute(), hosts));
  Communicator& world = devices != nullptr ? *devices : hosts;
  if (JobRestarts() > 0) log.Info(absl::StrCat("job ", JobId(), ", restart ", JobRestarts()));
  if (line.flags.Switch("check")) RETURN_IF_ERROR(CheckBeforeTraining(line, run, world, log));
  ASSIGN_OR_RETURN(const std::string init_from, InitialWeights(line, run, world, log));
  ListenToSignals();
  return Train(run,
               {.root = RootFolder(line),
                .require_empty = line.flags.Switch("require-empty"),
                .init_from = init_from,
                .request = &SignalRequests(),
                .deadline = JobDeadline(),
                .job_id = JobId(),
                .restarts = JobRestarts(),
                .world = &world,
                .trace = request.traced,
                .on_stuck = EndProcess},
               log);
}

}  // namespace

Command MakeTrainCommand() {
  Command command = {
      .name = "train",
      .summary = "Train a model, or resume a run.",
      .description =
          "Trains what the RunSpec says on the corpus of data.folder and writes checkpoints and "
          "metrics.jsonl into the run's folder. A folder that has checkpoints is continued from "
          "the newest good one, with the same next step bit for bit, on any number of ranks. "
          "`mpirun -n R deepnet train ...` shares the work between R ranks, on one host or many.\n"
          "SIGTERM, SIGUSR1 or one SIGINT: save and exit with code 75, at once where training has "
          "not begun. SIGUSR2: save and go on. A second SIGINT: end at once.",
      .arguments = "--config FILE | --text SOURCE TARGET",
      .max_arguments = 1,
      .spec = SpecUse::kRequired,
      .load = LoadTrainConfig,
      .validate = ValidateForTrain,
      .flags = {SwitchFlag("require-empty", "Refuse a run folder that is not empty."),
                SwitchFlag("check",
                           "Do what `deepnet doctor` does first: failures end the run with code 3, "
                           "those of the corpus with 4; slow ranks and links are warnings."),
                TextFlag("init-from", "CHECKPOINT|HF-FOLDER",
                         "Begin a new run with these weights: a checkpoint, a run folder, what "
                         "`checkpoint import` made, or a Hugging Face folder that it can read; "
                         "step, optimizer, corpus and vocabulary are new."),
                TextFlag("trace", "FROM..TO",
                         "Write what all ranks do in these steps, and when, into the run's folder "
                         "as trace-FROM-TO.json, which ui.perfetto.dev and chrome://tracing open: "
                         "actions, kernels, messages, sums, saves, data. They take longer."),
                NumberFlag("log-seconds", "SECONDS",
                           "Write a line of progress to a file or pipe at most this often.", "5"),
                ChoiceFlag("progress", "auto|bar|lines", {"auto", "bar", "lines"},
                           "Show a bar that is redrawn, or lines; auto: a bar on a terminal.",
                           "auto")},
      .run = [](const CommandLine& line) {
        if (!line.flags.Given("text")) EndAtSignals();
        return RunOnRanks(line, TrainOnAllRanks);
      }};
  const std::vector<Flag> text = TextFlags();
  command.flags.insert(command.flags.begin(), text.begin(), text.end());
  return command;
}

}  // namespace deepnet
