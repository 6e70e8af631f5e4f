#include "launch/commands/lab_work.h"

#include <algorithm>
#include <set>
#include <utility>

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

absl::Status BadFlag(const std::string& text) {
  return WithExitCode(absl::InvalidArgumentError(text), ExitCode::kBadConfig);
}

// What `evaluate` is told; 0: all.
int TestSentences(const Experiment& experiment) {
  const auto at = std::find(experiment.evaluate.begin(), experiment.evaluate.end(), "--sentences");
  int sentences = 0;
  if (at == experiment.evaluate.end() || !absl::SimpleAtoi(*std::next(at), &sentences)) return 0;
  return sentences;
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
  ASSIGN_OR_RETURN(work->experiment, WithEarlierCells(fs, request));
  ASSIGN_OR_RETURN(work->jobs,
                   PlanForCorpus(work->experiment, request.setup, /*needed=*/true, &work->data));
  ASSIGN_OR_RETURN(work->ended, Ended(fs, request.setup, work->jobs));
  for (const LabJob& job : work->jobs) {
    if (!work->ended.contains(job.spec.name)) work->pending.push_back(&job);
  }
  RETURN_IF_ERROR(CheckLauncher(request.setup, work->pending));
  RETURN_IF_ERROR(CheckImported(fs, request.setup, work->pending));
  return work;
}

}  // namespace deepnet
