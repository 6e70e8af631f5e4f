#include <memory>
#include <optional>
#include <string>

#include "launch/commands/commands.h"
#include "launch/defaults.h"
#include "launch/device_group.h"
#include "launch/job.h"
#include "launch/validate.h"
#include "parallel/base/file_system.h"
#include "parallel/base/logging.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "trainer/interop/import.h"
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

// What --init-from names. Rank 0 makes a run folder of a Hugging Face folder first, beside that of
// the run; it is kept.
absl::StatusOr<std::string> InitialWeights(const CommandLine& line, const RunSpec& run,
                                           Communicator& world, Logger& log) {
  const std::string path = line.flags.Text("init-from");
  const auto fs = MakePosixFileSystem();
  if (path.empty() || !fs->Exists(JoinPath(path, "config.json")).value_or(false)) return path;
  const std::string imported = JoinPath(RootFolder(line), run.folder() + ".imported");
  absl::Status status;
  if (world.rank() == 0 && !fs->Exists(imported).value_or(false)) {
    const auto report = ImportFolder(*fs, path, imported, {.complete = WithDefaults});
    status = report.status();
    if (report.ok()) {
      for (const std::string& note : report->notes) log.Info(note);
    }
  }
  RETURN_IF_ERROR(AgreeOnStatus(world, status));
  return imported;
}

absl::Status TrainOnAllRanks(const CommandLine& line, Communicator& hosts) {
  const absl::StatusOr<RunSpec> run = LoadRunSpec(line);
  RETURN_IF_ERROR(AgreeOnStatus(hosts, run.status()));
  ASSIGN_OR_RETURN(const auto devices, JoinDevices(run->compute(), hosts));
  Communicator& world = devices != nullptr ? *devices : hosts;
  Logger log(LogOptions(line, world));
  ASSIGN_OR_RETURN(const std::string init_from, InitialWeights(line, *run, world, log));
  std::optional<Watchdog> watchdog;
  if (world.size() > 1) watchdog.emplace(EndProcess);  // a rank alone waits for nobody
  return Train(*run,
               {.root = RootFolder(line),
                .fresh = line.flags.Switch("fresh"),
                .init_from = init_from,
                .request = &SignalRequests(),
                .deadline = JobDeadline(),
                .job_id = JobId(),
                .world = &world,
                .watchdog = watchdog.has_value() ? &*watchdog : nullptr,
                .on_stuck = EndProcess},
               log);
}

absl::Status RunTrain(const CommandLine& line) {
  ListenToSignals();
  ASSIGN_OR_RETURN(const std::unique_ptr<Job> job, JoinJob());
  return LeaveJob(job->world(), TrainOnAllRanks(line, job->world()));
}

}  // namespace

Command MakeTrainCommand() {
  return {
      .name = "train",
      .summary = "train a model, or go on with a run",
      .description =
          "Trains what the RunSpec says on the corpus of data.folder and writes checkpoints and "
          "metrics.jsonl into the run's folder. A folder that has checkpoints is continued from "
          "the newest good one, with the same next step bit for bit, on any number of ranks. "
          "`mpirun -n R deepnet train ...` shares the work between R ranks, on one host or many.\n"
          "SIGTERM, SIGUSR1 or one SIGINT: save and exit with code 75. SIGUSR2: save and go on. "
          "A second SIGINT: end at once.",
      .spec = SpecUse::kRequired,
      .validate = ValidateForTrain,
      .flags = {{.name = "fresh",
                 .kind = FlagKind::kSwitch,
                 .help = "refuse a run folder that is not empty"},
                {.name = "init-from",
                 .kind = FlagKind::kText,
                 .value = "CHECKPOINT|HF-FOLDER",
                 .help =
                     "begin a new run with these weights: a checkpoint, a run folder, what "
                     "`checkpoint import` made, or a Hugging Face folder that it can read; step, "
                     "optimizer, corpus and vocabulary are new"},
                {.name = "log-seconds",
                 .kind = FlagKind::kNumber,
                 .value = "SECONDS",
                 .default_value = "5",
                 .help = "in a file or pipe, a line of progress at most this often"},
                {.name = "progress",
                 .kind = FlagKind::kText,
                 .value = "auto|bar|lines",
                 .default_value = "auto",
                 .help = "a bar that is redrawn, or lines; auto: a bar on a terminal",
                 .allowed = {"auto", "bar", "lines"}}},
      .run = RunTrain};
}

}  // namespace deepnet
