// One writer per run folder, on file systems that several hosts share.
//
// `lock` in the run folder is created exclusively. Its first lines are a RunOwner in text form;
// while the owner lives, its heartbeat adds a line. Clocks of hosts are never compared: who finds a
// lock looks at it for some beats, by its own clock, and takes a lock over that does not grow. An
// owner that can be looked for from here (same host and boot) is not waited for.
//
// Taking over begins with creating `lock.takeover-<token of the dead owner>` exclusively, so that
// of several who wait one does it; then the dead lock is renamed over that file. An owner that was
// only asleep sees at its next beat that the lock is another's (Check).
//
// Example:
//   ASSIGN_OR_RETURN(const auto lock, RunLock::Acquire(fs, "runs/a", MakeRunOwner(""), {}));
//   ...
//   RETURN_IF_ERROR(lock->Check());  // before what must not be done twice
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "parallel/base/file_system.h"
#include "proto/checkpoint.pb.h"
#include "trainer/checkpoint/run_owner.h"

namespace deepnet {

struct RunLockOptions {
  absl::Duration beat = absl::Seconds(10);  // InfiniteDuration: no heartbeat of its own, call Beat
  int missed_beats = 6;                     // after which an owner counts as dead
  std::function<void(absl::Duration)> wait = absl::SleepFor;  // between two looks at a lock
  std::function<OwnerState(const RunOwner&)> state_of = StateOfOwner;
  std::function<void(const std::string&)> note;  // a sentence for people; empty: nobody
};

class RunLock {
 public:
  // Makes the folder if need be. kAlreadyExists (ExitCode::kCheckpoint) naming the owner: the
  // folder is in use.
  static absl::StatusOr<std::unique_ptr<RunLock>> Acquire(FileSystem& fs,
                                                          const std::string& run_folder,
                                                          RunOwner owner, RunLockOptions options);
  ~RunLock();  // removes the lock, if it is still this one

  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Reads the lock. kAborted (ExitCode::kCheckpoint): it is not this one any more, now or at an
  // earlier look; the owner must write nothing more. Any thread.
  absl::Status Check();

  // Adds a line and checks. What the heartbeat does. A beat that cannot be written is one missed.
  absl::Status Beat();

 private:
  RunLock(FileSystem& fs, std::string path, std::unique_ptr<AppendFile> file, RunOwner owner,
          const RunLockOptions& options);
  void KeepBeating(absl::Duration beat);

  FileSystem& fs_;
  const std::string path_;
  const RunOwner owner_;
  absl::Mutex mutex_;
  std::unique_ptr<AppendFile> file_ ABSL_GUARDED_BY(mutex_);
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread heartbeat_;
};

}  // namespace deepnet
