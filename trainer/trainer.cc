// The loop reads top to bottom in Run(); everything above it makes what it needs, everything below
// reports. One rank, one stage: the schedule is the plan's, the communicator that of one process.
#include "trainer/trainer.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/process_memory.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/self_communicator.h"
#include "parallel/plan/host_memory.h"
#include "parallel/plan/planner.h"
#include "proto/report.pb.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/compatibility.h"
#include "trainer/checkpoint/retention.h"
#include "trainer/data/corpus.h"
#include "trainer/data/corpus_batch_source.h"
#include "trainer/data/data_order.h"
#include "trainer/decode/model_scorer.h"
#include "trainer/eval/evaluator.h"
#include "trainer/eval/score_table.h"
#include "trainer/kernels/compute.h"
#include "trainer/metrics.h"
#include "trainer/model/describe.h"
#include "trainer/model/flops.h"
#include "trainer/run_state.h"
#include "trainer/train_step.h"

namespace deepnet {
namespace {

constexpr int kMaxConsecutiveSkips = 10;

// Sums since the last line of metrics.
struct Interval {
  double loss = 0.0, nll = 0.0, target_tokens = 0.0, source_tokens = 0.0, flops = 0.0;
  double seconds = 0.0, positions = 0.0;
};

class Trainer {
 public:
  Trainer(RunSpec run, const TrainOptions& options, Logger& log)
      : run_(std::move(run)), options_(options), log_(log), fs_(MakePosixFileSystem()) {}

  absl::Status Prepare() {
    folder_ = PathOf(run_.folder());
    RETURN_IF_ERROR(OpenCorpus());
    RETURN_IF_ERROR(FindEarlierRun());
    RETURN_IF_ERROR(MakeModel());
    return OpenFolder();
  }
  absl::Status Run();

 private:
  std::string PathOf(const std::string& path) const {
    return (std::filesystem::path(options_.root) / path).string();
  }
  absl::Status OpenCorpus();
  absl::Status FindEarlierRun();
  absl::Status MakeModel();
  absl::Status OpenFolder();

  bool Done() const;
  absl::Status Report(const StepResult& result);
  absl::Status Validate();
  absl::Status Save();

