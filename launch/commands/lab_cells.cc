#include "launch/commands/lab_cells.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

#include "launch/commands/lab_files.h"
#include "launch/defaults.h"
#include "launch/spec_loader.h"
#include "launch/validate.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/status_macros.h"
#include "parallel/plan/planner.h"
#include "trainer/metrics.h"
#include "trainer/model/describe.h"

namespace deepnet {
namespace {

constexpr int64_t kProgramBytes = int64_t{300} << 20;  // LibTorch's libraries and the corpus
constexpr int64_t kWeightBytes = 4;                    // where it is only scored
constexpr double kPasses = 3.0;  // forward, gradients of inputs, gradients of weights

absl::Status PlanJob(int vocabulary_size, LabJob* job) {
  ModelSpec model = job->run.model();
  if (model.vocabulary_size() == 0) model.set_vocabulary_size(vocabulary_size);
  const Inventory inventory = Describe(model, job->run.data().microbatch());
  job->parameters = inventory.NumElements();
  if (!job->spec.checkpoint.empty()) {
    job->ranks = 1;
    job->rank_bytes = kWeightBytes * job->parameters;
    job->bytes = kProgramBytes + job->rank_bytes;
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const Plan plan,
                   MakePlan(inventory, job->run.data(), job->run.optim(), job->run.compute(),
                            job->run.cluster(), job->run.parallel(), job->run.instruments()));
  job->ranks = NumRanks(job->run);
  job->bytes = kProgramBytes;
  for (const StagePlan& stage : plan.stages()) {
    job->bytes += stage.memory().total();
    job->rank_bytes = std::max(job->rank_bytes, stage.memory().total());
  }
  for (const Layer& layer : inventory.layers) job->flops += kPasses * layer.forward_flops;
  job->flops *=
      static_cast<double>(job->run.train().steps()) * job->run.data().microbatches_per_step();
  return absl::OkStatus();
}

bool NeedsQuotes(const std::string& word) {
  return word.empty() || word.find_first_not_of(
                             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                             "_-./=,:+@%") != std::string::npos;
}

// What starts a run of that many ranks, the program last.
std::vector<std::string> StartWords(const LabSetup& setup, int ranks) {
  std::vector<std::string> words;
  for (const std::string& word : setup.launcher) {
    words.push_back(absl::StrReplaceAll(word, {{kRanksWord, absl::StrCat(std::max(1, ranks))}}));
  }
  words.push_back(setup.program);
  return words;
}

// The user's words on where things are, after the cell's own fields.
std::vector<std::string> JobSets(const LabSetup& setup, const CellSpec& spec) {
  std::vector<std::string> sets = spec.sets;
  if (!setup.data.empty()) sets.push_back(absl::StrCat("data.folder=", setup.data));
  sets.insert(sets.end(), setup.sets.begin(), setup.sets.end());
  sets.push_back(absl::StrCat("name=", spec.name));
  const std::string& imported = setup.imported.empty() ? spec.checkpoint : setup.imported;
  sets.push_back(
      absl::StrCat("folder=", spec.checkpoint.empty()
                                  ? JoinPath(CellFolder(setup.out, spec.name), kCellRunFolder)
                                  : imported));
  return sets;
}

}  // namespace

absl::StatusOr<RunSpec> ReadCellRun(const LabSetup& setup, const CellSpec& spec,
                                    const std::vector<std::string>& sets) {
  const SpecSources sources{
      .root = setup.root, .files = {JoinPath(setup.recipes, spec.recipe)}, .sets = sets};
  ASSIGN_OR_RETURN(RunSpec run, ReadRunSpec(sources, RunSpec()));
  run = WithDefaults(std::move(run));
  RETURN_IF_ERROR(ValidateForTrain(run));
  return run;
}

int NumRanks(const RunSpec& run) {
  const ClusterSpec& cluster = run.cluster();
  if (cluster.nodes() == 0 && cluster.devices_per_node() == 0) return 0;
  return std::max(1, cluster.nodes()) * std::max(1, cluster.devices_per_node());
}

absl::StatusOr<std::vector<LabJob>> PlanLabJobs(const Experiment& experiment, const LabSetup& setup,
                                                int vocabulary_size) {
  std::vector<LabJob> jobs;
  std::vector<std::string> mistakes;
  for (const CellSpec& spec : experiment.cells) {
    LabJob job{.spec = spec, .sets = JobSets(setup, spec)};
    absl::StatusOr<RunSpec> run = ReadCellRun(setup, spec, job.sets);
    absl::Status status = run.status();
    if (run.ok()) {
      job.run = *std::move(run);
      status = PlanJob(vocabulary_size, &job);
    }
    if (!status.ok()) mistakes.push_back(absl::StrCat(spec.name, ": ", status.message()));
    jobs.push_back(std::move(job));
  }
  if (mistakes.empty()) return jobs;
  return WithExitCode(absl::InvalidArgumentError(absl::StrJoin(mistakes, "\n")),
                      ExitCode::kBadConfig);
}

std::vector<std::string> TrainWords(const LabSetup& setup, const LabJob& job, int threads) {
  std::vector<std::string> words = StartWords(setup, job.ranks);
  words.insert(words.end(), {"train", "--root", setup.root, "--config",
                             JoinPath(setup.recipes, job.spec.recipe)});
  for (const std::string& set : job.sets) words.insert(words.end(), {"--set", set});
  if (threads > 0) {
    words.insert(words.end(), {"--set", absl::StrCat("compute.threads_per_rank=", threads)});
  }
  words.insert(words.end(), {"--progress", "lines", "--log-seconds", "60"});
  return words;
}

std::vector<std::string> EvaluateWords(const LabSetup& setup, const Experiment& experiment,
                                       const LabJob& job, int threads) {
  if (experiment.evaluate.empty()) return {};
  const std::vector<std::string>& launcher = setup.launcher;
  const bool told = absl::StrContains(absl::StrJoin(launcher, " "), kRanksWord);
  std::vector<std::string> words = {setup.program};
  if (told) words = StartWords(setup, 1);
  words.insert(words.end(),
               {"evaluate", "--root", setup.root, "--checkpoint", job.run.folder(), "--json"});
  if (!job.spec.checkpoint.empty()) {  // it names no corpus itself
    words.insert(words.end(), {"--data", job.run.data().folder()});
  }
  for (const std::string& word : experiment.evaluate) {
    words.push_back(absl::StrReplaceAll(word, {{"{data}", job.run.data().folder()}}));
  }
  for (const std::string& direction : job.run.data().directions()) {
    words.insert(words.end(), {"--direction", direction});
  }
  if (threads > 0) {
    words.insert(words.end(), {"--set", absl::StrCat("compute.threads_per_rank=", threads)});
  }
  return words;
}

std::string ResolveFrom(const std::string& root, const std::string& path) {
  return std::filesystem::path(root) / path;
}

std::string ShellText(const std::vector<std::string>& words) {
  std::vector<std::string> quoted;
  for (const std::string& word : words) {
    quoted.push_back(NeedsQuotes(word)
                         ? absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'")
                         : word);
  }
  return absl::StrJoin(quoted, " ");
}

LabCell MakeLabCell(const LabJob& job) {
  LabCell cell;
  cell.set_name(job.spec.name);
  cell.set_group(job.spec.group);
  cell.set_series(job.spec.series);
  cell.set_x(job.spec.x);
  cell.set_y(job.spec.y);
  cell.set_seed(job.spec.seed);
  cell.set_recipe(job.spec.recipe);
  for (const std::string& set : job.sets) cell.add_sets(set);
  *cell.mutable_run() = job.run;
  cell.set_parameters(job.parameters);
  return cell;
}

bool IsSameJob(const LabCell& cell, const LabJob& job) {
  return ToJson(cell.run()) == ToJson(job.run);
}

}  // namespace deepnet
