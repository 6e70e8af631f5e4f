#include "launch/commands/lab_cells.h"

#include <filesystem>

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
constexpr double kPasses = 3.0;  // forward, gradients of inputs, gradients of weights

absl::StatusOr<RunSpec> CellRun(const LabSetup& setup, const LabJob& job) {
  const SpecSources sources{
      .root = setup.root, .files = {JoinPath(setup.recipes, job.spec.recipe)}, .sets = job.sets};
  ASSIGN_OR_RETURN(RunSpec run, ReadRunSpec(sources, RunSpec()));
  run = WithDefaults(std::move(run));
  RETURN_IF_ERROR(ValidateForTrain(run));
  return run;
}

absl::Status PlanJob(int vocabulary_size, LabJob* job) {
  ModelSpec model = job->run.model();
  if (model.vocabulary_size() == 0) model.set_vocabulary_size(vocabulary_size);
  const Inventory inventory = Describe(model, job->run.data().microbatch());
  ASSIGN_OR_RETURN(const Plan plan,
                   MakePlan(inventory, job->run.data(), job->run.optim(), job->run.compute(),
                            job->run.cluster(), job->run.parallel(), job->run.instruments()));
  job->bytes = kProgramBytes;
  for (const StagePlan& stage : plan.stages()) job->bytes += stage.memory().total();
  for (const Layer& layer : inventory.layers) job->flops += kPasses * layer.forward_flops;
  job->flops *=
      static_cast<double>(job->run.train().steps()) * job->run.data().microbatches_per_step();
  job->parameters = inventory.NumElements();
  return absl::OkStatus();
}

bool NeedsQuotes(const std::string& word) {
  return word.empty() || word.find_first_not_of(
                             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                             "_-./=,:+@%") != std::string::npos;
}

}  // namespace

absl::StatusOr<std::vector<LabJob>> PlanLabJobs(const Experiment& experiment, const LabSetup& setup,
                                                int vocabulary_size) {
  std::vector<LabJob> jobs;
  std::vector<std::string> mistakes;
  for (const CellSpec& spec : experiment.cells) {
    LabJob job{.spec = spec, .sets = spec.sets};
    if (!setup.data.empty()) job.sets.push_back(absl::StrCat("data.folder=", setup.data));
    job.sets.insert(job.sets.end(), setup.sets.begin(), setup.sets.end());
    job.sets.push_back(absl::StrCat("name=", spec.name));
    job.sets.push_back(
        absl::StrCat("folder=", JoinPath(CellFolder(setup.out, spec.name), kCellRunFolder)));
    absl::StatusOr<RunSpec> run = CellRun(setup, job);
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
  std::vector<std::string> words = setup.program;
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
  std::vector<std::string> words = setup.program;
  words.insert(words.end(),
               {"evaluate", "--root", setup.root, "--checkpoint", job.run.folder(), "--json"});
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