  RunSpec run_;
  const TrainOptions& options_;
  Logger& log_;
  const std::unique_ptr<FileSystem> fs_;
  std::string folder_;
  std::unique_ptr<Corpus> corpus_;
  std::optional<FoundCheckpoint> earlier_;
  Manifest state_;  // everything a checkpoint says besides tensors, kept current
  Plan plan_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Transformer> model_;
  std::unique_ptr<BatchSource> batches_;
  std::unique_ptr<MetricsWriter> metrics_;
  SelfCommunicator comm_;
  double ceiling_gflops_ = 0.0;
  Interval interval_;
  int64_t saved_step_ = -1, validated_step_ = -1;
  double saved_at_ = 0.0, validated_at_ = 0.0;  // training seconds
};

absl::Status Trainer::OpenCorpus() {
  auto corpus = Corpus::Open(PathOf(run_.data().folder()));
  if (!corpus.ok()) return WithExitCode(corpus.status(), ExitCode::kData);
  corpus_ = std::make_unique<Corpus>(std::move(*corpus));
  RETURN_IF_ERROR(
      WithExitCode(ResolveDataSpec(*corpus_, run_.mutable_data()), ExitCode::kBadConfig));
  const int64_t size = corpus_->vocabulary().size();
  if (run_.model().vocabulary_size() != 0 && run_.model().vocabulary_size() != size) {
    return WithExitCode(absl::InvalidArgumentError(absl::StrCat(
                            "model.vocabulary_size: ", run_.model().vocabulary_size(),
                            ": the corpus ", run_.data().folder(), " has a vocabulary of ", size)),
                        ExitCode::kBadConfig);
  }
  run_.mutable_model()->set_vocabulary_size(size);
  return absl::OkStatus();
}

// The earlier run's own choices (arithmetic, replicas) are taken over before anything is compared.
absl::Status Trainer::FindEarlierRun() {
  if (options_.fresh && std::filesystem::exists(folder_) && !std::filesystem::is_empty(folder_)) {
    return WithExitCode(absl::AlreadyExistsError(absl::StrCat(
                            "--fresh: ", run_.folder(), " is not empty; name another run folder")),
                        ExitCode::kCheckpoint);
  }
  ASSIGN_OR_RETURN(earlier_, FindLatest(*fs_, folder_));
  if (earlier_.has_value()) {
    for (const std::string& note : earlier_->notes) log_.Warning(note);
    ComputeSpec compute = earlier_->manifest.run().compute();
    if (run_.compute().threads_per_rank() != 0) {
      compute.set_threads_per_rank(run_.compute().threads_per_rank());
    }
    ComputeSpec asked = compute;
    asked.MergeFrom(run_.compute());
    if (asked.SerializeAsString() != compute.SerializeAsString()) {
      return WithExitCode(
          absl::FailedPreconditionError(absl::StrCat(
              "compute: the run goes on with the arithmetic it started with {",
              compute.ShortDebugString(), "}; asked for was {", asked.ShortDebugString(), "}")),
          ExitCode::kCheckpoint);
    }
    *run_.mutable_compute() = compute;
    const int replicas = earlier_->manifest.run().optim().virtual_replicas();
    if (run_.optim().virtual_replicas() == 0) run_.mutable_optim()->set_virtual_replicas(replicas);
    state_ = earlier_->manifest;
  } else {
    *run_.mutable_compute() = ResolveCompute(run_.compute());
    if (run_.optim().virtual_replicas() == 0) run_.mutable_optim()->set_virtual_replicas(1);
  }
  return absl::OkStatus();
}

absl::Status Trainer::MakeModel() {
  const Inventory inventory = Describe(run_.model(), run_.data().microbatch());
  const RunIdentity identity{inventory.Hash(), corpus_->content_hash(),
                             corpus_->vocabulary().hash()};
  if (earlier_.has_value()) RETURN_IF_ERROR(CheckSameRun(earlier_->manifest, identity, run_));
  const ClusterSpec cluster =
      run_.compute().device() == "cpu" ? WithHostMemory(run_.cluster()) : run_.cluster();
  ASSIGN_OR_RETURN(plan_, MakePlan(inventory, run_.data(), run_.optim(), run_.compute(), cluster,
                                   run_.parallel()));
  if (plan_.stages_size() != 1) {
    return WithExitCode(absl::UnimplementedError(absl::StrCat(
                            "parallel: the plan has ", plan_.stages_size(),
                            " ranks; this version trains on one (`deepnet plan` shows more)")),
                        ExitCode::kBadConfig);
  }
  ASSIGN_OR_RETURN(ops_, MakeOps(run_.compute()));
  model_ = std::make_unique<Transformer>(run_.model(), run_.data().microbatch(), *ops_,
                                         /*trainable=*/true);
  if (earlier_.has_value()) {
    RETURN_IF_ERROR(LoadParameters(*fs_, earlier_->folder, earlier_->manifest, /*moments=*/true,
                                   model_->parameters()));
    log_.Info(absl::StrCat("continuing at step ", WithCommas(state_.step())));
  } else {
    model_->parameters().Initialize(run_.seed());
  }
  model_->Refresh();
  state_.set_inventory_hash(identity.inventory_hash);
  state_.set_corpus_hash(identity.corpus_hash);
  state_.set_tokenizer_hash(identity.tokenizer_hash);
  *state_.mutable_run() = run_;
  state_.clear_files();
  return absl::OkStatus();
}

absl::Status Trainer::OpenFolder() {
  RETURN_IF_ERROR(SaveVocabulary(PathOf(run_.data().folder()) + "/" + kTokenizerFile,
                                 corpus_->vocabulary().languages(), folder_));
  ASSIGN_OR_RETURN(metrics_, MetricsWriter::Open(folder_ + "/metrics.jsonl", state_.step()));
  ASSIGN_OR_RETURN(auto source, CorpusBatchSource::Make(run_.data(), run_.seed(), corpus_.get()));
  batches_ = std::make_unique<Prefetcher>(std::move(source));
  const ComputeSpec& compute = run_.compute();
  if (compute.device() == "cpu") {
    ceiling_gflops_ = MeasureProductCeiling(256, compute.threads_per_rank(), 0.5);
  }
  log_.Info(absl::StrFormat(
      "%s parameters, %s + %s layers; %s, %s, %s, %d threads; product ceiling %.0f GFLOP/s",
      WithCommas(model_->parameters().inventory().NumElements()),
      WithCommas(run_.model().encoder_layers()), WithCommas(run_.model().decoder_layers()),
      Residual_Name(run_.model().residual()), DataType_Name(compute.dtype()),
      Isa_Name(compute.isa()), compute.threads_per_rank(), ceiling_gflops_));
  saved_step_ = earlier_.has_value() ? state_.step() : -1;
  validated_step_ = saved_step_;
  saved_at_ = validated_at_ = state_.train_seconds();
  return absl::OkStatus();
}

bool Trainer::Done() const {
  const TrainSpec& train = run_.train();
  return (train.steps() > 0 && state_.step() >= train.steps()) ||
         (train.minutes() > 0 && state_.train_seconds() >= 60 * train.minutes());
}

// True if `every` steps or `minutes` have passed since the last time.
bool Due(int64_t step, int64_t every, double seconds, double last_seconds, double minutes) {
  return (every > 0 && step % every == 0) ||
         (minutes > 0 && seconds - last_seconds >= 60 * minutes);
}

absl::Status Trainer::Run() {
  const TrainSpec& train = run_.train();
  const Schedule schedule = MakeTrivial(run_.data().microbatches_per_step());
  TransformerStage stage(*model_, {.seed = run_.seed(),
                                   .label_smoothing = run_.optim().label_smoothing(),
                                   .virtual_replicas = run_.optim().virtual_replicas()});
  const OptimizerStep optimizer(run_.optim(), model_->parameters().inventory());

  while (!Done()) {
    const double start = SecondsNow();
    auto batch = batches_->ForStep(state_.step());
    if (!batch.ok()) return WithExitCode(batch.status(), ExitCode::kData);
    ASSIGN_OR_RETURN(const StepResult result,
                     RunTrainStep(*batch, state_.step(), state_.optimizer_steps() + 1, schedule,
                                  stage, *model_, optimizer, comm_));
    const double took = SecondsNow() - start;

    state_.set_step(state_.step() + 1);
    state_.mutable_data()->set_step(state_.step());
    state_.set_train_seconds(state_.train_seconds() + took);
    state_.set_source_tokens(state_.source_tokens() + batch->num_source_tokens);
    state_.set_target_tokens(state_.target_tokens() + batch->num_target_tokens);
    const bool skipped = result.update.skipped;
    state_.set_optimizer_steps(state_.optimizer_steps() + (skipped ? 0 : 1));
    state_.set_skipped_steps(state_.skipped_steps() + (skipped ? 1 : 0));
    state_.set_consecutive_skips(skipped ? state_.consecutive_skips() + 1 : 0);
    const double tokens = static_cast<double>(batch->num_target_tokens);
    interval_.seconds += took;
    interval_.loss += result.loss * tokens;
    interval_.nll += result.nll * tokens;
    interval_.target_tokens += tokens;
    interval_.source_tokens += static_cast<double>(batch->num_source_tokens);
    interval_.flops += StepFlops(run_.model(), *batch);
    interval_.positions +=
        static_cast<double>(batch->microbatches.size()) *
        (run_.data().microbatch().source_tokens() + run_.data().microbatch().target_tokens());

    const bool last = Done();
    if (skipped)
      log_.Warning(
          absl::StrCat("step ", state_.step(), ": loss or gradient is not finite; skipped"));
    if (last || skipped || state_.step() % std::max<int64_t>(1, train.log_every_steps()) == 0) {
      RETURN_IF_ERROR(Report(result));
    }
    if (state_.consecutive_skips() >= kMaxConsecutiveSkips) {
      return WithExitCode(
          absl::AbortedError(absl::StrCat("diverged: ", kMaxConsecutiveSkips,
                                          " non-finite steps in a row at step ", state_.step())),
          ExitCode::kDiverged);
    }
    const int request = options_.request != nullptr ? options_.request->exchange(0) : 0;
    const double seconds = state_.train_seconds();
    if (request != 1 && Due(state_.step(), train.validate_every_steps(), seconds, validated_at_,
                            train.validate_every_minutes())) {
      RETURN_IF_ERROR(Validate());
    }
    if (request != 0 || Due(state_.step(), train.checkpoint_every_steps(), seconds, saved_at_,
                            train.checkpoint_every_minutes())) {
      RETURN_IF_ERROR(Save());
    }
    if (request == 1) {
      return WithExitCode(
          absl::CancelledError(absl::StrCat("stopped and saved at step ", state_.step(),
                                            "; run the same command to go on")),
          ExitCode::kSavedRunAgain);
    }
  }
  // Saved before the last validation, so that nothing in it can lose steps.
  RETURN_IF_ERROR(Save());
  if (validated_step_ != state_.step() && train.validate_every_steps() != 0) {
    RETURN_IF_ERROR(Validate());
  }
  log_.EndProgress();
  log_.Info(absl::StrFormat("done: step %s, %s source and %s target tokens in %s of training",
                            WithCommas(state_.step()), WithCommas(state_.source_tokens()),
                            WithCommas(state_.target_tokens()), ClockText(state_.train_seconds())));
  log_.Info(absl::StrCat("weights ", WeightsHash(model_->parameters())));
  return absl::OkStatus();
}

absl::Status Trainer::Report(const StepResult& result) {
  StepRecord record;
  record.set_kind("train");
  record.set_step(state_.step());
  record.set_loss(interval_.loss / interval_.target_tokens);
  record.set_nll(interval_.nll / interval_.target_tokens);
  record.set_source_tokens(state_.source_tokens());
  record.set_target_tokens(state_.target_tokens());
  record.set_tokens_per_second((interval_.source_tokens + interval_.target_tokens) /
                               interval_.seconds);
  record.set_target_tokens_per_second(interval_.target_tokens / interval_.seconds);
  record.set_gradient_norm(result.update.gradient_norm);
  record.set_rate(result.update.rate);
  if (ceiling_gflops_ > 0) {
    record.set_mfu(interval_.flops / interval_.seconds * 1e-9 / ceiling_gflops_);
  }
  record.set_resident_bytes(PeakResidentBytes());
  record.set_skipped_steps(state_.skipped_steps());
  record.set_seconds(state_.train_seconds());
  record.set_fill((interval_.source_tokens + interval_.target_tokens) / interval_.positions);
  interval_ = {};
  RETURN_IF_ERROR(metrics_->Write(record));

  const TrainSpec& train = run_.train();
  Progress progress{.label = "train"};
  if (train.steps() > 0) progress.fraction = double(state_.step()) / double(train.steps());
  if (train.minutes() > 0) {
    progress.fraction =
        std::max(progress.fraction, state_.train_seconds() / (60 * train.minutes()));
  }
  progress.fraction = std::min(progress.fraction, 1.0);
  if (progress.fraction > 0) {
    progress.seconds_left = state_.train_seconds() * (1 / progress.fraction - 1);
  }
  progress.figures = absl::StrFormat(
      "step %s  loss %.3f  nll %.3f  %s tokens/s  norm %.2f  rate %.2e", WithCommas(state_.step()),
      record.loss(), record.nll(), WithCommas(std::llround(record.tokens_per_second())),
      record.gradient_norm(), record.rate());
  if (state_.skipped_steps() > 0)
    absl::StrAppend(&progress.figures, "  skipped ", state_.skipped_steps());
  log_.Show(progress);
  return absl::OkStatus();
}

absl::Status Trainer::Validate() {
  validated_step_ = state_.step();
  validated_at_ = state_.train_seconds();
  ModelScorer scorer(*model_);
  ModelPairScorer pair_scorer(*model_);
  EvaluateOptions options{.split = "dev",
                          .sentences = run_.train().validate_sentences(),
                          .tags = run_.data().tags(),
                          .decode = run_.decode()};
  const MicrobatchSpec& capacity = run_.data().microbatch();
  options.max_positions =
      std::min({run_.model().max_positions(), capacity.source_tokens(), capacity.target_tokens()});
  for (const Direction& d : corpus_->TextDirections("dev")) {
    const auto& wanted = run_.data().directions();
    if (wanted.empty() || std::find(wanted.begin(), wanted.end(), d.Name()) != wanted.end()) {
      options.directions.push_back(d.Name());
    }
  }
  if (options.directions.empty()) return absl::OkStatus();  // the corpus has no dev text of them
  ASSIGN_OR_RETURN(
      EvalRecord record,
      Evaluate(scorer, pair_scorer, *corpus_, corpus_->vocabulary(), options,
               [this](const std::string& direction, double fraction) {
                 log_.Show({.label = "validate", .fraction = fraction, .figures = direction});
               }));
  record.set_kind("validation");
  record.set_step(state_.step());
  log_.Info(
      absl::StrFormat("validation at step %s: nll %.3f, BLEU %.2f (to English %.2f, from %.2f), "
                      "chrF %.2f, %d directions, %s",
                      WithCommas(state_.step()), record.nll(), record.bleu(),
                      record.bleu_to_english(), record.bleu_from_english(), record.chrf(),
                      record.directions_size(), ClockText(record.seconds())));
  RETURN_IF_ERROR(metrics_->Write(record));

  const bool better_bleu = UpdateBest(state_, "bleu", record.bleu(), Better::kGreater);
  const bool better_nll = UpdateBest(state_, "nll", record.nll(), Better::kSmaller);
  if (!better_bleu && !better_nll) return absl::OkStatus();
  saved_step_ = -1;  // the manifest has changed: this step is saved again if it was
  return Save();
}

absl::Status Trainer::Save() {
  if (saved_step_ == state_.step()) return absl::OkStatus();
  RETURN_IF_ERROR(SaveParameters(*fs_, folder_, state_, model_->parameters()));
  for (const BestScore& best : state_.best()) {
    if (best.step() != state_.step()) continue;
    RETURN_IF_ERROR(SetPointer(*fs_, folder_, absl::StrCat("best-", best.metric()), best.step()));
  }
  saved_step_ = state_.step();
  saved_at_ = state_.train_seconds();
  return DeleteOldCheckpoints(*fs_, folder_, run_.train().keep_checkpoints());
}

}  // namespace

absl::Status Train(RunSpec run, const TrainOptions& options, Logger& log) {
  Trainer trainer(std::move(run), options, log);
  RETURN_IF_ERROR(trainer.Prepare());
  return trainer.Run();
}

}  // namespace deepnet
