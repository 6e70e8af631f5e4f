#include "launch/commands/rehearse.h"

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "launch/commands/rehearse_arguments.h"
#include "launch/commands/rehearse_cases.h"
#include "launch/commands/rehearse_data.h"
#include "launch/commands/rehearse_report.h"
#include "launch/job.h"
#include "launch/validate.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/thread_communicator.h"
#include "parallel/plan/planner.h"
#include "trainer/model/describe.h"

namespace deepnet {
namespace {

// `body` on every rank: threads of this process. The first error that is no echo of another's.
absl::Status OnThreads(int ranks, const std::function<absl::Status(Communicator&)>& body) {
  const auto comms = MakeThreadCommunicators(ranks);
  std::vector<absl::Status> statuses(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      statuses[rank] = body(*comms[rank]);
      if (!statuses[rank].ok()) comms[rank]->Abort(static_cast<int>(GetExitCode(statuses[rank])));
    });
  }
  for (std::thread& thread : threads) thread.join();
  absl::Status echo;
  for (const absl::Status& status : statuses) {
    if (!status.ok() && !absl::IsAborted(status)) return status;
    if (echo.ok()) echo = status;
  }
  return echo;
}

struct Prepared {
  RunSpec run;
  std::vector<RehearsalCase> cases;     // at least one, all of the same shape
  std::unique_ptr<RehearsalData> data;  // null: no corpus
};

// What one rank does: every case in turn. Rank 0 prints.
class Rehearser {
 public:
  Rehearser(const CommandLine& line, const Prepared& prepared, bool threads)
      : line_(line), prepared_(prepared), threads_(threads) {}

  absl::Status Run(Communicator& world) const {
    const bool speaks = world.rank() == 0;
    Watchdog watchdog(EndProcess);
    RehearsalReport report(prepared_.cases.front(),
                           {.threads = threads_,
                            .payload = line_.flags.Text("payload"),
                            .corpus = prepared_.run.data().folder(),
                            .has_corpus = prepared_.data != nullptr},
                           line_.flags.Switch("json"), line_.out);
    if (speaks) report.Begin();
    for (int number = 0; number < static_cast<int>(prepared_.cases.size()); ++number) {
      const RehearsalCase& now = prepared_.cases[number];
      ASSIGN_OR_RETURN(const Rehearsal result,
                       RunRehearsal(now.job, OptionsOf(number, watchdog), world));
      if (!speaks) continue;
      report.Add(now, result);
      if (line_.flags.Given("trace")) RETURN_IF_ERROR(WriteTrace(result));
    }
    if (speaks) report.End();
    return absl::OkStatus();
  }

 private:
  // Steps of one case follow on those of the case before.
  RehearsalOptions OptionsOf(int number, Watchdog& watchdog) const {
    RehearsalOptions options = MakeRehearsalOptions(line_.flags, prepared_.run.parallel());
    options.executor.watchdog = &watchdog;
    if (prepared_.data != nullptr) {
      options.fetch = [data = prepared_.data.get(), first = number * options.steps](int step) {
        return data->Fetch(first + step);
      };
    }
    return options;
  }

  absl::Status WriteTrace(const Rehearsal& result) const {
    const std::unique_ptr<FileSystem> fs = MakePosixFileSystem();
    return ReplaceFile(*fs, ResolvePath(line_, line_.flags.Text("trace")),
                       ChromeTrace(result.traces));
  }

  const CommandLine& line_;
  const Prepared& prepared_;
  const bool threads_;
};

// The same on every process.
absl::StatusOr<Prepared> Prepare(const CommandLine& line) {
  RETURN_IF_ERROR(CheckRehearseFlags(line.flags));
  Prepared made;
  ASSIGN_OR_RETURN(made.run, LoadRunSpec(line));
  if (line.flags.Given("schedule")) {
    made.run.mutable_parallel()->set_schedule(line.flags.Text("schedule"));
  }
  RETURN_IF_ERROR(ReadScheduleFile(RootFolder(line), made.run.mutable_parallel()));
  const Inventory inventory = Describe(made.run.model(), made.run.data().microbatch());
  if (line.flags.Switch("compare")) {
    ASSIGN_OR_RETURN(made.cases, ComparedCases(made.run, inventory));
  } else {
    ASSIGN_OR_RETURN(RehearsalCase planned, PlannedCase(made.run, inventory));
    made.cases.push_back(std::move(planned));
  }
  ASSIGN_OR_RETURN(made.data,
                   RehearsalData::Open(made.run, ResolvePath(line, made.run.data().folder())));
  return made;
}

absl::Status CheckRanks(const RehearsalJob& job, const Communicator& world) {
  if (world.size() == 1 || world.size() == job.NumRanks()) return absl::OkStatus();
  return WithExitCode(
      absl::InvalidArgumentError(absl::StrCat(
          "the plan has ", job.NumRanks(), " ranks (", job.placement.NumRanks(), " stages x ",
          job.exchange.replicas, " replicas), but ", world.size(), " were started")),
      ExitCode::kBadConfig);
}

absl::Status Rehearse(const CommandLine& line, Communicator& world) {
  const absl::StatusOr<Prepared> prepared = Prepare(line);
  RETURN_IF_ERROR(AgreeOnStatus(world, prepared.status()));
  const RehearsalJob& job = prepared->cases[0].job;
  RETURN_IF_ERROR(AgreeOnStatus(world, CheckRanks(job, world)));
  const std::vector<Fact> facts = {
      {"corpus", prepared->data == nullptr ? "none" : prepared->data->content_hash()}};
  RETURN_IF_ERROR(CheckSameEverywhere(world, facts));
  const bool threads = world.size() == 1;
  const Rehearser rehearser(line, *prepared, threads);
  const auto body = [&](Communicator& comm) { return rehearser.Run(comm); };
  return threads ? OnThreads(job.NumRanks(), body) : body(world);
}

absl::Status RunRehearse(const CommandLine& line) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Job> job, JoinJob());
  return LeaveJob(job->world(), Rehearse(line, job->world()));
}

}  // namespace

Command MakeRehearseCommand() {
  return {
      .name = "rehearse",
      .summary = "time the steps of a run without computing anything",
      .description =
          "Plans the run as `train` would, and runs the job: its data, schedule, executor, "
          "messages and exchanges of gradients and weights, with stages that wait as long as the "
          "cost model says (cluster.flops_per_second). Compares with the simulator: the step, the "
          "pipeline's bubble, and communication that nothing hid. Without mpirun all ranks are "
          "threads of this process; `mpirun -n R deepnet rehearse ...` has one process a rank. A "
          "waiting rank needs no core, so a laptop rehearses 64 ranks. Needs no memory for the "
          "model, and no corpus: without one, steps fetch no data.",
      .spec = SpecUse::kRequired,
      .validate = ValidateForPlan,
      .flags = RehearseFlags(),
      .run = RunRehearse};
}

}  // namespace deepnet
