// Train, at the end, resolves the run, builds a Trainer and calls its Run: the loop, which reads
// top to bottom. A step is RunTrainStep (train_step.h), which calls RunSchedule (parallel/exec).
#include "trainer/trainer.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/heartbeat.h"
#include "parallel/plan/memory.h"
#include "trainer/checkpoint_policy.h"
#include "trainer/instruments/non_finite.h"
#include "trainer/kernels/device_errors.h"
#include "trainer/monitored_run.h"
#include "trainer/rank_snapshot.h"
#include "trainer/resolve_run.h"
#include "trainer/spike_guard.h"
#include "trainer/telemetry/report.h"
#include "trainer/telemetry/run_recorder.h"
#include "trainer/telemetry/spikes.h"
#include "trainer/telemetry/tensor_memory.h"
#include "trainer/train_session.h"
#include "trainer/train_step.h"
#include "trainer/validation.h"
#include "trainer/validation_policy.h"

namespace deepnet {
namespace {

// All ranks know this after a step.
struct Agreed {
  double seconds = 0.0;                                  // that it took, by the clock of rank 0
  bool stop = false, save = false, lacks_batch = false;  // on some rank; a stop is never undone
};

class Trainer {
 public:
  Trainer(ResolvedRun resolved, const TrainOptions& options, MonitoredRun& monitored, Logger& log)
      : resolved_(std::move(resolved)),
        monitored_(monitored),
        log_(log),
        requests_(options.request, options.deadline),
        trace_(options.trace),
        memory_(run().compute().device()),
        stragglers_(resolved_.plan.pipeline_parallel_size()) {}

  // After an error devices may wait for messages of ranks that are gone. They are given up before
  // the snapshots' pinned memory is freed, which waits for the device.
  ~Trainer() {
    if (session_.context != nullptr) session_.context->GiveUpMessages();
  }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  absl::Status Prepare(const TrainOptions& options) {
    heartbeat().Begin("preparation");
    ASSIGN_OR_RETURN(session_,
                     MakeTrainSession(resolved_, options, world(), monitored_.files(), log_));
    if (options.trace.to <= first_step() && options.trace.from > 0) {
      log_.Warning(absl::StrCat("--trace: the run is at step ", WithCommas(first_step()),
                                " already; nothing is traced"));
    }
    RankContext& context = *session_.context;
    validations_.emplace(run().train(), state(), session_.steps_per_epoch, log_);
    if (resolved_.earlier && !state().validation_due()) validations_->Done();
    RunFiles files = {std::move(session_.metrics), std::move(session_.events)};
    if (leads()) files.prometheus = MakePrometheusFile(run(), options.root);
    recorder_.emplace(std::move(files), run().train(), options.restarts, log_);
    checkpoints_.emplace(
        monitored_.files(), run().train(), state(), context,
        CheckpointPolicyOptions{
            .saver = {.folder = resolved_.folder,
                      .copies = !run().parallel().blocking_saves(),
                      .threads = run().compute().threads_per_rank(),
                      .lock = resolved_.lock.get(),
                      .warn = [this](const std::string& sentence) { log_.Warning(sentence); }},
            .resumed = resolved_.earlier.has_value(),
            .steps_per_epoch = session_.steps_per_epoch,
            .record = [this](const SaveRecord& record) {
              recorder_->Record(record);
              if (leads()) trace_.AddSave(record);
            }});
    spikes_.emplace(monitored_.files(), resolved_, context, *checkpoints_, *recorder_, log_);
    requests_.Expect(0.0, checkpoints_->ExpectedSeconds());
    RETURN_IF_ERROR(checkpoints_->saver().Open());
    context.phases.End("room for saves");
    recorder_->Begin(resolved_.phases, context.phases);
    return absl::OkStatus();
  }

