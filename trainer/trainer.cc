// The loop reads top to bottom in Run(). What has to be settled before it is in run_start and
// run_parts, what a step does in train_step, what is said about it in step_report, when it is saved
// in checkpoint_keeper.
#include "trainer/trainer.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "google/protobuf/message.h"

#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/self_communicator.h"
#include "trainer/checkpoint_keeper.h"
#include "trainer/model/architecture.h"
#include "trainer/rank_state.h"
#include "trainer/run_parts.h"
#include "trainer/run_start.h"
#include "trainer/run_state.h"
#include "trainer/step_report.h"
#include "trainer/tensor_memory.h"
#include "trainer/train_step.h"
#include "trainer/validation.h"
#include "trainer/watched_run.h"

namespace deepnet {
namespace {

constexpr int kMaxConsecutiveSkips = 10;

// The earlier of the limits on this start.
double DeadlineOf(const RunSpec& run, const TrainOptions& options) {
  const double minutes = run.train().time_limit_minutes();
  return minutes > 0 ? std::min(options.deadline, SecondsNow() + 60 * minutes) : options.deadline;
}

class Trainer {
 public:
  Trainer(RunStart start, const TrainOptions& options, double deadline,
          const WatchedSurroundings& around, Logger& log)
      : start_(std::move(start)),
        run_(start_.run),
        state_(start_.state),
        options_(options),
        requests_(options.request, deadline),
        fs_(around.files),
        log_(log),
        world_(around.world),
        pulse_(around.pulse),
        memory_(run_.compute().device()) {}

  absl::Status Prepare();
  absl::Status Run();

 private:
  bool leads() const { return world_.rank() == 0; }  // writes and speaks for all
  bool Done() const;
  bool ValidationDue() const;
  absl::Status Step();
  absl::Status Record();
  absl::Status Agree(double seconds);
  void Count(const StepBatch& batch, const StepResult& result);
  absl::Status Report(const StepResult& result);
  void WriteMetrics(const google::protobuf::Message& record);
  absl::Status CheckDivergence();
  absl::Status CompareMemory();
  absl::Status ValidateNow();
  absl::Status SaveIfAskedOrDue();
  void Enter(const char* what) { pulse_.Begin(absl::StrCat("step ", state_.step(), ": ", what)); }
  absl::Status Stop();
  absl::Status Finish();

