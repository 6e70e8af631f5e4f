// The loop reads top to bottom in Run(). What has to be settled before it is in run_start, what a
// step does in train_step, what is said about it in step_report.
#include "trainer/trainer.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/self_communicator.h"
#include "parallel/exec/watchdog.h"
#include "trainer/checkpoint/retention.h"
#include "trainer/data/corpus_batch_source.h"
#include "trainer/kernels/compute.h"
#include "trainer/metrics.h"
#include "trainer/rank_part.h"
#include "trainer/rank_state.h"
#include "trainer/run_start.h"
#include "trainer/run_state.h"
#include "trainer/step_report.h"
#include "trainer/tensor_memory.h"
#include "trainer/train_step.h"
#include "trainer/validation.h"

namespace deepnet {
namespace {

constexpr int kMaxConsecutiveSkips = 10;

// True if `every` steps or `minutes` have passed since the last time.
bool Due(int64_t step, int64_t every, double seconds, double last_seconds, double minutes) {
  return (every > 0 && step % every == 0) ||
         (minutes > 0 && seconds - last_seconds >= 60 * minutes);
}

class Trainer {
 public:
  Trainer(RunStart start, const TrainOptions& options, Communicator& world, FileSystem& fs,
          Logger& log)
      : start_(std::move(start)),
        run_(start_.run),
        state_(start_.state),
        options_(options),
        fs_(fs),
        log_(log),
        world_(world),
        memory_(run_.compute().device()) {}

  absl::Status Prepare();
  absl::Status Run();

 private:
  absl::Status MakeModel();
  absl::Status OpenFolder();

  bool leads() const { return world_.rank() == 0; }  // writes and speaks for all
  bool Done() const;
  struct Agreement;
  absl::StatusOr<Agreement> AgreeAfterStep(double seconds);
  void Count(const StepBatch& batch, const StepResult& result, double seconds);
  absl::Status Report(const StepResult& result);
  absl::Status CompareMemory();
  absl::Status ValidateNow();
  absl::Status Save();
  absl::Status KeepBest();
  absl::Status Finish();

