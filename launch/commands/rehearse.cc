#include "launch/commands/rehearse.h"

#include <algorithm>
#include <functional>
#include <span>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "launch/commands/command.h"
#include "launch/job.h"
#include "launch/validate.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/host.h"
#include "parallel/base/json.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/backends.h"
#include "parallel/comm/heartbeat.h"
#include "parallel/plan/check_schedule.h"
#include "parallel/plan/plan_accessors.h"
#include "parallel/plan/planner.h"
#include "parallel/plan/planner_text.h"
#include "trainer/data/corpus_batch_source.h"
#include "trainer/named_files.h"

namespace deepnet {
namespace {

// 0 is unlimited: nothing of the model is allocated here.
absl::StatusOr<Plan> PlanOf(const RunSpec& run, const ParallelSpec& parallel,
                            const Inventory& inventory) {
  ClusterSpec cluster = run.cluster();
  cluster.set_device_memory_gib(0);
  return MakePlan(inventory,
                  {run.data(), run.optim(), run.compute(), cluster, parallel, run.instruments()});
}

absl::StatusOr<RehearsalCase> CaseOf(const Plan& plan, const RunSpec& run,
                                     const Inventory& inventory) {
  RehearsalCase made{
      .name = plan.schedule(),
      .microbatches = PipelineShapeOf(plan).num_microbatches,
      .microbatches_text = MicrobatchesText(plan.global_microbatches(), plan.data_parallel_size()),
      .planned_step_seconds = plan.step_seconds()};
  if (plan.virtual_pipeline_size() > 1)
    absl::StrAppend(&made.name, ", v=", plan.virtual_pipeline_size());
  made.job.placement = PlacementOf(plan);
  made.job.costs = ChunkCosts(plan);
  made.job.stage_messages = StageMessagesOf(plan, inventory, run.compute());
  made.job.network = MakeSpeeds(run.cluster(), run.compute()).network;
  made.job.exchange = {.replicas = plan.data_parallel_size(),
                       .stages = StageExchanges(plan, inventory, run.cluster(), run.compute()),
                       .gradient_bytes = GradientBytes(plan, inventory)};
  const int replicas = plan.data_parallel_size();
  const bool alike = plan.global_microbatches() % replicas == 0;
  for (int replica = 0; replica < (alike ? 1 : replicas); ++replica) {
    ASSIGN_OR_RETURN(made.job.schedules.emplace_back(),
                     WithTransfers(MakeSchedule(plan, replica), made.job.placement));
  }
  return made;
}

constexpr int64_t kSmallPayload = 64;  // bytes of a tensor: latency without bandwidth

std::vector<Flag> RehearseFlags() {
  return {TextFlag("schedule", "NAME|FILE",
                   "In place of parallel.schedule: a name, or a file with a schedule as text (as "
                   "`plan --print schedule` shows it)."),
          SwitchFlag("compare",
                     "Every schedule, one after the other, on as many stages as the plan has."),
          NumberFlag("time-scale", "K",
                     "Seconds waited for each second of the cost model. 0: a step takes 3 s, or "
                     "longer where actions are many.",
                     "0"),
          ChoiceFlag("payload", "SIZE", {"full", "small"},
                     "full: messages of real size. small: at most 64 bytes a tensor, where this "
                     "host's memory is not the network that is planned for.",
                     "small"),
          IntegerFlag("steps", "Steps a schedule; the fastest counts.", "3"),
          TextFlag("trace", "FILE",
                   "Write what every rank did and when, for chrome://tracing or ui.perfetto.dev. "
                   "Not with --compare."),
          JsonFlag()};
}

absl::Status CheckRehearseFlags(const ParsedFlags& flags) {
  std::vector<std::string> mistakes;
  if (flags.Number("time-scale") < 0 || flags.Number("time-scale") > 1e6) {
    mistakes.push_back("--time-scale: must be above 0 and at most 1e6");
  }
  if (flags.Integer("steps") < 1 || flags.Integer("steps") > 1'000'000) {
    mistakes.push_back("--steps: must be from 1 to 1000000");
  }
  if (flags.Switch("compare") && flags.Given("trace")) {
    mistakes.push_back("--trace: shows one schedule: not with --compare");
  }
  if (flags.Switch("compare") && flags.Given("schedule")) {
    mistakes.push_back("--compare: shows every schedule: not with --schedule");
  }
  return BadConfig(mistakes);
}

struct Prepared {
  RunSpec run;
  std::vector<RehearsalCase> cases;     // at least one, all of the same shape
  std::unique_ptr<RehearsalData> data;  // null: no corpus
};

std::string Head(const Prepared& prepared, const std::string& payload, bool threads) {
  const RehearsalCase& shape = prepared.cases.front();
  const int replicas = shape.job.exchange.replicas;
  const std::string layout =
      replicas == 1
          ? ""
          : absl::StrFormat(" = %d stages x %d replicas", shape.job.placement.NumRanks(), replicas);
  return absl::StrFormat(
      "%d ranks (%s)%s, %s microbatches, payload %s; seconds are the cost model's\n\n"
      "%48s %30s   %s\n%-18s %9s %9s %9s %9s %10s %10s %8s %10s %10s %8s\n",
      shape.job.NumRanks(), threads ? "threads" : "MPI", layout, shape.microbatches_text, payload,
      "step, s", "bubble of the pipeline", "exposed communication", "schedule", "planned",
      "simulated", "rehearsed", "planned", "simulated", "rehearsed", "more", "simulated",
      "rehearsed", "scale");
}

std::string Row(const RehearsalCase& done, const Rehearsal& result) {
  return absl::StrFormat(
      "%-18s %9.4g %9.4g %9.4g %8.2f%% %9.2f%% %9.2f%% %+7.2f%% %9.2f%% %9.2f%% %8.3g\n", done.name,
      done.planned_step_seconds, result.simulated_step, result.step, 100 * result.planned.bubble,
      100 * result.simulated.bubble, 100 * result.bubble,
      100 * (result.bubble - result.simulated.bubble), 100 * result.simulated.exposed_communication,
      100 * result.exposed_communication, result.time_scale);
}

JsonObject RowJson(const RehearsalCase& done, const Rehearsal& result) {
  const auto six = [](double share) { return absl::StrFormat("%.6f", share); };
  return JsonObject()
      .Add("schedule", done.name)
      .Add("planned_step_seconds", done.planned_step_seconds, 9)
      .Add("simulated_step_seconds", result.simulated_step, 9)
      .Add("step_seconds", result.step, 9)
      .Add("pipeline_seconds", result.makespan, 9)
      .AddJson("planned_bubble", six(result.planned.bubble))
      .AddJson("simulated_bubble", six(result.simulated.bubble))
      .AddJson("rehearsed_bubble", six(result.bubble))
      .AddJson("difference", six(result.bubble - result.simulated.bubble))
      .AddJson("simulated_exposed_communication", six(result.simulated.exposed_communication))
      .AddJson("exposed_communication", six(result.exposed_communication))
      .Add("time_scale", result.time_scale, 9)
      .AddJson("late_wakeup_seconds", absl::StrFormat("%.9f", result.mean_lateness))
      .Add("data_wait_seconds", result.data_waits, 6);
}

std::string Json(const Prepared& prepared, const std::string& payload, bool threads,
                 const std::vector<JsonObject>& rows) {
  const RehearsalCase& shape = prepared.cases.front();
  const std::string& corpus = prepared.run.data().folder();
  const JsonObject json =
      JsonObject()
          .Add("ranks", shape.job.NumRanks())
          .Add("replicas", shape.job.exchange.replicas)
          .Add("microbatches", shape.microbatches)
          .Add("payload", payload)
          .Add("threads", threads)
          .AddJson("corpus", prepared.data != nullptr ? JsonQuoted(corpus) : "null")
          .Add("schedules", rows);
  return JsonOf(json) + "\n";
}

// `data_waits`: of all steps of all cases; `lateness`: the largest of all cases.
std::string LastLines(const Prepared& prepared, const std::vector<double>& data_waits,
                      double lateness) {
  const std::string& corpus = prepared.run.data().folder();
  std::string text =
      absl::StrFormat("\nthis host wakes a rank %.0f us late on average\n", 1e6 * lateness);
  if (prepared.data == nullptr) {
    return absl::StrCat(text, "data: no corpus in \"", corpus, "\": steps fetch nothing\n");
  }
  absl::StrAppendFormat(&text, "data: %s: the first step waited %.1f ms", corpus,
                        1e3 * data_waits.front());
  if (data_waits.size() > 1) {
    absl::StrAppendFormat(&text, ", later ones at most %.1f ms (of this host)",
                          1e3 * *std::max_element(data_waits.begin() + 1, data_waits.end()));
  }
  return absl::StrCat(text, "\n");
}

// Runs `body` on every rank, each a thread of this process. Returns the first error that is no echo
// of another's.
absl::Status OnThreads(int ranks, const std::function<absl::Status(Communicator&)>& body) {
  const auto comms = MakeThreadCommunicators(ranks);
  std::vector<absl::Status> statuses(ranks);
  std::vector<std::thread> threads;
  const auto run = [&](int rank) {
    statuses[rank] = body(*comms[rank]);
    if (!statuses[rank].ok()) comms[rank]->Abort(static_cast<int>(GetExitCode(statuses[rank])));
  };
  for (int rank = 0; rank < ranks; ++rank) {
    absl::StatusOr<std::thread> thread = StartThread([&run, rank] { run(rank); });
    if (!thread.ok()) {
      statuses[rank] = WithPrefix(absl::StrCat("rank ", rank, " of ", ranks), thread.status());
      comms[rank]->Abort(static_cast<int>(GetExitCode(statuses[rank])));
      break;
    }
    threads.push_back(*std::move(thread));
  }
  for (std::thread& thread : threads) thread.join();
  absl::Status echo;
  for (const absl::Status& status : statuses) {
    if (!status.ok() && !absl::IsAborted(status)) return status;
    if (echo.ok()) echo = status;
  }
  return echo;
}

// Runs every case in turn on one rank; steps of one follow on those of the one before. Rank 0
// prints.
absl::Status RunCases(const CommandLine& line, const Prepared& prepared, bool threads,
                      Communicator& world) {
  const absl::Duration comm_timeout = CommTimeout(prepared.run.parallel(), /*first_step=*/true);
  Heartbeat heartbeat(world.rank());
  const HeartbeatMonitor monitor(heartbeat, comm_timeout + kSilenceGrace, EndProcess);
  RETURN_IF_ERROR(AgreeOnStatus(world, monitor.status()));
  RehearsalOptions options{.time_scale = line.flags.Number("time-scale"),
                           .steps = static_cast<int>(line.flags.Integer("steps")),
                           .executor = {.comm_timeout = comm_timeout, .heartbeat = &heartbeat}};
  const std::string payload = line.flags.Text("payload");
  if (payload == "small") options.payload_limit_bytes = kSmallPayload;
  int64_t first_step = 0;
  if (prepared.data != nullptr) {
    options.fetch = [&](int step) { return prepared.data->Fetch(first_step + step).status(); };
  }
  const bool json = line.flags.Switch("json");
  std::ostringstream unheard;
  std::ostream& out = world.rank() == 0 ? line.out : unheard;
  if (!json) out << Head(prepared, payload, threads) << std::flush;
  std::vector<JsonObject> rows;
  std::vector<double> data_waits;
  double lateness = 0.0;
  for (const RehearsalCase& now : prepared.cases) {
    ASSIGN_OR_RETURN(const Rehearsal result, RunRehearsal(now.job, options, world));
    data_waits.insert(data_waits.end(), result.data_waits.begin(), result.data_waits.end());
    lateness = std::max(lateness, result.mean_lateness);
    if (json) rows.push_back(RowJson(now, result));
    if (!json) out << Row(now, result) << std::flush;
    first_step += options.steps;
    if (world.rank() == 0 && line.flags.Given("trace")) {
      RETURN_IF_ERROR(ReplaceFile(*MakePosixFileSystem(),
                                  ResolvePath(line, line.flags.Text("trace")),
                                  ChromeTrace(result.traces)));
    }
  }
  out << (json ? Json(prepared, payload, threads, rows) : LastLines(prepared, data_waits, lateness))
      << std::flush;
  return absl::OkStatus();
}

// The same on every process.
absl::StatusOr<Prepared> Prepare(const CommandLine& line) {
  RETURN_IF_ERROR(CheckRehearseFlags(line.flags));
  Prepared made;
  ASSIGN_OR_RETURN(made.run, LoadRunSpec(line));
  if (line.flags.Given("schedule")) {
    made.run.mutable_parallel()->set_schedule(line.flags.Text("schedule"));
  }
  RETURN_IF_ERROR(ReadNamedFiles(RootFolder(line), &made.run));
  const Inventory inventory = InventoryOf(line, made.run);
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
  return ConfigError("the plan has ", job.NumRanks(), " ranks (", job.placement.NumRanks(),
                     " stages x ", job.exchange.replicas, " replicas), but ", world.size(),
                     " were started");
}

absl::Status Rehearse(const CommandLine& line, Communicator& world) {
  ASSIGN_OR_RETURN(const Prepared prepared, AgreeOn(world, Prepare(line)));
  const RehearsalJob& job = prepared.cases[0].job;
  RETURN_IF_ERROR(AgreeOnStatus(world, CheckRanks(job, world)));
  const Fact corpus{"corpus", prepared.data == nullptr ? "none" : prepared.data->content_hash()};
  RETURN_IF_ERROR(CheckSameEverywhere(world, std::span(&corpus, 1)));
  const bool threads = world.size() == 1;
  const auto body = [&](Communicator& comm) { return RunCases(line, prepared, threads, comm); };
  return threads ? OnThreads(job.NumRanks(), body) : body(world);
}

}  // namespace

absl::StatusOr<RehearsalCase> PlannedCase(const RunSpec& run, const Inventory& inventory) {
  ASSIGN_OR_RETURN(const Plan plan, PlanOf(run, run.parallel(), inventory));
  return CaseOf(plan, run, inventory);
}

absl::StatusOr<std::vector<RehearsalCase>> ComparedCases(const RunSpec& run,
                                                         const Inventory& inventory) {
  ASSIGN_OR_RETURN(const Plan chosen, PlanOf(run, run.parallel(), inventory));
  ParallelSpec parallel = run.parallel();
  parallel.set_pipeline_parallel_size(chosen.pipeline_parallel_size());
  parallel.set_data_parallel_size(chosen.data_parallel_size());
  parallel.clear_placement();
  struct Way {
    const char* schedule;
    int virtual_pipeline_size;
  };
  std::vector<RehearsalCase> cases;
  for (const Way& way : {Way{"1f1b", 1}, Way{"interleaved", 2}, Way{"interleaved", 4},
                         Way{"interleaved", 8}, Way{"zb-h1", 1}, Way{"zb-v", 2}}) {
    const int chunks = way.virtual_pipeline_size * chosen.pipeline_parallel_size();
    if (chunks > static_cast<int>(inventory.layers.size())) continue;
    parallel.set_schedule(way.schedule);
    parallel.set_virtual_pipeline_size(way.virtual_pipeline_size);
    ASSIGN_OR_RETURN(const Plan plan, PlanOf(run, parallel, inventory));
    ASSIGN_OR_RETURN(RehearsalCase made, CaseOf(plan, run, inventory));
    cases.push_back(std::move(made));
  }
  return cases;
}

absl::StatusOr<std::unique_ptr<RehearsalData>> RehearsalData::Open(const RunSpec& run,
                                                                   const std::string& folder) {
  if (run.data().folder().empty() || absl::IsNotFound(ReadManifest(folder).status())) {
    return nullptr;
  }
  ASSIGN_OR_RETURN(Corpus corpus, WithExitCode(Corpus::Open(folder), ExitCode::kData));
  const int64_t size = corpus.vocabulary().size();
  if (run.model().vocabulary_size() != size) {
    return ConfigError("model.vocabulary_size: ", run.model().vocabulary_size(), ": the corpus ",
                       run.data().folder(), " has a vocabulary of ", size);
  }
  DataSpec data = run.data();
  RETURN_IF_ERROR(WithExitCode(ResolveDataSpec(corpus, &data, run.model().architecture()),
                               ExitCode::kBadConfig));
  std::unique_ptr<RehearsalData> made(new RehearsalData(std::move(corpus)));
  auto source =
      CorpusBatchSource::Make(data, run.seed(), &made->corpus_, run.model().architecture());
  if (!source.ok()) return WithExitCode(source.status(), ExitCode::kBadConfig);
  made->batches_ = std::make_unique<Prefetcher>(*std::move(source));
  return made;
}

absl::StatusOr<int64_t> RehearsalData::Fetch(int64_t step) {
  const absl::MutexLock lock(&mutex_);
  if (step == step_) return target_tokens_;
  ASSIGN_OR_RETURN(const StepBatch batch, WithExitCode(batches_->ForStep(step), ExitCode::kData));
  step_ = step;
  target_tokens_ = batch.num_target_tokens;
  return target_tokens_;
}

Command MakeRehearseCommand() {
  return {.name = "rehearse",
          .summary = "Time the steps of a run without computing anything.",
          .description =
              "Plans the run as `train` would, and runs the job: its data, schedule, executor, "
              "messages and exchanges of gradients and weights, with stages that wait as long as "
              "the cost model says (cluster.flops_per_second). Compares with the simulator: the "
              "step, the pipeline's bubble, and communication that nothing hid. Without mpirun all "
              "ranks are threads of this process; `mpirun -n R deepnet rehearse ...` has one "
              "process a rank. A waiting rank needs no core, so a laptop rehearses 64 ranks. Needs "
              "no memory for the model, and no corpus: without one, steps fetch no data.",
          .spec = SpecUse::kRequired,
          .validate = ValidateForPlan,
          .flags = RehearseFlags(),
          .run = [](const CommandLine& line) { return RunOnRanks(line, Rehearse); }};
}

}  // namespace deepnet