  absl::Status Run() {
    memory_.ForgetPeak();         // the peak of loading does not count
    RETURN_IF_ERROR(Agree(0.0));  // signals may have come since the process began
    if (!agreed_.stop && state().validation_due()) RETURN_IF_ERROR(ValidateNow());
    const bool needs_start = spikes_->may_go_back() && state().step() == 0;
    if (agreed_.save || needs_start) RETURN_IF_ERROR(checkpoints_->Save());
    while (!agreed_.stop && !Done()) {
      RETURN_IF_ERROR(IsLeftOut(state(), state().step() + 1) ? LeaveOut() : Step());
      RETURN_IF_ERROR(spikes_->CheckDivergence());
      if (spikes_->found()) {
        ASSIGN_OR_RETURN(const bool went_back, AnswerSpike());
        if (went_back) continue;
      }
      if (validations_->IsDue(step_tokens_)) {
        if (!agreed_.stop) RETURN_IF_ERROR(ValidateNow());
        if (agreed_.stop) state().set_validation_due(true);  // of the resumed run
      }
      RETURN_IF_ERROR(SaveIfAskedOrDue());
      if (trace_.Due(state().step(), /*last=*/agreed_.stop || Done())) {
        Enter("trace");
        RETURN_IF_ERROR(trace_.Write(world(), *session_.context->traced, monitored_.files(),
                                     resolved_.folder, log_));
      }
    }
    return agreed_.stop ? Stop() : Finish();
  }

  DeviceUse device_use() const { return session_.context->device_use(); }

 private:
  const RunSpec& run() const { return resolved_.run; }
  Manifest& state() { return resolved_.state; }  // all but tensors of a checkpoint, kept current
  const Manifest& state() const { return resolved_.state; }
  Communicator& world() { return monitored_.world(); }
  Heartbeat& heartbeat() { return monitored_.heartbeat(); }
  bool leads() { return world().rank() == 0; }  // rank 0 writes and logs for all
  int64_t first_step() const {                  // of this process
    return resolved_.earlier ? resolved_.earlier->manifest.step() : 0;
  }

  bool Done() const {
    const TrainSpec& train = run().train();
    return (train.steps() > 0 && state().step() >= train.steps()) ||
           (train.max_train_minutes() > 0 &&
            state().train_seconds() >= 60 * train.max_train_minutes()) ||
           validations_->IsOutOfPatience();
  }

  absl::Status Step() {
    const double started = SecondsNow();
    const bool first = state().step() == first_step();
    const absl::Duration comm_timeout = CommTimeout(run().parallel(), first);
    heartbeat().Begin(absl::StrCat("step ", state().step()), comm_timeout + kSilenceGrace);
    trace_.Begin(state().step() + 1, session_.context->traced);
    const TraceSpan whole(trace_.current(), {.kind = TraceKind::kStep, .step = state().step() + 1});
    RETURN_IF_ERROR(AwaitBatch());
    const StepBatch batch = *std::move(next_);
    const bool instrumented = session_.instruments->Due(state().step() + 1);
    if (instrumented) session_.instruments->BeforeStep();
    const auto wanted = [this](double loss, double norm) {
      return spikes_->UpdateWanted(loss, norm);
    };
    const auto before_update = [this, instrumented] {
      const TraceSpan wait(trace_.current(), {.kind = TraceKind::kSave});
      checkpoints_->saver().AwaitCopy();
      if (instrumented) session_.instruments->BeforeUpdate();
    };
    ASSIGN_OR_RETURN(
        const StepResult result,
        RunTrainStep(batch, state().step(), state().optimizer_steps() + 1, *session_.context,
                     {.executor = {.comm_timeout = comm_timeout,
                                   .trace = trace_.current(),
                                   .heartbeat = &heartbeat()},
                      .wanted = wanted,
                      .before_update = before_update}));
    for (const auto& text : session_.context->ops->session().TakeWarnings()) log_.Warning(text);
    if (instrumented) RETURN_IF_ERROR(RecordInstruments(result));
    const std::optional<double> compute_seconds = stragglers_.Add(result.compute_seconds);
    TraceSpan data(trace_.current(), {.kind = TraceKind::kData});
    Fetch(state().step() + 1);
    data.End();
    RETURN_IF_ERROR(Agree(SecondsNow() - started, compute_seconds));
    Count(batch, result);
    const bool search_source = spikes_->Count(result);
    if (first) RETURN_IF_ERROR(CompareMemory());
    if (search_source) RETURN_IF_ERROR(RecordNonFinite(batch, comm_timeout));
    const int64_t every = std::max<int64_t>(1, run().train().log_every_steps());
    const bool reported = result.update.skipped || state().step() % every == 0;
    return reported || agreed_.stop || Done() ? Report(result) : absl::OkStatus();
  }

