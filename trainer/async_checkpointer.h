// Checkpoints of a run that is spread over ranks: each rank writes what it updates, in the
// background while training goes on (AsyncCheckpointer), and reads what it holds. CheckpointPolicy
// decides when a run is saved.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "parallel/base/logging.h"
#include "parallel/plan/inventory.h"
#include "proto/checkpoint.pb.h"
#include "proto/report.pb.h"
#include "proto/run.pb.h"
#include "trainer/checkpoint/background_task.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/run_lock.h"
#include "trainer/kernels/side_copies.h"
#include "trainer/rank_context.h"
#include "trainer/telemetry/intervals.h"

namespace deepnet {

// The tensors that one rank writes into a checkpoint: weights and both moments of the elements that
// it updates, 12 bytes each, and with optim.ema_decay the weights' average, 4 more. The ranks of a
// job together make a whole checkpoint.
class RankSnapshot {
 public:
  // `context` outlives this. With `copies`, memory of the host is reserved once: here, or on a
  // device by Pin.
  RankSnapshot(const RankContext& context, bool copies);

  // Takes the memory of copies from a device, which is pinned; `threads` threads make its pages.
  // Call it before the first step: it may wait for the device. Fails (kDoesNotFit) where it cannot
  // be had.
  absl::Status Pin(int threads);

  // Touches the pages of other memory, which takes a second a GB or longer. May run in any thread
  // beside whatever comes before the first Look; without it, the first Copy does the same.
  void TouchMemory();

  // Takes views of weights and moments as they are now. With copies, a device begins to copy what
  // the rank writes, and no more, beside its work; without, all that the rank holds is on the host
  // when this returns.
  void Look();
  // Lets updates that are put on the device's stream from now on wait there for what Look began.
  void HoldUpdate();
  // Copies what Look saw on the host, if this has copies; waits for a device's copy. Nobody may
  // change weights and moments on a host until then. May run in any thread. Fails if the device
  // does.
  absl::Status Copy();

  // The tensors of the last Look or Copy.
  std::span<const NamedTensor> tensors() const { return tensors_; }
  // The bytes of those tensors.
  int64_t bytes() const;
  bool on_device() const;

 private:
  void BeginCopy();

  const RankContext& context_;
  std::shared_ptr<float[]> memory_;   // of all copies; null without copies
  std::vector<at::Tensor> held_;      // keeps alive what views look at
  std::unique_ptr<SideCopies> side_;  // to memory_; null without copies or without a device
  std::vector<NamedTensor> tensors_;
};

// Loads the weights and moments that this rank holds, whatever the layout of the ranks that saved
// them.
absl::Status LoadRankState(FileSystem& fs, const std::string& checkpoint_folder,
                           const Manifest& manifest, RankContext& context);

// Returns WeightsHash of the whole model, the same for every layout. Collective over context.world.
absl::StatusOr<std::string> HashRankWeights(const RankContext& context, const Inventory& whole);

struct AsyncCheckpointerOptions {
  std::string folder;            // of the run
  int keep_latest = 3;           // checkpoints
  int64_t keep_every_steps = 0;  // 0: none for that reason
  int64_t go_back_steps = -1;    // CheckpointsToDelete
  bool copies = true;            // false: no copy; Begin returns when this rank's file is written
  int threads = 1;               // that make the pages of a device's copy
  RunLock* lock = nullptr;       // checked before a commit; null on ranks other than 0
  // Called on every rank when a save has ended, well or not; only rank 0's record has figures.
  std::function<void(const SaveRecord& record)> on_end = [](const SaveRecord&) {};
  // Told in a sentence for people what went wrong in tidying; rank 0 only.
  std::function<void(const std::string& sentence)> warn = [](const std::string&) {};
};

// Saves a run while it goes on. After a step, a thread of each rank, or its GPU, copies what the
// rank owns, beside the passes of the next step and before its update; the thread writes the copy.
// At the ends of later steps the ranks agree how far all of them are (docs/design/saving.md).
//
//   Begin        each rank copies its state          in the background, up to the next update
//   written      every rank has written its file     in the background
//   committed    manifest, rename, pointers: rank 0  in the background
//   tidied       read back, old ones deleted: rank 0 in the background
//
// One save is under way at a time. A save that fails costs the run nothing but the checkpoint: what
// it left is removed, and outcome() and the SaveRecord have the error. A GPU that fails ends the
// run.
//
// Example, at the end of every step:
//   double waiting = saver.Ready() ? 0.0 : 1.0;
//   RETURN_IF_ERROR(world.AllReduceSum(std::span(&waiting, 1)));
//   if (saver.busy() && waiting == 0.0) RETURN_IF_ERROR(saver.Advance());
//   if (time_to_save && !saver.busy()) saver.Begin(state);
class AsyncCheckpointer {
 public:
  // `fs`, `context` and what `options` point to outlive this.
  AsyncCheckpointer(FileSystem& fs, AsyncCheckpointerOptions options, const RankContext& context);

