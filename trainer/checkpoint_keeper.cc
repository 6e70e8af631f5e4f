#include "trainer/checkpoint_keeper.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

constexpr int kAttempts = 2;  // of a save that everybody waits for

// Where no save has been measured yet: what a slow disk writes.
constexpr double kGuessedBytesPerSecond = 100e6;

std::string SizeText(int64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return mib < 1024 ? absl::StrFormat("%.1f MiB", mib) : absl::StrFormat("%.2f GiB", mib / 1024);
}

}  // namespace

std::string SaveLine(const SaveRecord& record) {
  if (!record.error().empty()) {
    return absl::StrFormat("step %s could not be saved (%s so far): %s", WithCommas(record.step()),
                           WithCommas(record.failed_saves()), record.error());
  }
  return absl::StrFormat("saved step %s: %s in %.2f s, of which training stood still %.3f s",
                         WithCommas(record.step()), SizeText(record.bytes()), record.seconds(),
                         record.stall_seconds());
}

CheckpointKeeper::CheckpointKeeper(FileSystem& fs, const TrainSpec& train, Manifest& state,
                                   const RankPart& part, Logger& log,
                                   CheckpointKeeperOptions options)
    : train_(train),
      state_(state),
      log_(log),
      options_(std::move(options)),
      saved_step_(options_.resumed ? state.step() : -1),
      saved_at_(state.train_seconds()),
      noted_skips_(state.skipped_steps()),
      saver_(fs,
             {.folder = options_.folder,
              .keep_latest = train.keep_checkpoints(),
              .keep_every_steps = train.keep_every_steps(),
              .copies = options_.copies,
              .lock = options_.lock,
              .on_end = [this](const SaveRecord& record) { AfterSave(record); },
              .warn = [this](const std::string& sentence) { log_.Warning(sentence); }},
             part) {}

bool CheckpointKeeper::IsDue() const {
  const int64_t every = train_.checkpoint_every_steps();
  const double seconds = state_.train_seconds() - saved_at_;
  return (every > 0 && state_.step() % every == 0) ||
         (train_.checkpoint_every_minutes() > 0 &&
          seconds >= 60 * train_.checkpoint_every_minutes());
}

// Of the step that has just been counted.
void CheckpointKeeper::NoteSkip() {
  if (state_.skipped_steps() == noted_skips_) return;
  noted_skips_ = state_.skipped_steps();
  const int runs = state_.skips_size();
  SkippedSteps* run = runs > 0 ? state_.mutable_skips(runs - 1) : nullptr;
  if (run == nullptr || run->first_step() + run->count() != state_.step()) {
    run = state_.add_skips();
    run->set_first_step(state_.step());
  }
  run->set_count(run->count() + 1);
}

absl::Status CheckpointKeeper::SaveIfDue() {
  NoteSkip();
  return IsDue() ? Save() : absl::OkStatus();
}

absl::Status CheckpointKeeper::Save() {
  NoteSkip();
  if (saved_step_ == state_.step()) return absl::OkStatus();
  RETURN_IF_ERROR(saver_.Finish());
  saved_step_ = state_.step();
  saved_at_ = state_.train_seconds();
  saver_.Begin(state_);
  return absl::OkStatus();
}

void CheckpointKeeper::AfterSave(SaveRecord record) {
  const bool failed = !record.error().empty();
  if (failed) state_.set_failed_saves(state_.failed_saves() + 1);
  if (failed && saved_step_ == record.step()) saved_step_ = -1;
  record.set_failed_saves(state_.failed_saves());
  if (options_.record) options_.record(record);
  if (failed) {
    log_.Warning(SaveLine(record));
  } else {
    log_.Info(SaveLine(record));
  }
}

absl::Status CheckpointKeeper::SaveAndWait(bool tidy) {
  RETURN_IF_ERROR(saver_.Finish(tidy));
  for (int attempt = 0; attempt < kAttempts && saved_step_ != state_.step(); ++attempt) {
    RETURN_IF_ERROR(Save());
    RETURN_IF_ERROR(saver_.Finish(tidy));
  }
  return saved_step_ == state_.step() ? absl::OkStatus() : saver_.outcome();
}

double CheckpointKeeper::ExpectedSeconds() const {
  const double measured = saver_.longest_seconds();
  return measured > 0 ? measured : static_cast<double>(saver_.bytes()) / kGuessedBytesPerSecond;
}

}  // namespace deepnet