  RunStart start_;
  const RunSpec& run_;
  Manifest& state_;  // everything a checkpoint says besides tensors, kept current
  const TrainOptions& options_;
  StopRequests requests_;
  FileSystem& fs_;
  Logger& log_;
  Communicator& world_;
  Pulse& pulse_;
  TensorMemory memory_;
  RunParts parts_;
  std::unique_ptr<CheckpointKeeper> keeper_;
  int64_t first_step_ = 0;            // of this start
  double stepping_seconds_ = 0.0;     // of this start, by the clock of rank 0
  int64_t validated_step_ = -1;       // the last one; -1: none
  double validated_at_ = 0.0;         // training seconds
  double agreed_seconds_ = 0.0;       // of the last step, by the clock of rank 0
  double longest_step_ = 0.0;         // seconds, of this start without its first
  bool stop_ = false, save_ = false;  // some rank was asked to, as all ranks know
};

absl::Status Trainer::Prepare() {
  pulse_.Begin("preparation");
  ASSIGN_OR_RETURN(parts_, MakeRunParts(start_, options_.init_from, world_, fs_, log_));
  if (options_.around_batches) parts_.batches = options_.around_batches(std::move(parts_.batches));
  first_step_ = state_.step();
  const bool resumed = start_.earlier.has_value();
  validated_step_ = resumed && !state_.validation_due() ? state_.step() : -1;
  validated_at_ = state_.train_seconds();
  keeper_ = std::make_unique<CheckpointKeeper>(
      fs_, run_.train(), state_, *parts_.part, log_,
      CheckpointKeeperOptions{
          .folder = start_.folder,
          .lock = start_.lock.get(),
          .resumed = resumed,
          .copies = !run_.parallel().blocking_saves(),
          .record = [this](const SaveRecord& record) { WriteMetrics(record); }});
  requests_.Expect(0.0, keeper_->ExpectedSeconds());
  return keeper_->Open();
}

bool Trainer::Done() const {
  const TrainSpec& train = run_.train();
  return (train.steps() > 0 && state_.step() >= train.steps()) ||
         (train.minutes() > 0 && state_.train_seconds() >= 60 * train.minutes());
}

absl::Status Trainer::Run() {
  memory_.ForgetPeak();         // what loading took is over
  RETURN_IF_ERROR(Agree(0.0));  // signals have been taken since the process began
  if (!stop_ && state_.validation_due()) RETURN_IF_ERROR(ValidateNow());
  if (save_) RETURN_IF_ERROR(keeper_->Save());
  while (!stop_ && !Done()) {
    RETURN_IF_ERROR(Step());
    RETURN_IF_ERROR(CheckDivergence());
    if (!stop_ && ValidationDue()) RETURN_IF_ERROR(ValidateNow());
    RETURN_IF_ERROR(SaveIfAskedOrDue());
  }
  return stop_ ? Stop() : Finish();
}

absl::Status Trainer::Step() {
  const double started = SecondsNow();
  pulse_.Begin(absl::StrCat("step ", state_.step()));
  const bool first = state_.step() == first_step_;
  auto batch = parts_.batches->ForStep(state_.step());
  if (!batch.ok()) return WithExitCode(batch.status(), ExitCode::kData);
  const bool looks = parts_.instruments->Due(state_.step() + 1);
  if (looks) parts_.instruments->BeforeStep();
  ASSIGN_OR_RETURN(const StepResult result,
                   RunTrainStep(*batch, state_.step(), state_.optimizer_steps() + 1, *parts_.part,
                                {.limits = MakeTimeLimits(run_.parallel(), first),
                                 .watchdog = options_.watchdog,
                                 .pulse = &pulse_},
                                [this, looks] {
                                  keeper_->AwaitCopy();
                                  if (looks) parts_.instruments->BeforeUpdate();
                                }));
  if (looks) RETURN_IF_ERROR(Record());
  RETURN_IF_ERROR(Agree(SecondsNow() - started));
  Count(*batch, result);
  if (first) RETURN_IF_ERROR(CompareMemory());
  const int64_t every = std::max<int64_t>(1, run_.train().log_every_steps());
  const bool tells = result.update.skipped || state_.step() % every == 0;
  return tells || stop_ || Done() ? Report(result) : absl::OkStatus();
}

// Of the step that has just been taken and is not counted yet.
absl::Status Trainer::Record() {
  const int64_t step = state_.step() + 1;
  Enter("instruments");
  if (options_.watchdog != nullptr) {
    const TimeLimits limits = MakeTimeLimits(run_.parallel(), /*first_step=*/true);
    options_.watchdog->Begin(absl::StrCat("step ", step, ": instruments"),
                             limits.message + limits.grace);
  }
  ASSIGN_OR_RETURN(const InstrumentRecord record, parts_.instruments->Record(step));
  if (options_.watchdog != nullptr) options_.watchdog->End();
  WriteMetrics(record);
  return absl::OkStatus();
}

// What ranks have to know together after a step: how long it took by the clock of rank 0, what any
// of them was asked for, and whether all have done their part of a save.
absl::Status Trainer::Agree(double seconds) {
  Enter("agreement of all ranks");
  const int asked = requests_.Take();
  std::array<double, 4> values = {leads() ? seconds : 0.0, (asked & kStopRequest) != 0 ? 1.0 : 0.0,
                                  (asked & kSaveRequest) != 0 ? 1.0 : 0.0,
                                  keeper_->Ready() ? 0.0 : 1.0};
  RETURN_IF_ERROR(world_.AllReduceSum(std::span(values)));
  agreed_seconds_ = values[0];
  stop_ = stop_ || values[1] > 0;
  save_ = values[2] > 0;
  return values[3] == 0 ? keeper_->Advance() : absl::OkStatus();
}

void Trainer::Count(const StepBatch& batch, const StepResult& result) {
  const bool skipped = result.update.skipped;
  state_.set_step(state_.step() + 1);
  state_.mutable_data()->set_step(state_.step());
  state_.set_train_seconds(state_.train_seconds() + agreed_seconds_);
  stepping_seconds_ += agreed_seconds_;
  state_.set_source_tokens(state_.source_tokens() + batch.num_source_tokens);
  state_.set_target_tokens(state_.target_tokens() + batch.num_target_tokens);
  state_.set_optimizer_steps(state_.optimizer_steps() + (skipped ? 0 : 1));
  state_.set_skipped_steps(state_.skipped_steps() + (skipped ? 1 : 0));
  state_.set_consecutive_skips(skipped ? state_.consecutive_skips() + 1 : 0);
  parts_.report->Add(batch, result, agreed_seconds_);
  if (state_.step() > first_step_ + 1) longest_step_ = std::max(longest_step_, agreed_seconds_);
  requests_.Expect(longest_step_, keeper_->ExpectedSeconds());
  if (skipped) {
    log_.Warning(absl::StrCat("step ", state_.step(), ": loss or gradient is not finite; skipped"));
  }
}

absl::Status Trainer::CheckDivergence() {
  if (state_.consecutive_skips() < kMaxConsecutiveSkips) return absl::OkStatus();
  RETURN_IF_ERROR(keeper_->Finish());  // what was good is kept
  const std::string text = absl::StrCat("diverged: ", kMaxConsecutiveSkips,
                                        " non-finite steps in a row at step ", state_.step());
  return AgreeOnStatus(world_, WithExitCode(absl::AbortedError(text), ExitCode::kDiverged));
}

absl::Status Trainer::Report(const StepResult& result) {
  ASSIGN_OR_RETURN(const TraceFigures pipeline, MeasurePipeline(result, *parts_.part));
  const StepRecord record = parts_.report->Take(state_, result, pipeline);
  WriteMetrics(record);
  Progress progress = ProgressOf(record, run_.train());
  progress.figures += InstrumentsCost(parts_.instruments->seconds(), stepping_seconds_);
  log_.Show(progress);
  return absl::OkStatus();
}

// A disk that is full now may have room later; the run goes on meanwhile.
void Trainer::WriteMetrics(const google::protobuf::Message& record) {
  if (!leads()) return;
  const absl::Status written = parts_.metrics->Write(record);
  if (!written.ok()) log_.Warning(std::string(written.message()));
}

// The first step has allocated all that steps need.
absl::Status Trainer::CompareMemory() {
  return ReportMemory(
      {.planned = start_.plan.stages(world_.rank()).memory().total(),
       .measured = memory_.peak_bytes() + parts_.part->ops->OwnBytes() + keeper_->snapshot_bytes()},
      world_, log_);
}

bool Trainer::ValidationDue() const {
  const TrainSpec& train = run_.train();
  const double seconds = state_.train_seconds() - validated_at_;
  return (train.validate_every_steps() > 0 && state_.step() % train.validate_every_steps() == 0) ||
         (train.validate_every_minutes() > 0 && seconds >= 60 * train.validate_every_minutes());
}

// Cut short by a stop, it is the first thing that the next start does.
absl::Status Trainer::ValidateNow() {
  Enter("validation");
  const absl::StatusOr<EvalRecord> record =
      Validate(run_, start_.inventory, start_.plan, *start_.corpus, *parts_.part, state_.step(),
               log_, [this] {
                 pulse_.Beat();  // asked between rows that this rank computes alone
                 return requests_.IsStopping();
               });
  stop_ = absl::IsCancelled(record.status());
  if (!stop_) RETURN_IF_ERROR(record.status());
  if (stop_ != state_.validation_due()) keeper_->Changed();
  state_.set_validation_due(stop_);
  if (stop_) return absl::OkStatus();
  validated_step_ = state_.step();
  validated_at_ = state_.train_seconds();
  if (record->directions_size() == 0)
    return absl::OkStatus();  // the corpus has no dev text of them
  WriteMetrics(*record);
  const bool better_bleu = !record->bleu_signature().empty() &&
                           UpdateBest(state_, "bleu", record->bleu(), Better::kGreater);
  const bool better_nll = UpdateBest(state_, "nll", record->nll(), Better::kSmaller);
  if (!better_bleu && !better_nll) return absl::OkStatus();
  keeper_->Changed();  // this step is saved again if it was
  return keeper_->Save();
}

absl::Status Trainer::SaveIfAskedOrDue() {
  Enter("save");
  return save_ ? keeper_->Save() : keeper_->SaveIfDue();
}

absl::Status Trainer::Stop() {
  Enter("save before the stop");
  RETURN_IF_ERROR(keeper_->SaveAndWait(/*tidy=*/false));
  log_.EndProgress();
  return AgreeOnStatus(
      world_,
      WithExitCode(absl::CancelledError(absl::StrCat("stopped and saved at step ", state_.step(),
                                                     "; run the same command to go on")),
                   ExitCode::kSavedRunAgain));
}

// Saved before the last validation, so that nothing in it can lose steps.
absl::Status Trainer::Finish() {
  Enter("last save");
  RETURN_IF_ERROR(keeper_->SaveAndWait(/*tidy=*/true));
  if (validated_step_ != state_.step() && run_.train().validate_every_steps() != 0) {
    RETURN_IF_ERROR(ValidateNow());
    if (stop_) return Stop();
    Enter("last save");
  }
  RETURN_IF_ERROR(keeper_->SaveAndWait(/*tidy=*/true));
  Enter("end of the run");
  log_.EndProgress();
  log_.Info(absl::StrFormat("done: step %s, %s source and %s target tokens in %s of training",
                            WithCommas(state_.step()), WithCommas(state_.source_tokens()),
                            WithCommas(state_.target_tokens()), ClockText(state_.train_seconds())));
  ASSIGN_OR_RETURN(const std::string hash, HashRankWeights(*parts_.part, start_.inventory));
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
  const ParallelSpec parallel = run.parallel();
  return RunWatched(parallel, world, files, options.on_stuck,
                    [&](const WatchedSurroundings& around) -> absl::Status {
                      RunLockOptions lock = options.lock;
                      lock.wait = BeatingWait(std::move(lock.wait), parallel, around.pulse);
                      ASSIGN_OR_RETURN(RunStart start, StartRun(std::move(run),
                                                                {.root = options.root,
                                                                 .fresh = options.fresh,
                                                                 .job_id = options.job_id,
                                                                 .lock = std::move(lock)},
                                                                around.world, around.files, log));
                      Trainer trainer(std::move(start), options, deadline, around, log);
                      absl::Status status = trainer.Prepare();
                      if (status.ok()) status = trainer.Run();
                      EndJobUnlessAgreed(around.world, status);
                      return status;
                    });
}

}  // namespace deepnet
