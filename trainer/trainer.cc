// Train, at the end, resolves the run, builds a Trainer and calls its Run: the loop, which reads
// top to bottom. A step is RunTrainStep (train_step.h), and that is RunSchedule (parallel/exec).
#include "trainer/trainer.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "google/protobuf/message.h"

#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/host.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/heartbeat.h"
#include "parallel/plan/memory.h"
#include "trainer/async_checkpointer.h"
#include "trainer/instruments/non_finite.h"
#include "trainer/kernels/device_errors.h"
#include "trainer/model/architecture.h"
#include "trainer/model_loader.h"
#include "trainer/monitored_run.h"
#include "trainer/resolve_run.h"
#include "trainer/roll_back.h"
#include "trainer/spikes.h"
#include "trainer/telemetry/intervals.h"
#include "trainer/telemetry/prometheus_file.h"
#include "trainer/telemetry/report.h"
#include "trainer/telemetry/run_trace.h"
#include "trainer/telemetry/stragglers.h"
#include "trainer/telemetry/tensor_memory.h"
#include "trainer/train_step.h"
#include "trainer/validation.h"

namespace deepnet {
namespace {

constexpr int kMaxConsecutiveSkips = 10;

// Returns the earlier of the two time limits, as SecondsNow().
double DeadlineOf(const RunSpec& run, const TrainOptions& options) {
  const double minutes = run.train().exit_after_minutes();
  return minutes > 0 ? std::min(options.deadline, SecondsNow() + 60 * minutes) : options.deadline;
}

class Trainer {
 public:
  Trainer(ResolvedRun resolved, const TrainOptions& options, double deadline,
          MonitoredRun& monitored, Logger& log)
      : resolved_(std::move(resolved)),
        run_(resolved_.run),
        state_(resolved_.state),
        options_(options),
        requests_(options.request, deadline),
        fs_(monitored.files()),
        log_(log),
        world_(monitored.world()),
        heartbeat_(monitored.heartbeat()),
        trace_(options.trace),
        memory_(run_.compute().device()),
        stragglers_(resolved_.plan.pipeline_parallel_size()) {}

  // After an error devices may wait for messages of ranks that are gone. They are given up before
  // the snapshots' pinned memory is freed, which waits for the device.
  ~Trainer() {
    if (session_.context != nullptr) session_.context->GiveUpMessages();
  }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  absl::Status Prepare();
  absl::Status Run();
  DeviceUse device_use() const { return session_.context->device_use(); }

 private:
  bool leads() const { return world_.rank() == 0; }  // rank 0 writes and logs for all
  bool Done() const;
  bool IsOutOfPatience() const;
  RunPosition PositionSince(double train_seconds) const;
  bool ValidationDue() const;
  NextTimes NextTimesOf(const StepRecord& record) const;
  absl::Status Step();
  void Fetch(int64_t step);
  absl::Status TakeBatch();
  absl::Status LeaveOut();
  bool UpdateWanted(double loss, double gradient_norm);
  absl::StatusOr<bool> AfterSpike();
  absl::StatusOr<bool> RollBack(SpikeRecord& spike);
  void GoOnFrom(Manifest earlier);
  absl::Status RecordInstruments(const StepResult& result);
  bool LocatesNonFinite(const StepResult& result);
  absl::Status RecordNonFinite(const StepBatch& batch, absl::Duration comm_timeout);
  absl::Status Agree(double seconds);
  absl::Status NameStragglers(std::span<const double> compute_seconds);
  void Count(const StepBatch& batch, const StepResult& result);
  void CountLossScale(bool overflow);
  absl::Status Report(const StepResult& result);
  void WriteMetrics(const google::protobuf::Message& record);
  void WritePrometheus(const NextTimes& next);
  void RecordSave(const SaveRecord& record);
  absl::Status CheckDivergence();
  absl::Status CompareMemory();
  absl::Status ValidateNow();
  void CountPatience(bool is_best);
  absl::Status SaveIfAskedOrDue();
  absl::Status WriteTraceIfDue(bool last);
  TraceSpan Phase(const char* name);
  void Enter(const char* what) {
    heartbeat_.Begin(absl::StrCat("step ", state_.step(), ": ", what));
  }
  absl::Status Stop();
  absl::Status Finish();

