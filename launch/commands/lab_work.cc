#include "launch/commands/lab_work.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "launch/commands/lab_corpus.h"
#include "launch/commands/lab_files.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

constexpr int kUnknownVocabulary = 32000;  // where there is no corpus to ask

// What `evaluate` is told; 0: all.
int TestSentences(const Experiment& experiment) {
  const auto at = std::find(experiment.evaluate.begin(), experiment.evaluate.end(), "--sentences");
  int sentences = 0;
  if (at == experiment.evaluate.end() || !absl::SimpleAtoi(*std::next(at), &sentences)) return 0;
  return sentences;
}

using CellsByFolder = std::map<std::string, LabCell>;

// The command of the result that `folder` has; empty where it has none. Refuses one that is another
// experiment's.
absl::StatusOr<std::string> EarlierCommand(FileSystem& fs, const LabRequest& request,
                                           const std::string& folder) {
  const auto result = ReadLabResult(fs, folder);
  if (!result.ok()) return "";  // nothing has ended there
  const Experiment& experiment = request.experiment;
  if (result->experiment() == experiment.name && result->size() == LabSizeName(experiment.size)) {
    return result->command();
  }
  return BadFlag(absl::StrCat("--out: ", request.setup.out, " holds ", result->experiment(),
                              ", size ", result->size(), "; name another folder"));
}

// Those in `folder` that count: failed ones are run again, if they are asked for.
absl::StatusOr<CellsByFolder> EarlierCells(FileSystem& fs, const std::string& folder) {
  CellsByFolder cells;
  const std::string below = JoinPath(folder, "cells");
  ASSIGN_OR_RETURN(const bool there, fs.Exists(below));
  if (!there) return cells;
  ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(below));
  for (const std::string& name : names) {
    const auto cell = ReadLabCell(fs, JoinPath(below, name));
    if (cell.ok() && cell->status() != CELL_FAILED) cells[name] = *cell;
  }
  return cells;
}

// `asked` and what is in `earlier`.
absl::StatusOr<Experiment> WithEarlierCells(const Experiment& asked, const CellsByFolder& earlier,
                                            const std::string& folder) {
  if (earlier.empty()) return asked;
  const bool open = asked.depths != DepthAxis::kNone;
  ExperimentOptions options{.size = asked.size, .seeds = static_cast<int>(NumSeeds(asked))};
  std::set<std::string> names;
  for (const CellSpec& cell : asked.cells) {
    names.insert(cell.name);
    if (open) options.series.push_back(cell.series), options.xs.push_back(cell.x);
  }
  for (const auto& [name, cell] : earlier) {
    names.insert(name);
    if (open) options.series.push_back(cell.series()), options.xs.push_back(cell.x());
    options.seeds = std::max(options.seeds, static_cast<int>(cell.seed()));
  }
  auto whole = MakeExperiment(asked.name, options);
  if (!whole.ok()) {
    return BadFlag(
        absl::StrCat("--out: ", folder, ": ", whole.status().message(), "; name another folder"));
  }
  std::erase_if(whole->cells, [&](const CellSpec& cell) { return !names.contains(cell.name); });
  return whole;
}

// Those of `earlier` that are of `jobs`, by name. Other settings are an error.
absl::StatusOr<std::map<std::string, LabCell>> Ended(const CellsByFolder& earlier,
                                                     const std::vector<LabJob>& jobs,
                                                     const std::string& folder) {
  std::map<std::string, LabCell> ended;
  for (const LabJob& job : jobs) {
    const auto cell = earlier.find(job.spec.name);
    if (cell == earlier.end()) continue;
    if (!IsSameJob(cell->second, job)) {
      return BadFlag(absl::StrCat("--out: ", CellFolder(folder, job.spec.name),
                                  " is of other settings than ", job.spec.name,
                                  " has now; name another folder"));
    }
    ended.insert(*cell);
  }
  return ended;
}

// Whether the launcher starts as many ranks as the clusters of `jobs` have, as far as it says.
absl::Status CheckLauncher(const LabSetup& setup, const std::vector<const LabJob*>& jobs) {
  const std::string launcher = absl::StrJoin(setup.launcher, " ");
  if (absl::StrContains(launcher, kRanksWord)) return absl::OkStatus();
  std::set<int> ranks;
  for (const LabJob* job : jobs) {
    if (job->ranks > 0 && job->spec.checkpoint.empty()) ranks.insert(job->ranks);
  }
  if (ranks.empty() || (launcher.empty() ? *ranks.rbegin() == 1 : ranks.size() == 1)) {
    return absl::OkStatus();
  }
  return BadFlag(absl::StrCat(
      "--launcher: ", launcher.empty() ? "required" : launcher, ": runs of ",
      absl::StrJoin(ranks, ", "),
      " ranks (nodes x devices_per_node of their cluster): write for "
      "example 'mpirun -n {ranks}', or --set cluster.nodes=... for another cluster, or let a batch "
      "system start what --commands prints"));
}

// Whether weights that runs begin with are there.
absl::Status CheckImported(FileSystem& fs, const LabSetup& setup,
                           const std::vector<const LabJob*>& jobs) {
  for (const LabJob* job : jobs) {
    if (job->spec.checkpoint.empty()) continue;
    const std::string& folder = job->run.folder();
    ASSIGN_OR_RETURN(const bool there, fs.Exists(ResolveFrom(setup.root, folder)));
    if (there) continue;
    return WithExitCode(
        absl::NotFoundError(absl::StrCat(
            job->spec.name, ": no checkpoint in ", folder,
            "; make it of the published weights "
            "(safetensors, in Hugging Face's layout): deepnet checkpoint import FOLDER --output ",
            folder, ", name another one by --m2m100, or leave it out by --only")),
        ExitCode::kCheckpoint);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<LabJob>> PlanForCorpus(const Experiment& experiment,
                                                  const LabSetup& setup, bool needed,
                                                  LabData* data) {
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

absl::StatusOr<std::unique_ptr<LabWork>> FindLabWork(FileSystem& fs, const LabRequest& request) {
  auto work = std::make_unique<LabWork>();
  const std::string folder = ResolveFrom(request.setup.root, request.setup.out);
  ASSIGN_OR_RETURN(work->earlier_command, EarlierCommand(fs, request, folder));
  ASSIGN_OR_RETURN(const CellsByFolder earlier, EarlierCells(fs, folder));
  ASSIGN_OR_RETURN(work->experiment, WithEarlierCells(request.experiment, earlier, folder));
  ASSIGN_OR_RETURN(work->jobs,
                   PlanForCorpus(work->experiment, request.setup, /*needed=*/true, &work->data));
  ASSIGN_OR_RETURN(work->ended, Ended(earlier, work->jobs, folder));
  for (const LabJob& job : work->jobs) {
    if (!work->ended.contains(job.spec.name)) work->pending.push_back(&job);
  }
  RETURN_IF_ERROR(CheckLauncher(request.setup, work->pending));
  RETURN_IF_ERROR(CheckImported(fs, request.setup, work->pending));
  return work;
}

}  // namespace deepnet
