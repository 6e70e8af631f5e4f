#include "launch/commands/lab_run.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "launch/commands/lab_cells.h"
#include "launch/commands/lab_corpus.h"
#include "launch/commands/lab_files.h"
#include "launch/commands/lab_results.h"
#include "launch/commands/lab_schedule.h"
#include "launch/stop_signals.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/host.h"
#include "parallel/base/status_macros.h"
#include "parallel/plan/host_memory.h"

namespace deepnet {
namespace {

constexpr double kMemoryShare = 0.8;       // of this host, for cells
constexpr int kUnknownVocabulary = 32000;  // where there is no corpus to ask
constexpr double kPlainSeconds = 20.0;     // between lines of progress in a file

absl::Status BadFlag(const std::string& text) {
  return WithExitCode(absl::InvalidArgumentError(text), ExitCode::kBadConfig);
}

std::string ThisProgram() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "deepnet" : path.string();
}

LabSetup MakeSetup(const CommandLine& line, const Experiment& experiment) {
  LabSetup setup{.root = RootFolder(line),
                 .recipes = line.flags.Text("recipes"),
                 .out = line.flags.Text("out"),
                 .data = line.flags.Text("data"),
                 .sets = line.flags.List("set")};
  setup.program = absl::StrSplit(line.flags.Text("launcher"), ' ', absl::SkipEmpty());
  const std::string& program = line.flags.Text("program");
  setup.program.push_back(program.empty() ? ThisProgram() : program);
  if (setup.out.empty()) {
    setup.out = absl::StrCat("runs/lab/", experiment.name, "-", LabSizeName(experiment.size));
  }
  return setup;
}

absl::StatusOr<Experiment> AskedFor(const CommandLine& line) {
  const std::vector<std::string>& names = line.flags.positional();
  if (names.empty()) return BadFlag("no experiment given; `deepnet lab list` names them");
  if (line.flags.Integer("seeds") < 0 || line.flags.Integer("jobs") < 0) {
    return BadFlag("--seeds, --jobs: must be at least 1, or 0: as many as make sense");
  }
  const bool paper = line.flags.Text("size") == LabSizeName(LabSize::kPaper);
  ExperimentOptions options{.size = paper ? LabSize::kPaper : LabSize::kSmall,
                            .seeds = static_cast<int>(line.flags.Integer("seeds")),
                            .series = line.flags.List("only")};
  for (const std::string& place : line.flags.List("at")) {
    if (!absl::SimpleAtod(place, &options.xs.emplace_back())) {
      return BadFlag(absl::StrCat("--at: '", place, "' is no number"));
    }
  }
  auto experiment = MakeExperiment(names[0], options);
  if (!experiment.ok()) return BadFlag(std::string(experiment.status().message()));
  return experiment;
}

// The flags that leave runs out, as the user gave them.
std::vector<std::string> Selection(const CommandLine& line) {
  std::vector<std::string> words;
  for (const char* flag : {"only", "at"}) {
    for (const std::string& value : line.flags.List(flag)) {
      words.insert(words.end(), {absl::StrCat("--", flag), value});
    }
  }
  return words;
}

// What `evaluate` is told; 0: all.
int TestSentences(const Experiment& experiment) {
  const auto at = std::find(experiment.evaluate.begin(), experiment.evaluate.end(), "--sentences");
  int sentences = 0;
  if (at == experiment.evaluate.end() || !absl::SimpleAtoi(*std::next(at), &sentences)) return 0;
  return sentences;
}

// Jobs that know the corpus's vocabulary, and what there is to say of the corpus. Where it is
// missing and `needed`, says how to get it.
absl::StatusOr<std::vector<LabJob>> PlanJobs(const Experiment& experiment, const LabSetup& setup,
                                             bool needed, LabData* data) {
  ASSIGN_OR_RETURN(std::vector<LabJob> jobs, PlanLabJobs(experiment, setup, kUnknownVocabulary));
  const DataSpec& spec = jobs.front().run.data();
  const auto found =
      DescribeLabData(ResolveFrom(setup.root, spec.folder()),
                      {.directions = {spec.directions().begin(), spec.directions().end()},
                       .dev_sentences = jobs.front().run.train().validate_sentences(),
                       .test_sentences = TestSentences(experiment)});
  if (found.ok()) {
    *data = *found;
    data->set_folder(spec.folder());
    return PlanLabJobs(experiment, setup, data->vocabulary_size());
  }
  if (!needed) return jobs;
  return WithExitCode(
      absl::NotFoundError(absl::StrCat(
          found.status().message(),
          "\nprepare it (the small size learns from the quick start's: "
          "deepnet prepare --config launch/recipes/quickstart.textproto), or name one by --data")),
      ExitCode::kData);
}

// Cells that have ended, by name; FAILED ones are run again. Those of other settings are an error.
absl::StatusOr<std::map<std::string, LabCell>> Ended(FileSystem& fs, const LabSetup& setup,
                                                     const std::vector<LabJob>& jobs) {
  std::map<std::string, LabCell> ended;
  for (const LabJob& job : jobs) {
    const std::string folder = ResolveFrom(setup.root, CellFolder(setup.out, job.spec.name));
    const auto cell = ReadLabCell(fs, folder);
    if (!cell.ok() || cell->status() == CELL_FAILED) continue;
    if (!IsSameJob(*cell, job)) {
      return BadFlag(absl::StrCat("--out: ", folder, " is of other settings than ", job.spec.name,
                                  " has now; name another folder"));
    }
    ended[job.spec.name] = *cell;
  }
  return ended;
}

void PrintCommands(const Experiment& experiment, const LabSetup& setup,
                   const std::vector<LabJob>& jobs, std::ostream& out) {
  for (const LabJob& job : jobs) {
    out << ShellText(TrainWords(setup, job, 0)) << "\n";
    const std::vector<std::string> evaluate = EvaluateWords(setup, experiment, job, 0);
    if (!evaluate.empty()) out << ShellText(evaluate) << "\n";
  }
}

absl::Status RunJobs(const CommandLine& line, const Experiment& experiment, const LabSetup& setup,
                     const std::vector<LabJob>& jobs, LabData data) {
  const auto fs = MakePosixFileSystem();
  ASSIGN_OR_RETURN(const auto ended, Ended(*fs, setup, jobs));
  std::vector<const LabJob*> pending;
  for (const LabJob& job : jobs) {
    if (!ended.contains(job.spec.name)) pending.push_back(&job);
  }
  const double host_gib = WithHostMemory(ClusterSpec()).device_memory_gib();
  const auto host_bytes = static_cast<int64_t>(kMemoryShare * host_gib * (int64_t{1} << 30));
  std::vector<const LabJob*> all;
  for (const LabJob& job : jobs) all.push_back(&job);
  const LabLimits limits = MakeLabLimits(pending.empty() ? all : pending, UsableCores(), host_bytes,
                                         static_cast<int>(line.flags.Integer("jobs")));
  const std::string folder = ResolveFrom(setup.root, setup.out);
  RETURN_IF_ERROR(fs->MakeFolder(folder));
  LabResults results(
      *fs, folder,
      MakeLabResult(experiment, setup, Selection(line), limits.threads, std::move(data)), jobs);
  for (const auto& [name, cell] : ended) results.Add(cell);

  LoggerOptions log_options = StderrOptions();
  log_options.stream = &line.err;
  log_options.plain_seconds = kPlainSeconds;
  Logger log(log_options);
  log.Info(absl::StrCat(experiment.name, ": ", jobs.size(), " runs, ", ended.size(),
                        " of them done; ", limits.jobs,
                        " at once, threads each: ", limits.threads));
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
  line.out << JoinPath(setup.out, kLabReportFile) << "\n";
  if (absl::IsCancelled(status)) return WithExitCode(status, ExitCode::kSavedRunAgain);
  RETURN_IF_ERROR(status);
  if (results.NumFailed() == 0) return absl::OkStatus();
  return WithExitCode(
      absl::AbortedError(absl::StrCat(results.NumFailed(), " of ", jobs.size(),
                                      " runs failed; their log.txt in ", setup.out,
                                      "/cells says why; run the same again to try them again")),
      results.FailedCode());
}

absl::Status RunLabRun(const CommandLine& line) {
  ListenToSignals();
  ASSIGN_OR_RETURN(const Experiment experiment, AskedFor(line));
  const LabSetup setup = MakeSetup(line, experiment);
  const bool commands = line.flags.Switch("commands");
  LabData data;
  ASSIGN_OR_RETURN(const std::vector<LabJob> jobs,
                   PlanJobs(experiment, setup, /*needed=*/!commands, &data));
  if (!commands) return RunJobs(line, experiment, setup, jobs, std::move(data));
  PrintCommands(experiment, setup, jobs, line.out);
  return absl::OkStatus();
}

std::vector<Flag> LabRunFlags() {
  return {{.name = "size",
           .value = "small|paper",
           .default_value = "small",
           .help = "small: minutes on two cores. paper: the published settings, for a cluster.",
           .allowed = {"small", "paper"}},
          {.name = "data",
           .value = "FOLDER",
           .help = "Prepared corpus; default: the recipe's, for small that of the quick start."},
          {.name = "out",
           .value = "FOLDER",
           .help = "Where results go; default: runs/lab/EXPERIMENT-SIZE."},
          {.name = "seeds",
           .kind = FlagKind::kInteger,
           .value = "N",
           .default_value = "0",
           .help = "Runs that differ in their seed only; 0: the experiment's own number."},
          {.name = "only",
           .kind = FlagKind::kList,
           .value = "METHOD",
           .help = "Only this one (deepnet, post-ln, ...); may be given often."},
          {.name = "at",
           .kind = FlagKind::kList,
           .value = "X",
           .help = "Only at this place of the axis, for example 50 layers; may be given often."},
          {.name = "jobs",
           .kind = FlagKind::kInteger,
           .value = "N",
           .default_value = "0",
           .help = "Runs side by side; 0: as many as cores and memory allow."},
          {.name = "set",
           .kind = FlagKind::kList,
           .value = "FIELD=VALUE",
           .help = "Change one field of every run, as for `train`; the report names it."},
          {.name = "keep-models",
           .kind = FlagKind::kSwitch,
           .help = "Keep the checkpoints of runs that are done; by default only records stay."},
          {.name = "commands",
           .kind = FlagKind::kSwitch,
           .help = "Print the commands of all runs and do nothing else."},
          {.name = "launcher",
           .value = "WORDS",
           .help = "What starts the program of every run, for example 'mpirun -n 8'."},
          {.name = "program",
           .value = "FILE",
           .help = "The program that trains and scores; default: this one."},
          {.name = "recipes",
           .value = "FOLDER",
           .default_value = "launch/recipes",
           .help = "Where the recipes are."}};
}

}  // namespace

Command MakeLabRunCommand() {
  return {
      .name = "run",
      .summary = "run an experiment, or go on with it, and write its report",
      .description =
          "Starts `train` and `evaluate` for every run of the EXPERIMENT, as many side by side as "
          "fit, and writes result.json and report.html into --out after each. Runs that have "
          "ended are not run again; one that was interrupted goes on where it stopped. That a "
          "run diverges is a result. One Ctrl-C saves and ends with code 75.",
      .arguments = "EXPERIMENT",
      .max_arguments = 1,
      .flags = LabRunFlags(),
      .run = RunLabRun};
}

}  // namespace deepnet