  ResolvedRun resolved_;
  const RunSpec& run_;
  Manifest& state_;  // everything a checkpoint says besides tensors, kept current
  const TrainOptions& options_;
  StopRequests requests_;
  FileSystem& fs_;
  Logger& log_;
  Communicator& world_;
  Heartbeat& heartbeat_;
  RunTrace trace_;
  TensorMemory memory_;
  TrainSession session_;
  std::unique_ptr<PrometheusFile> prometheus_;  // rank 0 only, with train.prometheus_file
  bool prometheus_failed_ = false;              // the warning was given
  std::unique_ptr<CheckpointPolicy> checkpoints_;
  int64_t first_step_ = 0;            // of this process
  double stepping_seconds_ = 0.0;     // of this process, by the clock of rank 0
  int64_t step_tokens_ = 0;           // target tokens of the last step
  int64_t validated_step_ = -1;       // the last one; -1: none
  double validated_at_ = 0.0;         // training seconds
  double agreed_seconds_ = 0.0;       // of the last step, by the clock of rank 0
  double longest_step_ = 0.0;         // seconds, of this process, without its first step
  absl::StatusOr<StepBatch> batch_;   // of batch_step_
  int64_t batch_step_ = -1;           // whose batch was fetched last; -1: none
  bool lacks_batch_ = false;          // some rank failed to fetch it, as all ranks know
  absl::Status least_scale_;          // of the last step, with a loss scale
  bool was_finite_ = true;            // the last step
  std::optional<SpikeRecord> spike_;  // of the last step
  ComputeTime compute_time_;          // of this rank
  StragglerWatch stragglers_;
  std::vector<bool> straggles_;       // by rank, the last time; empty: none
  bool stop_ = false, save_ = false;  // requested of some rank, as all ranks know
};

absl::Status Trainer::Prepare() {
  heartbeat_.Begin("preparation");
  ASSIGN_OR_RETURN(session_, MakeTrainSession(resolved_, options_.init_from, world_, fs_, log_,
                                              options_.trace.from > 0));
  first_step_ = state_.step();
  if (options_.trace.to <= first_step_ && options_.trace.from > 0) {
    log_.Warning(absl::StrCat("--trace: the run is at step ", WithCommas(first_step_),
                              " already; nothing is traced"));
  }
  if (run_.train().spike().deviations() == 0) state_.clear_spike_window();
  const bool resumed = resolved_.earlier.has_value();
  validated_step_ = resumed && !state_.validation_due() ? state_.step() : -1;
  validated_at_ = state_.train_seconds();
  checkpoints_ = std::make_unique<CheckpointPolicy>(
      fs_, run_.train(), state_, *session_.context, log_,
      CheckpointPolicyOptions{.folder = resolved_.folder,
                              .lock = resolved_.lock.get(),
                              .resumed = resumed,
                              .copies = !run_.parallel().blocking_saves(),
                              .threads = run_.compute().threads_per_rank(),
                              .steps_per_epoch = session_.steps_per_epoch,
                              .record = [this](const SaveRecord& record) { RecordSave(record); }});
  requests_.Expect(0.0, checkpoints_->ExpectedSeconds());
  if (leads() && !run_.train().prometheus_file().empty()) {
    const auto path = std::filesystem::path(options_.root) / run_.train().prometheus_file();
    prometheus_ = std::make_unique<PrometheusFile>(
        path.string(), run_.name().empty() ? run_.folder() : run_.name());
  }
  RETURN_IF_ERROR(checkpoints_->Open());
  PhaseClock& later = session_.context->phases;
  later.End("room for saves");
  std::vector<TimedPhase> phases = resolved_.phases.phases();
  phases.insert(phases.end(), later.phases().begin(), later.phases().end());
  const std::string line = StartLine(phases);
  if (!line.empty()) log_.Info(line);
  return absl::OkStatus();
}

bool Trainer::Done() const {
  const TrainSpec& train = run_.train();
  return (train.steps() > 0 && state_.step() >= train.steps()) ||
         (train.max_train_minutes() > 0 &&
          state_.train_seconds() >= 60 * train.max_train_minutes()) ||
         IsOutOfPatience();
}

bool Trainer::IsOutOfPatience() const {
  const int patience = run_.train().patience();
  return patience > 0 && state_.validations_without_best() >= patience;
}

absl::Status Trainer::Run() {
  memory_.ForgetPeak();         // the peak of loading does not count
  RETURN_IF_ERROR(Agree(0.0));  // signals may have come since the process began
  if (!stop_ && state_.validation_due()) RETURN_IF_ERROR(ValidateNow());
  const bool may_go_back = run_.train().spike().action() == SpikeSpec::ROLL_BACK;
  if (save_ || (may_go_back && state_.step() == 0)) RETURN_IF_ERROR(checkpoints_->Save());
  while (!stop_ && !Done()) {
    RETURN_IF_ERROR(IsLeftOut(state_, state_.step() + 1) ? LeaveOut() : Step());
    RETURN_IF_ERROR(CheckDivergence());
    if (spike_) {
      ASSIGN_OR_RETURN(const bool went_back, AfterSpike());
      if (went_back) continue;
    }
    if (ValidationDue()) {
      if (!stop_) RETURN_IF_ERROR(ValidateNow());
      if (stop_) state_.set_validation_due(true);  // of the resumed run
    }
    RETURN_IF_ERROR(SaveIfAskedOrDue());
    RETURN_IF_ERROR(WriteTraceIfDue(/*last=*/stop_ || Done()));
  }
  return stop_ ? Stop() : Finish();
}

absl::Status Trainer::Step() {
  const double started = SecondsNow();
  const bool first = state_.step() == first_step_;
  const absl::Duration comm_timeout = CommTimeout(run_.parallel(), first);
  heartbeat_.Begin(absl::StrCat("step ", state_.step()), comm_timeout + kSilenceGrace);
  trace_.Begin(state_.step() + 1, session_.context->traced);
  const TraceSpan whole(trace_.current(), {.kind = TraceKind::kStep, .step = state_.step() + 1});
  RETURN_IF_ERROR(TakeBatch());
  const StepBatch batch = *std::move(batch_);
  const bool looks = session_.instruments->Due(state_.step() + 1);
  if (looks) session_.instruments->BeforeStep();
  ASSIGN_OR_RETURN(
      const StepResult result,
      RunTrainStep(
          batch, state_.step(), state_.optimizer_steps() + 1, *session_.context,
          {.comm_timeout = comm_timeout, .trace = trace_.current(), .heartbeat = &heartbeat_},
          [this, looks] {
            const TraceSpan wait(trace_.current(), {.kind = TraceKind::kSave});
            checkpoints_->AwaitCopy();
            if (looks) session_.instruments->BeforeUpdate();
          },
          [this](double loss, double norm) { return UpdateWanted(loss, norm); }));
  for (const std::string& sentence : session_.context->ops->session().TakeWarnings()) {
    log_.Warning(sentence);
  }
  if (looks) RETURN_IF_ERROR(RecordInstruments(result));
  compute_time_.Add(result.compute_seconds);
  TraceSpan data(trace_.current(), {.kind = TraceKind::kData});
  Fetch(state_.step() + 1);
  data.End();
  RETURN_IF_ERROR(Agree(SecondsNow() - started));
  Count(batch, result);
  if (first) RETURN_IF_ERROR(CompareMemory());
  if (LocatesNonFinite(result)) RETURN_IF_ERROR(RecordNonFinite(batch, comm_timeout));
  const int64_t every = std::max<int64_t>(1, run_.train().log_every_steps());
  const bool tells = result.update.skipped || state_.step() % every == 0;
  return tells || stop_ || Done() ? Report(result) : absl::OkStatus();
}

void Trainer::Fetch(int64_t step) {
  batch_ = session_.batches->ForStep(step);
  batch_step_ = step;
}

// Sees to it that batch_ is that of the current step on all ranks. It was fetched before the ranks
// agreed on the step before: where one of them cannot read its corpus any more, all of them save
// what they have learned and end.
absl::Status Trainer::TakeBatch() {
  const bool ahead = batch_step_ == state_.step();
  if (ahead && !lacks_batch_) return absl::OkStatus();
  if (ahead) {
    Enter("last save");
    RETURN_IF_ERROR(checkpoints_->SaveAndWait(/*tidy=*/false));
  } else {
    Fetch(state_.step());
  }
  return AgreeOnStatus(world_, WithExitCode(batch_.status(), ExitCode::kData));
}

// Counts a step that is not trained on.
absl::Status Trainer::LeaveOut() {
  RETURN_IF_ERROR(Agree(0.0));
  step_tokens_ = 0;
  state_.set_step(state_.step() + 1);
  state_.mutable_data()->set_step(state_.step());
  state_.set_skipped_steps(state_.skipped_steps() + 1);
  return absl::OkStatus();
}

// Looks for a spike in the step under way, whose figures are the same on all ranks.
bool Trainer::UpdateWanted(double loss, double gradient_norm) {
  const SpikeSpec& spec = run_.train().spike();
  if (spec.deviations() == 0) return true;
  spike_ = FindSpike(spec, state_.spike_window(), state_.step() + 1, loss, gradient_norm);
  RememberStep(spec, loss, gradient_norm, *state_.mutable_spike_window());
  return !spike_ || spec.action() == SpikeSpec::WARN;
}

// Enters the spike of the step that was just counted into the ledger. Returns whether the run went
// back.
absl::StatusOr<bool> Trainer::AfterSpike() {
  SpikeRecord spike = *std::exchange(spike_, std::nullopt);
  bool went_back = false;
  if (run_.train().spike().action() == SpikeSpec::ROLL_BACK) {
    ASSIGN_OR_RETURN(went_back, RollBack(spike));
  }
  log_.Warning(SpikeLine(spike));
  WriteMetrics(spike);
  *state_.add_spikes() = std::move(spike);
  if (went_back) RETURN_IF_ERROR(checkpoints_->SaveAfterGoingBack());
  return went_back;
}

// Goes back to before the steps that `spike` then says are left out. Returns false if there is no
// checkpoint.
absl::StatusOr<bool> Trainer::RollBack(SpikeRecord& spike) {
  Enter("roll-back");
  const TraceSpan span = Phase("roll-back");
  const SpikeSpec& spec = run_.train().spike();
  RETURN_IF_ERROR(checkpoints_->Finish());
  if (NumRollBacks(state_) >= spec.max_roll_backs()) {
    const std::string text =
        absl::StrCat("diverged: ", SpikeFigures(spike), ", after ", NumRollBacks(state_),
                     " roll-backs, as many as ", "train.spike.max_roll_backs allows");
    return AgreeOnStatus(world_, WithExitCode(absl::AbortedError(text), ExitCode::kDiverged));
  }
  SpikeRecord left_out = spike;
  LeaveOutAround(spec, left_out);
  ASSIGN_OR_RETURN(std::optional<Manifest> earlier,
                   GoBack(fs_, resolved_.folder, left_out.first_left_out() - 1,
                          resolved_.lock.get(), *session_.context, log_));
  if (!earlier) return false;
  spike = std::move(left_out);
  spike.set_step(earlier->step());
  spike.set_first_left_out(std::max(spike.first_left_out(), earlier->step() + 1));
  GoOnFrom(*std::move(earlier));
  return true;
}

// Makes the state that of an earlier step, but for what has really passed, and the ledger of the
// steps that are left out.
void Trainer::GoOnFrom(Manifest earlier) {
  const Manifest before = std::exchange(state_, std::move(earlier));
  *state_.mutable_run() = before.run();
  state_.set_train_seconds(before.train_seconds());
  state_.set_failed_saves(before.failed_saves());
  state_.set_validation_due(false);
  state_.clear_spikes();
  for (const SpikeRecord& spike : before.spikes()) {
    const bool stays = spike.last_left_out() > 0 || spike.step() <= state_.step();
    if (stays) *state_.add_spikes() = spike;
  }
  if (validated_step_ > state_.step()) validated_step_ = -1;
  if (session_.context->loss_scale != nullptr) {
    *session_.context->loss_scale =
        DynamicLossScale(run_.optim(), run_.data().global_microbatches(), state_.loss_scale());
  }
  session_.report->Forget();
  if (!leads()) return;
  if (session_.events != nullptr) session_.events->GoBack(state_.step());
  const absl::Status dropped = session_.metrics->GoBack(state_.step());
  if (!dropped.ok()) log_.Warning(std::string(dropped.message()));
}

// Records the instruments of the step that was just taken; it is not counted yet.
absl::Status Trainer::RecordInstruments(const StepResult& result) {
  const int64_t step = state_.step() + 1;
  Enter("instruments");
  const TraceSpan span = Phase("instruments");
  ASSIGN_OR_RETURN(InstrumentRecord record, session_.instruments->Record(step));
  for (LayerInstruments& layer : *record.mutable_layers()) {
    layer.set_gradient_norm(layer.gradient_norm() * result.gradient_unit);
  }
  WriteMetrics(record);
  return absl::OkStatus();
}

// Returns whether the step that was just counted is to be computed once more, to find where it was
// not finite: the first of several in a row. With a loss scale a gradient that overflows is nothing
// unusual, unless it ends the run.
bool Trainer::LocatesNonFinite(const StepResult& result) {
  const bool scales = session_.context->loss_scale != nullptr;
  const bool skipped = result.update.skipped && !result.withheld;
  const bool finite = !skipped || (scales && std::isfinite(result.loss));
  const bool is_first = std::exchange(was_finite_, finite);
  return (!finite && is_first) || (skipped && scales && !least_scale_.ok());
}

absl::Status Trainer::RecordNonFinite(const StepBatch& batch, absl::Duration comm_timeout) {
  heartbeat_.Begin(absl::StrCat("step ", state_.step(), ": search for a non-finite value"),
                   comm_timeout + kSilenceGrace);
  ASSIGN_OR_RETURN(NonFiniteRecord record,
                   LocateNonFinite(batch, state_.step() - 1, *session_.context,
                                   {.comm_timeout = comm_timeout, .heartbeat = &heartbeat_}));
  record.set_step(state_.step());
  log_.Warning(absl::StrCat("step ", state_.step(), ": ", NonFiniteLine(record)));
  WriteMetrics(record);
  return absl::OkStatus();
}

// Makes known to all ranks after a step: how long it took by the clock of rank 0, the requests to
// any rank, whether all ranks have done their part of a save and have the next batch and, every
// kStragglerSteps, how long each of them computes.
absl::Status Trainer::Agree(double seconds) {
  Enter("agreement of all ranks");
  const TraceSpan span = Phase("agreement");
  const int asked = requests_.Take();
  std::vector<double> values = {leads() ? seconds : 0.0, (asked & kStopRequest) != 0 ? 1.0 : 0.0,
                                (asked & kSaveRequest) != 0 ? 1.0 : 0.0,
                                checkpoints_->Ready() ? 0.0 : 1.0,
                                batch_step_ < 0 || batch_.ok() ? 0.0 : 1.0};
  const size_t first = values.size();
  const std::optional<double> computed = compute_time_.TakeMean();
  if (computed) {
    values.resize(first + static_cast<size_t>(world_.size()));
    values[first + static_cast<size_t>(world_.rank())] = *computed;
  }
  RETURN_IF_ERROR(world_.AllReduceSum(std::span(values)));
  if (computed) RETURN_IF_ERROR(NameStragglers(std::span(values).subspan(first)));
  agreed_seconds_ = values[0];
  stop_ = stop_ || values[1] > 0;
  save_ = values[2] > 0;
  lacks_batch_ = values[4] > 0;
  return values[3] == 0 ? checkpoints_->Advance() : absl::OkStatus();
}

// Records ranks that compute too long, and warns of those that did not the last time. The step that
// just ended is not counted yet.
absl::Status Trainer::NameStragglers(std::span<const double> compute_seconds) {
  std::vector<StragglerRecord> stragglers = stragglers_.Look(compute_seconds);
  const std::vector<bool> before =
      std::exchange(straggles_, std::vector<bool>(compute_seconds.size()));
  if (stragglers.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<std::string> hosts, AllGatherText(world_, HostName()));
  for (StragglerRecord& record : stragglers) {
    const auto rank = static_cast<size_t>(record.rank());
    record.set_step(state_.step() + 1);
    record.set_host(hosts[rank]);
    straggles_[rank] = true;
    WriteMetrics(record);
    if (leads() && (before.empty() || !before[rank])) log_.Warning(StragglerLine(record));
  }
  return absl::OkStatus();
}

void Trainer::Count(const StepBatch& batch, const StepResult& result) {
  const bool skipped = result.update.skipped;
  state_.set_step(state_.step() + 1);
  state_.mutable_data()->set_step(state_.step());
  state_.set_train_seconds(state_.train_seconds() + agreed_seconds_);
  stepping_seconds_ += agreed_seconds_;
  state_.set_source_tokens(state_.source_tokens() + batch.num_source_tokens);
  step_tokens_ = batch.num_target_tokens;
  state_.set_target_tokens(state_.target_tokens() + step_tokens_);
  state_.set_optimizer_steps(state_.optimizer_steps() + (skipped ? 0 : 1));
  state_.set_skipped_steps(state_.skipped_steps() + (skipped ? 1 : 0));
  state_.set_consecutive_skips(skipped ? state_.consecutive_skips() + 1 : 0);
  session_.report->Add(batch, result, agreed_seconds_);
  if (state_.step() > first_step_ + 1) longest_step_ = std::max(longest_step_, agreed_seconds_);
  requests_.Expect(longest_step_, checkpoints_->ExpectedSeconds());
  const bool not_finite = skipped && !result.withheld;
  if (session_.context->loss_scale != nullptr) return CountLossScale(not_finite);
  if (not_finite) {
    log_.Warning(absl::StrCat("step ", state_.step(), ": loss or gradient is not finite; skipped"));
  }
}

void Trainer::CountLossScale(bool overflow) {
  DynamicLossScale& scale = *session_.context->loss_scale;
  least_scale_ = scale.Update(overflow);
  *state_.mutable_loss_scale() = scale.state();
  if (overflow) {
    log_.Info(absl::StrCat("step ", state_.step(), ": gradient overflow; skipped, loss scale ",
                           scale.scale()));
  }
}

absl::Status Trainer::CheckDivergence() {
  absl::Status status = least_scale_;
  if (session_.context->loss_scale == nullptr &&
      state_.consecutive_skips() >= kMaxConsecutiveSkips) {
    const bool skips = run_.train().spike().action() == SpikeSpec::SKIP;
    status = WithExitCode(
        absl::AbortedError(absl::StrCat("diverged: ", kMaxConsecutiveSkips,
                                        skips ? " non-finite steps or spikes" : " non-finite steps",
                                        " in a row at step ", state_.step())),
        ExitCode::kDiverged);
  }
  if (status.ok()) return absl::OkStatus();
  RETURN_IF_ERROR(checkpoints_->Finish());  // keeps the last good checkpoint
  return AgreeOnStatus(world_, status);
}

absl::Status Trainer::Report(const StepResult& result) {
  const TraceSpan span = Phase("report");
  ASSIGN_OR_RETURN(const TraceFigures pipeline, MeasurePipeline(result, *session_.context));
  StepRecord record = session_.report->Take(state_, result, pipeline);
  record.set_restarts(options_.restarts);
  WriteMetrics(record);
  const NextTimes next = NextTimesOf(record);
  WritePrometheus(next);
  Progress progress = ProgressOf(record, run_.train(), next);
  progress.figures += InstrumentsCost(session_.instruments->seconds(), stepping_seconds_);
  log_.Show(progress);
  return absl::OkStatus();
}

NextTimes Trainer::NextTimesOf(const StepRecord& record) const {
  const Pace& pace = session_.report->pace();
  NextTimes next = {.save = checkpoints_->SecondsUntilDue(pace),
                    .validation = SecondsUntilDue(ValidationInterval(run_.train()),
                                                  PositionSince(validated_at_), pace)};
  const double left = record.seconds_to_end();
  for (double* const seconds : {&next.save, &next.validation}) {
    if (left > 0 && *seconds >= left) *seconds = -1.0;
  }
  return Done() ? NextTimes() : next;
}

// Only warns if writing fails: a disk that is full now may have room later.
void Trainer::WriteMetrics(const google::protobuf::Message& record) {
  if (!leads()) return;
  if (prometheus_ != nullptr) prometheus_->Remember(record);
  const absl::Status written = session_.metrics->Write(record);
  if (!written.ok()) log_.Warning(std::string(written.message()));
  if (session_.events == nullptr) return;
  const absl::Status shown = session_.events->Write(record);
  if (!shown.ok()) log_.Warning(std::string(shown.message()));
}

// Warns once if writing fails.
void Trainer::WritePrometheus(const NextTimes& next) {
  if (prometheus_ == nullptr || !prometheus_->has_steps()) return;
  const absl::Status written = prometheus_->Write(next);
  if (written.ok() || std::exchange(prometheus_failed_, true)) return;
  log_.Warning(absl::StrCat("train.prometheus_file: ", written.message()));
}

void Trainer::RecordSave(const SaveRecord& record) {
  WriteMetrics(record);
  RankTrace* const trace = trace_.current();
  if (trace == nullptr || !leads()) return;
  const double now = SecondsNow();
  const double first = trace->events.empty() ? now : trace->events.front().start;
  trace->events.push_back({.kind = TraceKind::kWrite,
                           .bytes = record.bytes(),
                           .start = std::max(first, now - record.seconds()),
                           .end = now});
}

// Compares the plan's bytes with those of the first step, which allocates everything.
absl::Status Trainer::CompareMemory() {
  return ReportMemory(
      {.planned = TensorBytes(session_.context->planned),
       .measured = memory_.peak_bytes() + session_.context->ops->session().OwnBytes() +
                   checkpoints_->snapshot_bytes()},
      world_, log_);
}

RunPosition Trainer::PositionSince(double train_seconds) const {
  return {.step = state_.step(),
          .target_tokens = state_.target_tokens(),
          .step_tokens = step_tokens_,
          .steps_per_epoch = session_.steps_per_epoch,
          .seconds = state_.train_seconds() - train_seconds};
}

bool Trainer::ValidationDue() const {
  return IsDue(ValidationInterval(run_.train()), PositionSince(validated_at_));
}

// A validation that a stop cuts short is the first thing that the resumed run does.
absl::Status Trainer::ValidateNow() {
  Enter("validation");
  const TraceSpan span = Phase("validation");
  const absl::StatusOr<EvalRecord> record =
      Validate(run_, resolved_.inventory, resolved_.plan, *resolved_.corpus, *session_.context,
               state_.step(), log_, [this] {
                 heartbeat_.Beat();  // asked between rows that this rank computes alone
                 return requests_.IsStopping();
               });
  stop_ = absl::IsCancelled(record.status());
  if (!stop_) RETURN_IF_ERROR(record.status());
  if (stop_ != state_.validation_due()) checkpoints_->Changed();
  state_.set_validation_due(stop_);
  if (stop_) return absl::OkStatus();
  validated_step_ = state_.step();
  validated_at_ = state_.train_seconds();
  if (record->directions_size() == 0) {
    return absl::OkStatus();  // the corpus has no dev text of these directions
  }
  WriteMetrics(*record);
  if (!record->has_bleu() && !record->has_nll()) return absl::OkStatus();  // nothing was measured
  const bool better_bleu =
      record->has_bleu() && UpdateBest(state_, "bleu", record->bleu(), Better::kGreater);
  const bool better_nll =
      record->has_nll() && UpdateBest(state_, "nll", record->nll(), Better::kSmaller);
  const bool is_best = better_bleu || better_nll;
  CountPatience(is_best);
  if (!is_best) return absl::OkStatus();
  checkpoints_->Changed();  // this step is saved again if it was
  return checkpoints_->Save();
}

// Counts a validation that was `best`, or none, for train.patience.
void Trainer::CountPatience(bool is_best) {
  const int patience = run_.train().patience();
  if (patience == 0) return state_.clear_validations_without_best();
  state_.set_validations_without_best(is_best ? 0 : state_.validations_without_best() + 1);
  checkpoints_->Changed();
  if (!IsOutOfPatience()) return;
  log_.Info(absl::StrCat("train.patience: no better BLEU or nll in ",
                         state_.validations_without_best(),
                         " validations in a row; training ends"));
}

absl::Status Trainer::SaveIfAskedOrDue() {
  Enter("save");
  const TraceSpan span(trace_.current(), {.kind = TraceKind::kSave});
  return save_ ? checkpoints_->Save() : checkpoints_->SaveIfDue(step_tokens_);
}

// Only warns if writing fails.
absl::Status Trainer::WriteTraceIfDue(bool last) {
  if (!trace_.Due(state_.step(), last)) return absl::OkStatus();
  Enter("trace");
  ASSIGN_OR_RETURN(const std::string json, trace_.Take(world_, *session_.context->traced));
  if (!leads()) return absl::OkStatus();
  const std::string path = JoinPath(resolved_.folder, trace_.FileName());
  const absl::Status written = ReplaceFile(fs_, path, json);
  if (!written.ok()) {
    log_.Warning(std::string(written.message()));
  } else {
    log_.Info(absl::StrCat("trace in ", path, ", for ui.perfetto.dev or chrome://tracing: ",
                           WithCommas(static_cast<int64_t>(json.size())), " bytes"));
  }
  return absl::OkStatus();
}

// Returns the event `name` of the current step, which ends with the result's scope.
TraceSpan Trainer::Phase(const char* name) { return {trace_.current(), TraceKind::kPhase, name}; }

absl::Status Trainer::Stop() {
  Enter("save before the stop");
  RETURN_IF_ERROR(checkpoints_->SaveAndWait(/*tidy=*/false));
  log_.EndProgress();
  if (requests_.TimeIsUp()) {
    log_.Info("the time limit is reached: the end of the job or train.exit_after_minutes");
  }
  return AgreeOnStatus(
      world_,
      WithExitCode(absl::CancelledError(absl::StrCat("stopped and saved at step ", state_.step(),
                                                     "; run the same command to go on")),
                   ExitCode::kSavedRunAgain));
}

// Saves before the last validation, so that nothing in it can lose steps.
absl::Status Trainer::Finish() {
  Enter("last save");
  RETURN_IF_ERROR(checkpoints_->SaveAndWait(/*tidy=*/true));
  if (validated_step_ != state_.step() && run_.train().validate_every_steps() != 0) {
    RETURN_IF_ERROR(ValidateNow());
    if (stop_) return Stop();
    Enter("last save");
  }
  RETURN_IF_ERROR(checkpoints_->SaveAndWait(/*tidy=*/true));
  Enter("end of the run");
  WritePrometheus({});
  log_.EndProgress();
  log_.Info(absl::StrFormat("done: step %s, %s source and %s target tokens in %s of training",
                            WithCommas(state_.step()), WithCommas(state_.source_tokens()),
                            WithCommas(state_.target_tokens()), ClockText(state_.train_seconds())));
  ASSIGN_OR_RETURN(const std::string hash, HashRankWeights(*session_.context, resolved_.inventory));
  log_.Info(absl::StrCat("weights ", hash));
  return absl::OkStatus();
}

}  // namespace

absl::Status Train(RunSpec run, const TrainOptions& options, Logger& log) {
  SelfCommunicator alone;
  Communicator& world = options.world != nullptr ? *options.world : alone;
  const auto system = MakePosixFileSystem();
  FileSystem& files = options.files != nullptr ? *options.files : *system;
  const double deadline = DeadlineOf(run, options);
  MonitoredRun monitored(run.parallel(), world, files, options.on_stuck);
  RETURN_IF_ERROR(monitored.Join());
  // Destroyed after End, when nobody watches this rank any more: freeing a model may take long.
  std::unique_ptr<Trainer> trainer;
  const auto work = [&]() -> absl::Status {
    RunLockOptions lock = options.lock;
    lock.wait = monitored.Beating(std::move(lock.wait));
    ASSIGN_OR_RETURN(ResolvedRun resolved, ResolveRun(std::move(run),
                                                      {.root = options.root,
                                                       .require_empty = options.require_empty,
                                                       .job_id = options.job_id,
                                                       .lock = std::move(lock)},
                                                      monitored.world(), monitored.files(), log));
    trainer = std::make_unique<Trainer>(std::move(resolved), options, deadline, monitored, log);
    RETURN_IF_ERROR(trainer->Prepare());
    return CatchErrors([&] { return trainer->Run(); }, trainer->device_use());
  };
  return monitored.End(CatchErrors(work));
}

}  // namespace deepnet
