// One loop: end what has ended, start what fits, show where it all stands, wait. A cell under way
// is in one of two phases, training or scoring, and in each it is one child program.
#include "launch/commands/lab_schedule.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <list>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "launch/commands/lab_child.h"
#include "launch/commands/lab_files.h"
#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "trainer/probe/axis.h"
#include "trainer/probe/quantities.h"
#include "trainer/stop_requests.h"

namespace deepnet {
namespace {

constexpr std::chrono::milliseconds kLook(500);  // between two looks at the cells under way
constexpr double kTrainShare = 0.95;             // of a cell's work: the rest is its score

struct Running {
  const LabJob* job;
  bool scoring = false;
  std::vector<std::string> commands;  // as a shell takes them
  ChildProgram child;
};

std::string Summary(const LabCell& cell) {
  std::string text = absl::StrCat(cell.name(), ": ");
  if (cell.status() == CELL_DIVERGED) return text + "diverged";
  if (cell.status() == CELL_FAILED) {
    return absl::StrCat(text, "failed, exit code ", cell.exit_code(), ": ", cell.error());
  }
  absl::StrAppend(&text, "done in ", ClockText(cell.seconds()));
  for (const Quantity quantity : {Quantity::kTestNll, Quantity::kDevNll, Quantity::kTrainNll}) {
    const auto score = CellScore(cell, quantity, 0);
    if (score.has_value()) return absl::StrCat(text, ", nll ", ShortNumber(*score, 4));
  }
  return text;
}

class Pool {
 public:
  Pool(FileSystem& fs, const std::vector<const LabJob*>& pending, const LabSchedule& schedule,
       Logger& log)
      : fs_(fs), schedule_(schedule), log_(log), waiting_(pending.begin(), pending.end()) {
    for (const LabJob* job : pending) {
      flops_ += job->flops;
      // What was done before this start does not tell how fast this machine is.
      done_before_ += Share(*job, false) * job->flops;
    }
    num_cells_ = pending.size();
  }

  absl::Status Run() {
    while (!waiting_.empty() || !running_.empty()) {
      if (IsStopping()) {
        waiting_.clear();
        for (Running& each : running_) each.child.Stop();
      }
      RETURN_IF_ERROR(EndAll());
      RETURN_IF_ERROR(StartAll());
      Show();
      Wait();
    }
    log_.EndProgress();
    if (IsStopping()) return absl::CancelledError("stopped: the same command goes on from here");
    return absl::OkStatus();
  }

 private:
  bool IsStopping() const {
    return schedule_.request != nullptr && (schedule_.request->load() & kStopRequest) != 0;
  }

  std::string Folder(const LabJob& job) const {
    return ResolveFrom(schedule_.setup.root, CellFolder(schedule_.setup.out, job.spec.name));
  }

  double Share(const LabJob& job, bool scoring) const {
    if (scoring) return kTrainShare;
    const double steps = static_cast<double>(std::max<int64_t>(1, job.run.train().steps()));
    return kTrainShare * std::min(1.0, static_cast<double>(CellSteps(fs_, Folder(job))) / steps);
  }

  absl::Status StartAll() {
    while (!waiting_.empty() && Fits(*waiting_.front())) {
      const LabJob* job = waiting_.front();
      waiting_.pop_front();
      RETURN_IF_ERROR(fs_.MakeFolder(Folder(*job)));
      RETURN_IF_ERROR(Start(*job, /*scoring=*/!job->spec.checkpoint.empty(), {}));
    }
    return absl::OkStatus();
  }

  bool Fits(const LabJob& job) const {
    int64_t bytes = job.bytes;
    for (const Running& each : running_) bytes += each.job->bytes;
    return running_.empty() || (static_cast<int>(running_.size()) < schedule_.limits.jobs &&
                                bytes <= schedule_.limits.bytes);
  }

  absl::Status EndAll() {
    for (auto at = running_.begin(); at != running_.end();) {
      const auto each = at++;
      if (!each->child.HasEnded()) continue;
      const int code = each->child.exit_code();
      const bool lacks_score = code == 0 && !each->scoring && !EvaluateWordsOf(*each->job).empty();
      if (IsStopping() && (code != 0 || lacks_score)) {
        // The next start goes on with it.
      } else if (lacks_score) {
        RETURN_IF_ERROR(Start(*each->job, /*scoring=*/true, each->commands));
      } else {
        RETURN_IF_ERROR(End(*each, code));
      }
      running_.erase(each);
    }
    return absl::OkStatus();
  }

  std::vector<std::string> EvaluateWordsOf(const LabJob& job) const {
    return EvaluateWords(schedule_.setup, schedule_.experiment, job, schedule_.limits.threads);
  }