  RunStart start_;
  const RunSpec& run_;
  Manifest& state_;  // everything a checkpoint says besides tensors, kept current
  const TrainOptions& options_;
  FileSystem& fs_;
  Logger& log_;
  Communicator& world_;
  TensorMemory memory_;
  std::unique_ptr<RankPart> part_;
  std::unique_ptr<BatchSource> batches_;
  std::unique_ptr<MetricsWriter> metrics_;
  std::unique_ptr<StepReport> report_;
  int64_t saved_step_ = -1, validated_step_ = -1;
  double saved_at_ = 0.0, validated_at_ = 0.0;  // training seconds
};

absl::Status Trainer::Prepare() {
  RETURN_IF_ERROR(MakeModel());
  RETURN_IF_ERROR(OpenFolder());
  saved_step_ = validated_step_ = start_.earlier.has_value() ? state_.step() : -1;
  saved_at_ = validated_at_ = state_.train_seconds();
  return absl::OkStatus();
}

absl::Status Trainer::MakeModel() {
  ASSIGN_OR_RETURN(part_, MakeRankPart(run_, start_.inventory, start_.plan, world_));
  if (start_.earlier.has_value()) {
    RETURN_IF_ERROR(AgreeOnStatus(
        world_, LoadRankState(fs_, start_.earlier->folder, start_.earlier->manifest, *part_)));
    log_.Info(absl::StrCat("continuing at step ", WithCommas(state_.step())));
  } else {
    part_->model->parameters().Initialize(run_.seed());
  }
  part_->model->Refresh();
  return absl::OkStatus();
}

// Rank 0 keeps the folder; every rank reads the corpus.
absl::Status Trainer::OpenFolder() {
  absl::Status opened;
  if (leads()) {
    opened = SaveVocabulary(fs_, start_.corpus->folder() + "/" + kTokenizerFile,
                            start_.corpus->vocabulary().languages(), start_.folder);
    auto metrics = MetricsWriter::Open(start_.folder + "/metrics.jsonl", state_.step());
    opened.Update(metrics.status());
    if (metrics.ok()) metrics_ = std::move(*metrics);
  }
  RETURN_IF_ERROR(AgreeOnStatus(world_, opened));
  ASSIGN_OR_RETURN(auto source,
                   CorpusBatchSource::Make(run_.data(), run_.seed(), start_.corpus.get()));
  batches_ = std::make_unique<Prefetcher>(std::move(source));
  const ComputeSpec& compute = run_.compute();
  double ceiling =
      compute.device() == "cpu" ? MeasureProductCeiling(256, compute.threads_per_rank(), 0.5) : 0.0;
  RETURN_IF_ERROR(world_.AllReduceSum(std::span(&ceiling, 1)));
  report_ = std::make_unique<StepReport>(run_, ceiling);
  log_.Info(absl::StrFormat(
      "%s parameters, %s + %s layers; %s, %s, %s, %d x %d threads; product ceiling %.0f GFLOP/s",
      WithCommas(start_.inventory.NumElements()), WithCommas(run_.model().encoder_layers()),
      WithCommas(run_.model().decoder_layers()), Residual_Name(run_.model().residual()),
      DataType_Name(compute.dtype()), Isa_Name(compute.isa()), world_.size(),
      compute.threads_per_rank(), ceiling));
  return absl::OkStatus();
}

bool Trainer::Done() const {
  const TrainSpec& train = run_.train();
  return (train.steps() > 0 && state_.step() >= train.steps()) ||
         (train.minutes() > 0 && state_.train_seconds() >= 60 * train.minutes());
}

void Trainer::Count(const StepBatch& batch, const StepResult& result, double seconds) {
  const bool skipped = result.update.skipped;
  state_.set_step(state_.step() + 1);
  state_.mutable_data()->set_step(state_.step());
  state_.set_train_seconds(state_.train_seconds() + seconds);
  state_.set_source_tokens(state_.source_tokens() + batch.num_source_tokens);
  state_.set_target_tokens(state_.target_tokens() + batch.num_target_tokens);
  state_.set_optimizer_steps(state_.optimizer_steps() + (skipped ? 0 : 1));
  state_.set_skipped_steps(state_.skipped_steps() + (skipped ? 1 : 0));
  state_.set_consecutive_skips(skipped ? state_.consecutive_skips() + 1 : 0);
  report_->Add(batch, result, seconds);
  if (skipped) {
    log_.Warning(absl::StrCat("step ", state_.step(), ": loss or gradient is not finite; skipped"));
  }
}

// What ranks know together after a step.
struct Trainer::Agreement {
  double seconds = 0.0;  // that the step took, by the clock of rank 0
  bool stop = false;     // some rank was asked to save and end
  bool save = false;     // some rank was asked to save
};

absl::StatusOr<Trainer::Agreement> Trainer::AgreeAfterStep(double seconds) {
  const int request = options_.request != nullptr ? options_.request->exchange(0) : 0;
  std::array<double, 3> values = {leads() ? seconds : 0.0, request == 1 ? 1.0 : 0.0,
                                  request == 2 ? 1.0 : 0.0};
  RETURN_IF_ERROR(world_.AllReduceSum(std::span(values)));
  return Agreement{.seconds = values[0], .stop = values[1] > 0, .save = values[2] > 0};
}

absl::Status Trainer::Run() {
  const TrainSpec& train = run_.train();
  const int64_t first_step = state_.step();
  memory_.ForgetPeak();  // what loading took is over
  while (!Done()) {
    const double started = SecondsNow();
    auto batch = batches_->ForStep(state_.step());
    if (!batch.ok()) return WithExitCode(batch.status(), ExitCode::kData);
    ASSIGN_OR_RETURN(
        const StepResult result,
        RunTrainStep(*batch, state_.step(), state_.optimizer_steps() + 1, *part_,
                     {.limits = MakeTimeLimits(run_.parallel(), state_.step() == first_step),
                      .watchdog = options_.watchdog}));
    ASSIGN_OR_RETURN(const Agreement agreed, AgreeAfterStep(SecondsNow() - started));
    Count(*batch, result, agreed.seconds);
    if (state_.step() == first_step + 1) RETURN_IF_ERROR(CompareMemory());
    if (Done() || result.update.skipped ||
        state_.step() % std::max<int64_t>(1, train.log_every_steps()) == 0) {
      RETURN_IF_ERROR(Report(result));
    }
    if (state_.consecutive_skips() >= kMaxConsecutiveSkips) {
      return AgreeOnStatus(world_,
                           WithExitCode(absl::AbortedError(absl::StrCat(
                                            "diverged: ", kMaxConsecutiveSkips,
                                            " non-finite steps in a row at step ", state_.step())),
                                        ExitCode::kDiverged));
    }
    const double seconds = state_.train_seconds();
    if (!agreed.stop && Due(state_.step(), train.validate_every_steps(), seconds, validated_at_,
                            train.validate_every_minutes())) {
      RETURN_IF_ERROR(ValidateNow());
    }
    if (agreed.stop || agreed.save ||
        Due(state_.step(), train.checkpoint_every_steps(), seconds, saved_at_,
            train.checkpoint_every_minutes())) {
      RETURN_IF_ERROR(Save());
    }
    if (agreed.stop) {
      return AgreeOnStatus(world_, WithExitCode(absl::CancelledError(absl::StrCat(
                                                    "stopped and saved at step ", state_.step(),
                                                    "; run the same command to go on")),
                                                ExitCode::kSavedRunAgain));
    }
  }
  return Finish();
}

absl::Status Trainer::Report(const StepResult& result) {
  ASSIGN_OR_RETURN(const TraceFigures pipeline, MeasurePipeline(result, *part_));
  const StepRecord record = report_->Take(state_, result, pipeline);
  if (leads()) RETURN_IF_ERROR(metrics_->Write(record));
  log_.Show(ProgressOf(record, run_.train()));
  return absl::OkStatus();
}

// The first step has allocated all that steps need.
absl::Status Trainer::CompareMemory() {
  return ReportMemory({.planned = start_.plan.stages(world_.rank()).memory().total(),
                       .measured = memory_.peak_bytes() + part_->ops->OwnBytes()},
                      world_, log_);
}

absl::Status Trainer::ValidateNow() {
  validated_step_ = state_.step();
  validated_at_ = state_.train_seconds();
  ASSIGN_OR_RETURN(const EvalRecord record, Validate(run_, start_.inventory, start_.plan,
                                                     *start_.corpus, *part_, state_.step(), log_));
  if (record.directions_size() == 0) return absl::OkStatus();  // the corpus has no dev text of them
  if (leads()) RETURN_IF_ERROR(metrics_->Write(record));
  const bool better_bleu = UpdateBest(state_, "bleu", record.bleu(), Better::kGreater);
  const bool better_nll = UpdateBest(state_, "nll", record.nll(), Better::kSmaller);
  if (!better_bleu && !better_nll) return absl::OkStatus();
  saved_step_ = -1;  // the manifest has changed: this step is saved again if it was
  return Save();
}

absl::Status Trainer::Save() {
  if (saved_step_ == state_.step()) return absl::OkStatus();
  RETURN_IF_ERROR(SaveRankState(fs_, start_.folder, state_, *part_));
  saved_step_ = state_.step();
  saved_at_ = state_.train_seconds();
  return AgreeOnStatus(world_, leads() ? KeepBest() : absl::OkStatus());
}

absl::Status Trainer::KeepBest() {
  for (const BestScore& best : state_.best()) {
    if (best.step() != state_.step()) continue;
    RETURN_IF_ERROR(
        SetPointer(fs_, start_.folder, absl::StrCat("best-", best.metric()), best.step()));
  }
  return DeleteOldCheckpoints(fs_, start_.folder, run_.train().keep_checkpoints());
}

// Saved before the last validation, so that nothing in it can lose steps.
absl::Status Trainer::Finish() {
  RETURN_IF_ERROR(Save());
  if (validated_step_ != state_.step() && run_.train().validate_every_steps() != 0) {
    RETURN_IF_ERROR(ValidateNow());
  }
  log_.EndProgress();
  log_.Info(absl::StrFormat("done: step %s, %s source and %s target tokens in %s of training",
                            WithCommas(state_.step()), WithCommas(state_.source_tokens()),
                            WithCommas(state_.target_tokens()), ClockText(state_.train_seconds())));
  ASSIGN_OR_RETURN(const std::string hash, HashRankWeights(*part_, start_.inventory));
  log_.Info(absl::StrCat("weights ", hash));
  return absl::OkStatus();
}

}  // namespace

absl::Status Train(RunSpec run, const TrainOptions& options, Logger& log) {
  SelfCommunicator alone;
  Communicator& world = options.world != nullptr ? *options.world : alone;
  const auto fs = MakePosixFileSystem();
  ASSIGN_OR_RETURN(
      RunStart start,
      StartRun(std::move(run), {.root = options.root, .fresh = options.fresh}, world, *fs, log));
  Trainer trainer(std::move(start), options, world, *fs, log);
  RETURN_IF_ERROR(trainer.Prepare());
  return trainer.Run();
}

}  // namespace deepnet
