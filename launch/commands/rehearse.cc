#include "launch/commands/rehearse.h"

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "launch/commands/rehearse_cases.h"
#include "launch/job.h"
#include "launch/validate.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/json.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/thread_communicator.h"
#include "parallel/exec/rehearsal.h"
#include "parallel/plan/planner.h"
#include "trainer/model/describe.h"

namespace deepnet {
namespace {

constexpr int64_t kSmallPayload = 64;  // bytes of a tensor: latency without bandwidth

absl::Status BadConfig(const std::string& text) {
  return WithExitCode(absl::InvalidArgumentError(text), ExitCode::kBadConfig);
}

absl::Status CheckFlags(const ParsedFlags& flags) {
  std::vector<std::string> mistakes;
  if (flags.Number("time-scale") < 0) mistakes.push_back("--time-scale: must be above 0");
  if (flags.Integer("steps") < 1) mistakes.push_back("--steps: must be at least 1");
  if (flags.Switch("compare") && flags.Given("trace")) {
    mistakes.push_back("--trace: shows one schedule: not with --compare");
  }
  if (flags.Switch("compare") && flags.Given("schedule")) {
    mistakes.push_back("--compare: shows every schedule: not with --schedule");
  }
  return mistakes.empty() ? absl::OkStatus() : BadConfig(absl::StrJoin(mistakes, "\n"));
}

RehearsalOptions OptionsOf(const CommandLine& line, const RunSpec& run) {
  RehearsalOptions options;
  options.time_scale = line.flags.Number("time-scale");
  if (line.flags.Text("payload") == "small") options.payload_limit_bytes = kSmallPayload;
  options.steps = static_cast<int>(line.flags.Integer("steps"));
  options.executor.limits = MakeTimeLimits(run.parallel(), /*first_step=*/true);
  return options;
}

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

std::string Head(const RehearsalCase& shape, const CommandLine& line, bool threads) {
  return absl::StrFormat(
      "%d ranks (%s), %d microbatches, payload %s; seconds are the cost model's\n\n"
      "%38s %31s   %s\n%-18s %9s %9s %10s %10s %9s %10s %10s %8s\n",
      shape.ranks, threads ? "threads" : "MPI", shape.microbatches, line.flags.Text("payload"),
      "planned", "bubble", "exposed communication", "schedule", "step, s", "bubble", "simulated",
      "rehearsed", "more", "simulated", "rehearsed", "scale");
}

std::string Row(const std::string& name, const Rehearsal& result) {
  return absl::StrFormat("%-18s %9.4g %8.2f%% %9.2f%% %9.2f%% %+8.2f%% %9.2f%% %9.2f%% %8.3g\n",
                         name, result.planned.makespan, 100 * result.planned.bubble,
                         100 * result.simulated.bubble, 100 * result.bubble,
                         100 * (result.bubble - result.simulated.bubble),
                         100 * result.simulated.exposed_communication,
                         100 * result.exposed_communication, result.time_scale);
}

std::string JsonRow(const std::string& name, const Rehearsal& result) {
  return absl::StrFormat(
      "{\"schedule\": %s, \"planned_step_seconds\": %.9g, \"step_seconds\": %.9g, "
      "\"planned_bubble\": %.6f, \"simulated_bubble\": %.6f, \"rehearsed_bubble\": %.6f, "
      "\"difference\": %.6f, \"simulated_exposed_communication\": %.6f, "
      "\"exposed_communication\": %.6f, \"time_scale\": %.9g}",
      JsonQuoted(name), result.planned.makespan, result.makespan, result.planned.bubble,
      result.simulated.bubble, result.bubble, result.bubble - result.simulated.bubble,
      result.simulated.exposed_communication, result.exposed_communication, result.time_scale);
}

// What one rank does: every case in turn. Rank 0 prints.
class Rehearser {
 public:
  Rehearser(const CommandLine& line, const RunSpec& run, const std::vector<RehearsalCase>& cases,
            bool threads)
      : line_(line), options_(OptionsOf(line, run)), cases_(cases) {
    const RehearsalCase& shape = cases.front();
    json_ = line.flags.Switch("json");
    head_ = json_ ? absl::StrFormat(
                        "{\"ranks\": %d, \"microbatches\": %d, \"payload\": %s, \"threads\": %s, "
                        "\"schedules\": [\n",
                        shape.ranks, shape.microbatches, JsonQuoted(line.flags.Text("payload")),
                        threads ? "true" : "false")
                  : Head(shape, line, threads);
  }

  absl::Status Run(Communicator& comm) const {
    const bool speaks = comm.rank() == 0;
    Watchdog watchdog(EndProcess);
    RehearsalOptions options = options_;
    options.executor.watchdog = &watchdog;
    if (speaks) line_.out << head_ << std::flush;
    for (size_t i = 0; i < cases_.size(); ++i) {
      ASSIGN_OR_RETURN(const Rehearsal result, RunRehearsal(cases_[i].job, options, comm));
      if (!speaks) continue;
      line_.out << (json_ ? JsonRow(cases_[i].name, result) + (i + 1 < cases_.size() ? ",\n" : "\n")
                          : Row(cases_[i].name, result))
                << std::flush;
      if (line_.flags.Given("trace")) RETURN_IF_ERROR(WriteTrace(result));
    }
    if (speaks && json_) line_.out << "]}\n";
    return absl::OkStatus();
  }

