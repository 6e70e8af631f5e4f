// Lets one process at a time write into a run folder, on file systems that several hosts share.
//
// `lock` in the run folder is created exclusively. Its first lines are a RunOwner in text form;
// while the owner lives, its heartbeat adds a line. Clocks of hosts are never compared: a process
// that finds a lock watches it for some beats, by its own clock, and takes it over if it does not
// grow. It does not wait for an owner that it can look up (same host and boot).
//
// Taking over begins with creating `lock.takeover-<token of the dead owner>` exclusively, so that
// only one of several waiting processes does it; then the dead lock is renamed over that file. An
// owner that was only asleep sees at its next beat that the lock is another's (Check).
//
// Example:
//   ASSIGN_OR_RETURN(const auto lock, RunLock::Acquire(fs, "runs/a", MakeRunOwner(""), {}));
//   ...
//   RETURN_IF_ERROR(lock->Check());  // before anything that must not be done twice
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "parallel/base/file_system.h"
#include "proto/checkpoint.pb.h"

namespace deepnet {

// Describes this process, with a random token. `job_id` is the batch system's; empty if there is
// none.
RunOwner MakeRunOwner(const std::string& job_id);

// The state of another process, as far as it can be seen from here.
enum class OwnerState {
  kRuns,
  kGone,
  kUnknown,  // it is on another host, or its number means nothing here
};

// Looks up the process of `owner`. Only processes of this host, since its last boot, and of this
// process's namespace can be found; a number that was given to another process since is recognised
// by the time at which that one started.
OwnerState StateOfOwner(const RunOwner& owner);

// "process 1234 on node7 (job 88), since 2026-11-21 12:03:07".
std::string NameOwner(const RunOwner& owner);

struct RunLockOptions {
  absl::Duration beat = absl::Seconds(10);  // InfiniteDuration: no heartbeat of its own, call Beat
  int missed_beats = 6;                     // an owner that misses so many counts as dead
  std::function<void(absl::Duration)> wait = absl::SleepFor;  // between two looks at a lock
  std::function<OwnerState(const RunOwner&)> state_of = StateOfOwner;
  std::function<void(const std::string&)> note = [](const std::string&) {};  // takes a sentence
};

class RunLock {
 public:
  // Takes the lock; makes the folder if it is missing. Fails with kAlreadyExists
  // (ExitCode::kCheckpoint), naming the owner, if the folder is in use; with kFailedPrecondition
  // (ExitCode::kBadConfig) if one of its files is a link.
  static absl::StatusOr<std::unique_ptr<RunLock>> Acquire(FileSystem& fs,
                                                          const std::string& run_folder,
                                                          RunOwner owner,
                                                          const RunLockOptions& options);
  ~RunLock();  // removes the lock, if it is still this one

  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Reads the lock. Fails with kAborted (ExitCode::kCheckpoint) if it is not this one any more, now
  // or at an earlier look; the owner must then write nothing more. Any thread.
  absl::Status Check();

  // Adds a line and checks, as the heartbeat does. A beat that cannot be written is a missed one.
  absl::Status Beat();

 private:
  RunLock(FileSystem& fs, std::string path, std::unique_ptr<AppendFile> file, RunOwner owner)
      : fs_(fs), path_(std::move(path)), owner_(std::move(owner)), file_(std::move(file)) {}
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
