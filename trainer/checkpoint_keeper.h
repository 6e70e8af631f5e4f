// When a run is saved, and what it says about it; how, is run_saver's. Keeps the ledger of skipped
// steps, which every checkpoint carries on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"

#include "parallel/base/file_system.h"
#include "parallel/base/logging.h"
#include "proto/checkpoint.pb.h"
#include "proto/report.pb.h"
#include "proto/run.pb.h"
#include "trainer/rank_part.h"
#include "trainer/run_saver.h"

namespace deepnet {

struct CheckpointKeeperOptions {
  std::string folder;       // of the run
  RunLock* lock = nullptr;  // rank 0's
  bool resumed = false;     // the step that `state` begins with is on disk
  bool copies = true;       // a save is written in the background, from a copy (RunSaverOptions)
  std::function<void(const SaveRecord&)> record;  // told of every save that ended, on every rank
};

// All methods but the getters are collective. `state`, which the run keeps current, says the step.
class CheckpointKeeper {
 public:
  // All arguments outlive this. Counts failed saves in `state` and writes down there which steps
  // were skipped.
  CheckpointKeeper(FileSystem& fs, const TrainSpec& train, Manifest& state, const RankPart& part,
                   Logger& log, CheckpointKeeperOptions options);

  // Before the first save.
  absl::Status Open() { return saver_.Open(); }

  // Whether this rank waits for nothing but the others. When all say so, Advance.
  bool Ready() const { return saver_.Ready(); }
  absl::Status Advance() { return saver_.busy() ? saver_.Advance() : absl::OkStatus(); }

  // After every step, or Save instead: starts a save if one is due. Then the one before is on disk:
  // no run is ever more than one checkpoint behind what was due.
  absl::Status SaveIfDue();

  // Not collective: before weights and moments change.
  void AwaitCopy() { saver_.AwaitCopy(); }

  // Starts saving this step, if that has not been done; waits for the save before.
  absl::Status Save();

  // Until this step is on disk. Tries twice; the error, on all ranks, has ExitCode::kCheckpoint.
  // Without `tidy`, old checkpoints stay.
  absl::Status SaveAndWait(bool tidy);

  // Until no save is under way.
  absl::Status Finish() { return saver_.Finish(/*tidy=*/false); }

  // The state of this step is not any more what was saved.
  void Changed() { saved_step_ = -1; }

  // Of the copy that is held.
  int64_t snapshot_bytes() const { return options_.copies ? saver_.bytes() : 0; }

  // How long the next save will take.
  double ExpectedSeconds() const;

 private:
  bool IsDue() const;
  void NoteSkip();
  void AfterSave(SaveRecord record);

  const TrainSpec& train_;
  Manifest& state_;
  Logger& log_;
  const CheckpointKeeperOptions options_;
  int64_t saved_step_ = -1;  // the last one that was begun and has not failed; -1: none
  double saved_at_ = 0.0;    // training seconds
  int64_t noted_skips_ = 0;  // of state.skipped_steps()
  RunSaver saver_;           // last: it calls back
};

// "saved step 1,000: 1.2 GiB in 3.2 s, of which training stood still 0.05 s", or what went wrong.
std::string SaveLine(const SaveRecord& record);

}  // namespace deepnet