 private:
  absl::Status WriteTrace(const Rehearsal& result) const {
    const std::unique_ptr<FileSystem> fs = MakePosixFileSystem();
    return ReplaceFile(*fs, ResolvePath(line_, line_.flags.Text("trace")),
                       ChromeTrace(result.traces));
  }

  const CommandLine& line_;
  const RehearsalOptions options_;
  const std::vector<RehearsalCase>& cases_;
  bool json_ = false;
  std::string head_;
};

struct Prepared {
  RunSpec run;
  std::vector<RehearsalCase> cases;  // at least one, all of the same shape
};

// The same on every process.
absl::StatusOr<Prepared> Prepare(const CommandLine& line) {
  RETURN_IF_ERROR(CheckFlags(line.flags));
  Prepared made;
  ASSIGN_OR_RETURN(made.run, LoadRunSpec(line));
  if (line.flags.Given("schedule")) {
    made.run.mutable_parallel()->set_schedule(line.flags.Text("schedule"));
  }
  RETURN_IF_ERROR(ReadScheduleFile(RootFolder(line), made.run.mutable_parallel()));
  const Inventory inventory = Describe(made.run.model(), made.run.data().microbatch());
  if (line.flags.Switch("compare")) {
    ASSIGN_OR_RETURN(made.cases, ComparedCases(made.run, inventory));
    return made;
  }
  made.cases.resize(1);
  ASSIGN_OR_RETURN(made.cases[0], PlannedCase(made.run, inventory));
  return made;
}

absl::Status CheckRanks(int pipeline_ranks, const Communicator& world) {
  if (world.size() == 1 || world.size() == pipeline_ranks) return absl::OkStatus();
  return BadConfig(absl::StrCat("one replica is rehearsed: its pipeline has ", pipeline_ranks,
                                " ranks, but ", world.size(), " were started"));
}

absl::Status Rehearse(const CommandLine& line, Communicator& world) {
  const absl::StatusOr<Prepared> prepared = Prepare(line);
  RETURN_IF_ERROR(AgreeOnStatus(world, prepared.status()));
  const int ranks = prepared->cases[0].ranks;
  RETURN_IF_ERROR(AgreeOnStatus(world, CheckRanks(ranks, world)));
  const bool threads = world.size() == 1;
  const Rehearser rehearser(line, prepared->run, prepared->cases, threads);
  const auto body = [&](Communicator& comm) { return rehearser.Run(comm); };
  return threads ? OnThreads(ranks, body) : body(world);
}

absl::Status RunRehearse(const CommandLine& line) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Job> job, JoinJob());
  return LeaveJob(job->world(), Rehearse(line, job->world()));
}

}  // namespace

Command MakeRehearseCommand() {
  return {
      .name = "rehearse",
      .summary = "time the pipeline of a run without computing anything",
      .description =
          "Plans the run as `train` would, and runs one replica's real schedule, executor and "
          "messages with stages that wait as long as the cost model says "
          "(cluster.flops_per_second). Compares with the simulator: bubble, and communication that "
          "nothing hid. Without mpirun all ranks are threads of this process; `mpirun -n R deepnet "
          "rehearse ...` has one process a rank. A waiting rank needs no core, so a laptop "
          "rehearses 64 ranks. Needs neither corpus nor memory for the model.",
      .spec = SpecUse::kRequired,
      .validate = ValidateForPlan,
      .flags = {{.name = "schedule",
                 .value = "NAME|FILE",
                 .help = "In place of parallel.schedule: a name, or a file with a schedule as text "
                         "(as `plan --print schedule` shows it)."},
                {.name = "compare",
                 .kind = FlagKind::kSwitch,
                 .help = "Every schedule, one after the other, on as many stages as the plan has."},
                {.name = "time-scale",
                 .kind = FlagKind::kNumber,
                 .value = "K",
                 .default_value = "0",
                 .help =
                     "Seconds waited for each second of the cost model. 0: a step takes 3 s, or "
                     "longer where actions are many."},
                {.name = "payload",
                 .value = "SIZE",
                 .default_value = "small",
                 .help = "full: messages of real size. small: at most 64 bytes a tensor, where "
                         "this host's memory is not the network that is planned for.",
                 .allowed = {"full", "small"}},
                {.name = "steps",
                 .kind = FlagKind::kInteger,
                 .value = "N",
                 .default_value = "3",
                 .help = "Steps a schedule; the fastest counts."},
                {.name = "trace",
                 .value = "FILE",
                 .help = "Write what every rank did and when, for chrome://tracing or "
                         "ui.perfetto.dev. Not with --compare."},
                JsonFlag()},
      .run = RunRehearse};
}

}  // namespace deepnet