  void Fetch(int64_t step) {
    next_ = session_.batches->ForStep(step);
    next_step_ = step;
  }

  // Makes next_ the current step's batch on all ranks. It was fetched before they agreed on the
  // step before: where one of them cannot read its corpus any more, all of them save what they have
  // learned and end.
  absl::Status AwaitBatch() {
    const bool ahead = next_step_ == state().step();
    if (ahead && !agreed_.lacks_batch) return absl::OkStatus();
    if (ahead) {
      Enter("last save");
      RETURN_IF_ERROR(checkpoints_->SaveAndWait(/*tidy=*/false));
    } else {
      Fetch(state().step());
    }
    return AgreeOnStatus(world(), WithExitCode(next_.status(), ExitCode::kData));
  }

  // Counts a step that is not trained on.
  absl::Status LeaveOut() {
    RETURN_IF_ERROR(Agree(0.0));
    step_tokens_ = 0;
    state().set_step(state().step() + 1);
    state().mutable_data()->set_step(state().step());
    state().set_skipped_steps(state().skipped_steps() + 1);
    return absl::OkStatus();
  }

  // Returns whether the run went back.
  absl::StatusOr<bool> AnswerSpike() {
    if (!spikes_->may_go_back()) return spikes_->Answer();
    const TraceSpan span = Enter("roll-back", "roll-back");
    ASSIGN_OR_RETURN(const bool went_back, spikes_->Answer());
    if (went_back) validations_->GoBack();  // the report has nothing left: the step was skipped
    return went_back;
  }

  // Records the instruments of the step that was just taken; it is not counted yet.
  absl::Status RecordInstruments(const StepResult& result) {
    const int64_t step = state().step() + 1;
    const TraceSpan span = Enter("instruments", "instruments");
    ASSIGN_OR_RETURN(InstrumentRecord record, session_.instruments->Record(step));
    for (LayerInstruments& layer : *record.mutable_layers()) {
      layer.set_gradient_norm(layer.gradient_norm() * result.gradient_unit);
    }
    recorder_->Record(record);
    return absl::OkStatus();
  }

  absl::Status RecordNonFinite(const StepBatch& batch, absl::Duration comm_timeout) {
    heartbeat().Begin(absl::StrCat("step ", state().step(), ": search for a non-finite value"),
                      comm_timeout + kSilenceGrace);
    ASSIGN_OR_RETURN(NonFiniteRecord record,
                     LocateNonFinite(batch, state().step() - 1, *session_.context,
                                     {.comm_timeout = comm_timeout, .heartbeat = &heartbeat()}));
    record.set_step(state().step());
    recorder_->Record(record);
    return absl::OkStatus();
  }