  // A phase of a cell is an entry of the list. `commands`: of the phase before.
  absl::Status Start(const LabJob& job, bool scoring, std::vector<std::string> commands) {
    const std::string folder = Folder(job);
    const std::vector<std::string> words =
        scoring ? EvaluateWordsOf(job) : TrainWords(schedule_.setup, job, schedule_.limits.threads);
    const std::string output = scoring ? JoinPath(folder, kCellEvaluation) : "";
    ASSIGN_OR_RETURN(ChildProgram child,
                     ChildProgram::Start(words, JoinPath(folder, kCellLog), output));
    commands.push_back(ShellText(words));
    running_.push_back({&job, scoring, std::move(commands), std::move(child)});
    return absl::OkStatus();
  }

  absl::Status End(const Running& each, int code) {
    const std::string folder = Folder(*each.job);
    LabCell cell = MakeLabCell(*each.job);
    cell.set_exit_code(code);
    for (const std::string& command : each.commands) cell.add_commands(command);
    RETURN_IF_ERROR(ReadCellRecords(fs_, folder, &cell));
    if (cell.steps_size() > 0) cell.set_seconds(cell.steps(cell.steps_size() - 1).seconds());
    cell.set_seconds(cell.seconds() + cell.test().seconds());
    if (code == 0) {
      cell.set_status(CELL_DONE);
    } else if (code == static_cast<int>(ExitCode::kDiverged) && !each.scoring) {
      cell.set_status(CELL_DIVERGED);
    } else {
      cell.set_status(CELL_FAILED);
      cell.set_error(LastLogLine(fs_, folder));
    }
    RETURN_IF_ERROR(WriteLabCell(fs_, folder, cell));
    if (cell.status() != CELL_FAILED && !schedule_.keep_models) {
      RETURN_IF_ERROR(DropCellModels(fs_, folder));
    }
    done_flops_ += each.job->flops;
    ++num_ended_;
    log_.Info(Summary(cell));
    return schedule_.ended ? schedule_.ended(cell) : absl::OkStatus();
  }

  void Show() {
    double done = done_flops_;
    std::string names;
    for (const Running& each : running_) {
      done += Share(*each.job, each.scoring) * each.job->flops;
      absl::StrAppend(&names, names.empty() ? "" : ", ", each.job->spec.name);
    }
    const double now = SecondsNow() - start_;
    const double fraction = std::min(1.0, done / std::max(1.0, flops_));
    const double fresh = done - done_before_;
    Progress progress{.label = schedule_.experiment.name, .fraction = fraction};
    progress.figures = absl::StrCat(num_ended_, " of ", num_cells_, " runs  ", names);
    if (fresh > 0.01 * flops_) progress.seconds_left = now * (flops_ - done) / fresh;
    log_.Show(progress);
  }

  void Wait() {
    std::vector<ChildProgram*> children;
    for (Running& each : running_) children.push_back(&each.child);
    if (!children.empty()) WaitForChildren(children, kLook);
  }

  FileSystem& fs_;
  const LabSchedule& schedule_;
  Logger& log_;
  std::deque<const LabJob*> waiting_;
  std::list<Running> running_;
  double flops_ = 0.0;        // of all cells
  double done_flops_ = 0.0;   // of those that have ended
  double done_before_ = 0.0;  // by earlier starts
  size_t num_cells_ = 0;
  int num_ended_ = 0;
  const double start_ = SecondsNow();
};

}  // namespace

LabLimits MakeLabLimits(const std::vector<const LabJob*>& pending, int cores, int64_t host_bytes,
                        int jobs) {
  LabLimits limits{.jobs = jobs, .bytes = host_bytes};
  if (jobs <= 0) {
    limits.jobs = std::max(1, std::min(cores, static_cast<int>(pending.size())));
    std::vector<int64_t> bytes;
    for (const LabJob* job : pending) bytes.push_back(job->bytes);
    std::sort(bytes.rbegin(), bytes.rend());
    int fit = 0;
    int64_t sum = 0;
    for (const int64_t each : bytes) {
      sum += each;
      if (sum > host_bytes) break;
      ++fit;
    }
    limits.jobs = std::max(1, std::min(limits.jobs, fit));
  }
  limits.threads = std::max(1, cores / limits.jobs);
  return limits;
}

LabLimits MakeLaunchedLimits(int jobs) {
  return {.jobs = std::max(1, jobs), .bytes = std::numeric_limits<int64_t>::max(), .threads = 0};
}

absl::Status RunLabJobs(FileSystem& fs, const std::vector<const LabJob*>& pending,
                        const LabSchedule& schedule, Logger& log) {
  return Pool(fs, pending, schedule, log).Run();
}

}  // namespace deepnet
