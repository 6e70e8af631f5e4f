// Saves a run while it goes on: after a step, a thread of each rank copies what the rank owns,
// beside the next step's passes and before its update, and writes the copy; the ranks agree at the
// ends of later steps how far all are (docs/design/saving.md).
//
//   Begin        each rank copies its state          in the background, up to the next update
//   written      every rank has written its file     in the background
//   committed    manifest, rename, pointers: rank 0  in the background
//   tidied       read back, old ones deleted: rank 0 in the background
//
// One save is under way at a time. A save that fails costs the run nothing but the checkpoint: what
// it left is removed, and whoever asked sees it in outcome() and in the SaveRecord.
//
// Example, at the end of every step:
//   values.push_back(saver.Ready() ? 0.0 : 1.0);
//   RETURN_IF_ERROR(world.AllReduceSum(values));
//   if (saver.busy() && values.back() == 0.0) RETURN_IF_ERROR(saver.Advance());
//   if (time_to_save && !saver.busy()) RETURN_IF_ERROR(saver.Begin(state));
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "proto/checkpoint.pb.h"
#include "proto/report.pb.h"
#include "trainer/checkpoint/background_task.h"
#include "trainer/checkpoint/run_lock.h"
#include "trainer/rank_part.h"
#include "trainer/rank_state.h"

namespace deepnet {

struct RunSaverOptions {
  std::string folder;            // of the run
  int keep_latest = 3;           // checkpoints
  int64_t keep_every_steps = 0;  // 0: none for that reason
  bool copies = true;            // false: no copy; Begin returns when this rank's file is written
  RunLock* lock = nullptr;       // checked before a commit; null on ranks other than 0
  // Called on every rank when a save has ended, well or not; only rank 0's record has figures.
  std::function<void(const SaveRecord& record)> on_end = [](const SaveRecord&) {};
  // A sentence for people about what went wrong in tidying; rank 0 only.
  std::function<void(const std::string& sentence)> warn = [](const std::string&) {};
};

class RunSaver {
 public:
  // `fs` and `part` outlive this, and so do what `options` name.
  RunSaver(FileSystem& fs, RunSaverOptions options, const RankPart& part);

  // Removes what an interrupted save left, and begins to take the memory of the copy, which goes on
  // in the background. Collective, blocking; before the first Begin.
  absl::Status Open();

  // Whether a save is under way; the same on all ranks.
  bool busy() const { return phase_ != Phase::kNone; }
  // Whether this rank waits for nothing but the others.
  bool Ready() const { return task_.Done(); }

  // Starts saving the step that `state` describes. Not while busy.
  void Begin(const Manifest& state);

  // Until weights and moments may change: before every update.
  void AwaitCopy();

  // The next phase. Collective, once every rank is Ready, while busy. An error is of the job: a
  // peer was lost, or the lock (kAborted). A save that failed is none.
  absl::Status Advance();

  // Collective, blocking: until nothing is under way. Without `tidy`, old checkpoints stay for the
  // next save to delete.
  absl::Status Finish(bool tidy = true);

  // How the last save ended, known to all ranks (IsAgreed); OK before the first.
  const absl::Status& outcome() const { return outcome_; }
  // The longest from Begin to the commit so far; 0 before the first.
  double longest_seconds() const { return longest_seconds_; }
  // That this rank writes.
  int64_t bytes() const { return snapshot_.bytes(); }

 private:
  enum class Phase { kNone, kWriting, kCommitting, kTidying };

  bool leads() const { return part_.world->rank() == 0; }
  absl::Status EndWriting();
  absl::Status EndCommit();
  absl::Status EndSave();
  absl::Status Commit();
  absl::Status Tidy(bool saved);

  FileSystem& fs_;
  const RunSaverOptions options_;
  const RankPart& part_;
  RankSnapshot snapshot_;
  Phase phase_ = Phase::kNone;
  Manifest manifest_;  // of the save under way
  ShardFile file_;     // that this rank has written
  absl::Status outcome_;
  double began_ = 0.0, committed_ = 0.0;  // SecondsNow()
  double stall_seconds_ = 0.0, longest_seconds_ = 0.0;
  std::atomic<bool> copied_{true};  // weights and moments may change
  std::atomic<bool> hurry_{false};  // tidying ends early
  BackgroundTask task_;             // last: it uses the others
};

}  // namespace deepnet
