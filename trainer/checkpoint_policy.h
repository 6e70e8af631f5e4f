// Decides when a run is saved.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"

#include "parallel/base/file_system.h"
#include "proto/checkpoint.pb.h"
#include "proto/report.pb.h"
#include "proto/run.pb.h"
#include "trainer/async_checkpointer.h"
#include "trainer/rank_context.h"
#include "trainer/telemetry/intervals.h"

namespace deepnet {

struct CheckpointPolicyOptions {
  AsyncCheckpointerOptions saver;                 // the policy sets `keep` and `on_end`
  bool resumed = false;                           // the step that `state` begins with is on disk
  double steps_per_epoch = 0.0;                   // DataOrder
  std::function<void(const SaveRecord&)> record;  // told of every save that ended, on every rank
};

// Decides when a run is saved. Keeps the ledger of skipped steps and the number of failed saves,
// which every checkpoint carries. All methods but the getters are collective.
class CheckpointPolicy {
 public:
  // All arguments outlive this. `state`, which the run keeps current, says the step.
  CheckpointPolicy(FileSystem& fs, const TrainSpec& train, Manifest& state,
                   const RankContext& context, CheckpointPolicyOptions options);

  // To be opened before the first save, and advanced in between.
  AsyncCheckpointer& saver() { return saver_; }

  // Starts a save if one is due; first waits until the one before is on disk, so that no run is
  // ever more than one checkpoint behind. `step_tokens` are the target tokens of the last step.
  // Call this or Save after every step.
  absl::Status SaveIfDue(int64_t step_tokens);

  // See intervals.h.
  double SecondsUntilDue(const Pace& pace) const { return clock_.SecondsUntilDue(pace); }

  // Starts to save this step unless that has been done; waits for the save before.
  absl::Status Save();

  // Saves this step and waits until it is on disk. Tries twice; the error, on all ranks, has
  // ExitCode::kCheckpoint. Without `tidy`, old checkpoints stay.
  absl::Status SaveAndWait(bool tidy);

  // Waits until no save is under way.
  absl::Status Finish() { return saver_.Finish(/*tidy=*/false); }

  // Tells that `state` has changed since this step was saved, if it was.
  void Changed() { saved_step_ = -1; }

  // Tells that `state` has become that of an earlier step, which the run went back to, and saves
  // it: returns when that is on disk or has failed.
  absl::Status SaveAfterGoingBack();

  // How long the next save will take.
  double ExpectedSeconds() const;

 private:
  void RecordSkip();
  void AfterSave(SaveRecord record);

  Manifest& state_;
  const std::function<void(const SaveRecord&)> record_;
  int64_t saved_step_ = -1;     // the last one that was begun and has not failed; -1: none
  int64_t recorded_skips_ = 0;  // of state.skipped_steps()
  IntervalClock clock_;
  AsyncCheckpointer saver_;  // last: it calls back
};

}  // namespace deepnet
