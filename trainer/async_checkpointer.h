// Saves checkpoints of a run that is spread over ranks, in the background while training goes on.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"

#include "parallel/base/file_system.h"
#include "proto/checkpoint.pb.h"
#include "proto/report.pb.h"
#include "trainer/checkpoint/background_task.h"
#include "trainer/checkpoint/retention.h"
#include "trainer/checkpoint/run_lock.h"
#include "trainer/rank_context.h"
#include "trainer/rank_snapshot.h"

namespace deepnet {

struct AsyncCheckpointerOptions {
  std::string folder;       // of the run
  RetentionRule keep = {};  // which checkpoints stay
  bool copies = true;       // false: no copy; Begin returns when this rank's file is written
  int threads = 1;          // that make the pages of a device's copy
  RunLock* lock = nullptr;  // checked before a commit; null on ranks other than 0
  // Called on every rank when a save has ended, well or not; only rank 0's record has figures.
  std::function<void(const SaveRecord& record)> on_end = [](const SaveRecord&) {};
  // Told in a sentence for people what went wrong in tidying; rank 0 only.
  std::function<void(const std::string& sentence)> warn = [](const std::string&) {};
};

// After a step, a thread of each rank, or its GPU, copies what the rank owns, beside the passes of
// the next step and before its update; the thread writes the copy. At the ends of later steps the
// ranks agree how far all of them are (docs/design/saving.md).
//
//   Begin        each rank copies its state          in the background, up to the next update
//   written      every rank has written its file     in the background
//   committed    manifest, rename, pointers: rank 0  in the background
//   tidied       read back, old ones deleted: rank 0 in the background
//
// One save is under way at a time. A save that fails costs the run nothing but the checkpoint: what
// it left is removed, and outcome() and the SaveRecord have the error. A GPU that fails ends the
// run. CheckpointPolicy says when to call what.
class AsyncCheckpointer {
 public:
  // `fs`, `context` and what `options` point to outlive this.
  AsyncCheckpointer(FileSystem& fs, AsyncCheckpointerOptions options, const RankContext& context);

  // Removes what an interrupted save left, and takes the memory of the copy. Call it before the
  // first Begin. Collective, blocking.
  absl::Status Open();

  // Returns whether a save is under way; the same on all ranks.
  bool busy() const { return phase_ != Phase::kNone; }
  // Returns whether this rank has done its part of the phase and waits for the others only.
  bool Ready() const { return task_.Done(); }

  // Starts to save the step that `state` describes. Must not be busy.
  void Begin(const Manifest& state);

  // Waits until weights and moments may change; a GPU's stream waits, and not this thread. Call it
  // before every update.
  void AwaitCopy();

  // Goes on to the next phase, if a save is under way. Collective; call it once every rank is
  // Ready. Fails if a peer, the device or the lock (kAborted) was lost; a save that failed is not
  // an error.
  absl::Status Advance();

  // Waits until no save is under way. Without `tidy`, old checkpoints stay for the next save to
  // delete. Collective.
  absl::Status Finish(bool tidy = true);

  // How the last save ended, known to all ranks (IsAgreed); OK before the first.
  const absl::Status& outcome() const { return outcome_; }
  // The longest time from Begin to the commit so far; 0 before the first.
  double longest_seconds() const { return longest_seconds_; }
  // The bytes that this rank writes.
  int64_t bytes() const { return snapshot_.bytes(); }
  // Those of the copy where the plan counts it, in a CPU's memory: a GPU's is the host's.
  int64_t planned_bytes() const { return options_.copies && !snapshot_.on_device() ? bytes() : 0; }

 private:
  enum class Phase { kNone, kWriting, kCommitting, kTidying };

  bool leads() const { return context_.world->rank() == 0; }
  absl::Status EndWriting();
  absl::Status EndSave();
  absl::Status Commit();
  absl::Status Tidy(bool saved);

  FileSystem& fs_;
  const AsyncCheckpointerOptions options_;
  const RankContext& context_;
  RankSnapshot snapshot_;
  Phase phase_ = Phase::kNone;
  Manifest manifest_;          // of the save under way
  ShardFile file_;             // that this rank has written
  absl::Status device_error_;  // of its copy
  absl::Status outcome_;
  double began_ = 0.0, committed_ = 0.0;  // SecondsNow()
  double stall_seconds_ = 0.0, longest_seconds_ = 0.0;
  std::atomic<bool> copied_{true};  // weights and moments may change
  std::atomic<bool> hurry_{false};  // tidying ends early
  BackgroundTask task_;             // last: it uses the others
};

}  // namespace deepnet