  // After a step, before it is counted, tells all ranks how long it took by the clock of rank 0,
  // the requests to any rank, whether all ranks have done their part of a save and have the next
  // batch and, now and then, how long each of them computes (StragglerWatch).
  absl::Status Agree(double seconds, std::optional<double> compute_seconds = std::nullopt) {
    const TraceSpan span = Enter("agreement of all ranks", "agreement");
    const int asked = requests_.Poll();
    std::vector<double> sums = {leads() ? seconds : 0.0};
    for (const bool flag : {(asked & kStopRequest) != 0, (asked & kSaveRequest) != 0,
                            !checkpoints_->saver().Ready(), next_step_ >= 0 && !next_.ok()}) {
      sums.push_back(flag ? 1.0 : 0.0);
    }
    const size_t first = sums.size();
    if (compute_seconds) {
      sums.resize(first + static_cast<size_t>(world().size()));
      sums[first + static_cast<size_t>(world().rank())] = *compute_seconds;
    }
    RETURN_IF_ERROR(world().AllReduceSum(std::span(sums)));
    agreed_ = {sums[0], agreed_.stop || sums[1] > 0, sums[2] > 0, sums[4] > 0};
    if (compute_seconds) {
      RETURN_IF_ERROR(recorder_->Record(stragglers_.Look(std::span(sums).subspan(first)),
                                        state().step() + 1, world()));
    }
    return sums[3] == 0 ? checkpoints_->saver().Advance() : absl::OkStatus();
  }

  void Count(const StepBatch& batch, const StepResult& result) {
    const bool begins = state().step() <= first_step();
    state().set_step(state().step() + 1);
    state().mutable_data()->set_step(state().step());
    state().set_train_seconds(state().train_seconds() + agreed_.seconds);
    state().set_source_tokens(state().source_tokens() + batch.num_source_tokens);
    step_tokens_ = batch.num_target_tokens;
    state().set_target_tokens(state().target_tokens() + step_tokens_);
    session_.report->Add(batch, result, agreed_.seconds);
    // A process's first step takes longer than all others.
    requests_.Expect(begins ? 0.0 : agreed_.seconds, checkpoints_->ExpectedSeconds());
  }

  absl::Status Report(const StepResult& result) {
    const TraceSpan span(trace_.current(), TraceKind::kPhase, "report");
    ASSIGN_OR_RETURN(const TraceFigures pipeline, MeasurePipeline(result, *session_.context));
    const StepRecord record = session_.report->Take(state(), result, pipeline);
    const Pace& pace = session_.report->pace();
    NextTimes next;
    if (!Done()) next = {checkpoints_->SecondsUntilDue(pace), validations_->SecondsUntilDue(pace)};
    recorder_->Record(
        record, next,
        InstrumentsCost(session_.instruments->seconds(), session_.report->all_seconds()));
    return absl::OkStatus();
  }

  // Compares the plan's bytes with those of the first step, which allocates everything.
  absl::Status CompareMemory() {
    return ReportMemory(
        {.planned = TensorBytes(session_.context->planned),
         .measured = memory_.peak_bytes() + session_.context->ops->session().OwnBytes() +
                     checkpoints_->saver().planned_bytes()},
        world(), log_);
  }

  // A validation that a stop cuts short is the first thing that the resumed run does.
  absl::Status ValidateNow() {
    const TraceSpan span = Enter("validation", "validation");
    session_.context->model->set_step(state().step());
    const absl::StatusOr<EvalRecord> record =
        Validate(run(), *resolved_.corpus, *session_.context, log_, [this] {
          heartbeat().Beat();  // asked between rows that this rank computes alone
          return requests_.IsStopping();
        });
    agreed_.stop = absl::IsCancelled(record.status());
    if (!agreed_.stop) RETURN_IF_ERROR(record.status());
    if (agreed_.stop != state().validation_due()) checkpoints_->Changed();
    state().set_validation_due(agreed_.stop);
    if (agreed_.stop) return absl::OkStatus();
    if (record->directions_size() > 0) recorder_->Record(*record);  // else there is no dev text
    const ValidationOutcome outcome = validations_->Count(*record);
    if (outcome.changed) checkpoints_->Changed();  // this step is saved again if it was
    return outcome.is_best ? checkpoints_->Save() : absl::OkStatus();
  }

