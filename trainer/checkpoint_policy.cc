#include "trainer/checkpoint_policy.h"

#include <utility>

#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

constexpr int kAttempts = 2;  // of a save that everybody waits for

// The speed of a slow disk, assumed until a save has been measured.
constexpr double kGuessedBytesPerSecond = 100e6;

AsyncCheckpointerOptions CompleteOptions(AsyncCheckpointerOptions options, const TrainSpec& train,
                                         std::function<void(const SaveRecord&)> on_end) {
  options.keep = {.keep_latest = train.keep_checkpoints(),
                  .keep_every_steps = train.keep_every_steps()};
  if (train.spike().action() == SpikeSpec::ROLL_BACK) {
    options.keep.go_back_steps = train.spike().steps_before();
  }
  options.on_end = std::move(on_end);
  return options;
}

}  // namespace

CheckpointPolicy::CheckpointPolicy(FileSystem& fs, const TrainSpec& train, Manifest& state,
                                   const RankContext& context, CheckpointPolicyOptions options)
    : state_(state),
      record_(std::move(options.record)),
      saved_step_(options.resumed ? state.step() : -1),
      recorded_skips_(state.skipped_steps()),
      clock_(CheckpointInterval(train), state, options.steps_per_epoch),
      saver_(fs,
             CompleteOptions(std::move(options.saver), train,
                             [this](const SaveRecord& record) { AfterSave(record); }),
             context) {}

// Records in the ledger whether the step that was just counted was skipped.
void CheckpointPolicy::RecordSkip() {
  if (state_.skipped_steps() == recorded_skips_) return;
  recorded_skips_ = state_.skipped_steps();
  const int runs = state_.skips_size();
  SkippedSteps* run = runs > 0 ? state_.mutable_skips(runs - 1) : nullptr;
  if (run == nullptr || run->first_step() + run->count() != state_.step()) {
    run = state_.add_skips();
    run->set_first_step(state_.step());
  }
  run->set_count(run->count() + 1);
}

absl::Status CheckpointPolicy::SaveIfDue(int64_t step_tokens) {
  RecordSkip();
  return clock_.IsDue(step_tokens) ? Save() : absl::OkStatus();
}

absl::Status CheckpointPolicy::Save() {
  RecordSkip();
  if (saved_step_ == state_.step()) return absl::OkStatus();
  RETURN_IF_ERROR(saver_.Finish());
  saved_step_ = state_.step();
  clock_.Restart();
  saver_.Begin(state_);
  return absl::OkStatus();
}

void CheckpointPolicy::AfterSave(SaveRecord record) {
  const bool failed = !record.error().empty();
  if (failed) state_.set_failed_saves(state_.failed_saves() + 1);
  if (failed) saved_step_ = -1;
  record.set_failed_saves(state_.failed_saves());
  if (record_) record_(record);
}

absl::Status CheckpointPolicy::SaveAndWait(bool tidy) {
  RETURN_IF_ERROR(saver_.Finish(tidy));
  for (int attempt = 0; attempt < kAttempts && saved_step_ != state_.step(); ++attempt) {
    RETURN_IF_ERROR(Save());
    RETURN_IF_ERROR(saver_.Finish(tidy));
  }
  return saved_step_ == state_.step() ? absl::OkStatus() : saver_.outcome();
}

absl::Status CheckpointPolicy::SaveAfterGoingBack() {
  saved_step_ = -1;
  recorded_skips_ = state_.skipped_steps();
  RETURN_IF_ERROR(Save());
  return saver_.Finish();
}

double CheckpointPolicy::ExpectedSeconds() const {
  const double measured = saver_.longest_seconds();
  return measured > 0 ? measured : static_cast<double>(saver_.bytes()) / kGuessedBytesPerSecond;
}

}  // namespace deepnet