  // Removes what an interrupted save left, and takes the memory of the copy, on a CPU in the
  // background. Call it before the first Begin. Collective, blocking.
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

  // Goes on to the next phase. Collective; call it while busy, once every rank is Ready. Fails if a
  // peer, the device or the lock (kAborted) was lost; a save that failed is not an error.
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
  // Those of the copy that a CPU's memory holds: a GPU's is the host's.
  int64_t planned_bytes() const { return options_.copies && !snapshot_.on_device() ? bytes() : 0; }

 private:
  enum class Phase { kNone, kWriting, kCommitting, kTidying };

  bool leads() const { return context_.world->rank() == 0; }
  absl::Status EndWriting();
  absl::Status EndCommit();
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

// The direction in which a metric improves.
enum class Better { kGreater, kSmaller };

// Records `value` of `metric` at state.step() if it beats the best so far or is the first; returns
// whether it did. A tie keeps the earlier step. Not-a-number is never the best and any number beats
// it.
bool UpdateBest(Manifest& state, const std::string& metric, double value, Better better);

struct CheckpointPolicyOptions {
  std::string folder;                             // of the run
  RunLock* lock = nullptr;                        // rank 0's
  bool resumed = false;                           // the step that `state` begins with is on disk
  bool copies = true;                             // see AsyncCheckpointerOptions
  int threads = 1;                                // likewise
  double steps_per_epoch = 0.0;                   // DataOrder
  std::function<void(const SaveRecord&)> record;  // told of every save that ended, on every rank
};

// Decides when a run is saved and reports each save. Keeps the ledger of skipped steps, which every
// checkpoint carries. All methods but the getters and AwaitCopy are collective.
class CheckpointPolicy {
 public:
  // All arguments outlive this. `state`, which the run keeps current, says the step; failed saves
  // and skipped steps are recorded in it.
  CheckpointPolicy(FileSystem& fs, const TrainSpec& train, Manifest& state,
                   const RankContext& context, Logger& log, CheckpointPolicyOptions options);

  // Call it before the first save.
  absl::Status Open() { return saver_.Open(); }

  // Returns whether this rank waits for the others only. When it is true on all ranks, call
  // Advance.
  bool Ready() const { return saver_.Ready(); }
  absl::Status Advance() { return saver_.busy() ? saver_.Advance() : absl::OkStatus(); }

  // Starts a save if one is due; first waits until the one before is on disk, so that no run is
  // ever more than one checkpoint behind. `step_tokens` are the target tokens of the last step.
  // Call this or Save after every step.
  absl::Status SaveIfDue(int64_t step_tokens);

  // Waits until weights and moments may change.
  void AwaitCopy() { saver_.AwaitCopy(); }

  // See intervals.h.
  double SecondsUntilDue(const Pace& pace) const;

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

  // The bytes of the copy, where the plan counts it.
  int64_t snapshot_bytes() const { return saver_.planned_bytes(); }

  // How long the next save will take.
  double ExpectedSeconds() const;

 private:
  RunPosition Position(int64_t step_tokens) const;
  void RecordSkip();
  void AfterSave(SaveRecord record);

  const TrainSpec& train_;
  Manifest& state_;
  Logger& log_;
  const CheckpointPolicyOptions options_;
  int64_t saved_step_ = -1;     // the last one that was begun and has not failed; -1: none
  double saved_at_ = 0.0;       // training seconds
  int64_t recorded_skips_ = 0;  // of state.skipped_steps()
  AsyncCheckpointer saver_;     // last: it calls back
};

// Returns "saved step 1,000: 1.2 GiB in 3.2 s, of which training stood still 0.05 s", or the error.
std::string SaveLine(const SaveRecord& record);

}  // namespace deepnet