  absl::Status SaveIfAskedOrDue() {
    Enter("save");
    const TraceSpan span(trace_.current(), {.kind = TraceKind::kSave});
    return agreed_.save ? checkpoints_->Save() : checkpoints_->SaveIfDue(step_tokens_);
  }

  void Enter(const char* what) {
    heartbeat().Begin(absl::StrCat("step ", state().step(), ": ", what));
  }
  // Also returns the event `name` of the current step, which ends with the result's scope.
  TraceSpan Enter(const char* what, const char* name) {
    Enter(what);
    return {trace_.current(), TraceKind::kPhase, name};
  }

  absl::Status Stop() {
    Enter("save before the stop");
    RETURN_IF_ERROR(checkpoints_->SaveAndWait(/*tidy=*/false));
    log_.EndProgress();
    if (requests_.TimeIsUp()) {
      log_.Info("the time limit is reached: the end of the job or train.exit_after_minutes");
    }
    return AgreeOnStatus(
        world(),
        WithExitCode(absl::CancelledError(absl::StrCat("stopped and saved at step ", state().step(),
                                                       "; run the same command to go on")),
                     ExitCode::kSavedRunAgain));
  }

  // Saves before the last validation, so that nothing in it can lose steps.
  absl::Status Finish() {
    Enter("last save");
    RETURN_IF_ERROR(checkpoints_->SaveAndWait(/*tidy=*/true));
    if (!validations_->IsDone() && run().train().validate_every_steps() != 0) {
      RETURN_IF_ERROR(ValidateNow());
      if (agreed_.stop) return Stop();
      Enter("last save");
    }
    RETURN_IF_ERROR(checkpoints_->SaveAndWait(/*tidy=*/true));
    Enter("end of the run");
    recorder_->End(state());
    ASSIGN_OR_RETURN(const std::string hash,
                     HashRankWeights(*session_.context, resolved_.inventory));
    log_.Info(absl::StrCat("weights ", hash));
    return absl::OkStatus();
  }

  ResolvedRun resolved_;
  MonitoredRun& monitored_;
  Logger& log_;
  StopRequests requests_;
  RunTrace trace_;
  TensorMemory memory_;
  StragglerWatch stragglers_;
  TrainSession session_;
  std::optional<RunRecorder> recorder_;
  std::optional<CheckpointPolicy> checkpoints_;
  std::optional<SpikeGuard> spikes_;
  std::optional<ValidationPolicy> validations_;
  int64_t next_step_ = -1;  // of next_; -1: none was fetched
  absl::StatusOr<StepBatch> next_;
  int64_t step_tokens_ = 0;  // target tokens of the last step
  Agreed agreed_;
};

}  // namespace

absl::Status Train(RunSpec run, TrainOptions options, Logger& log) {
  SelfCommunicator alone;
  Communicator& world = options.world != nullptr ? *options.world : alone;
  const auto system = MakePosixFileSystem();
  FileSystem& files = options.files != nullptr ? *options.files : *system;
  if (const double minutes = run.train().exit_after_minutes(); minutes > 0) {
    options.deadline = std::min(options.deadline, SecondsNow() + 60 * minutes);
  }
  MonitoredRun monitored(run.parallel(), world, files, options.on_stuck);
  RETURN_IF_ERROR(monitored.Join());
  // Destroyed after End, when nobody watches this rank any more: freeing a model may take long.
  std::unique_ptr<Trainer> trainer;
  const auto work = [&]() -> absl::Status {
    options.lock.wait = monitored.Beating(std::move(options.lock.wait));
    ASSIGN_OR_RETURN(ResolvedRun resolved, ResolveRun(std::move(run), options, monitored.world(),
                                                      monitored.files(), log));
    trainer = std::make_unique<Trainer>(std::move(resolved), options, monitored, log);
    RETURN_IF_ERROR(trainer->Prepare(options));
    return CatchErrors([&] { return trainer->Run(); }, trainer->device_use());
  };
  return monitored.End(CatchErrors(work));
}

}  // namespace deepnet
