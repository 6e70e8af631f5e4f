// A mutex and a condition variable that Clang's analysis of thread safety (-Wthread-safety) knows:
// a field ABSL_GUARDED_BY(mutex_) that is used without the mutex is an error. They are the standard
// library's, which sanitizers understand.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

namespace deepnet {

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds `mutex` from here to the end of the scope.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_.Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits are for a condition, which is evaluated with the mutex held:
//   changed_.Wait(mutex_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_; });
class CondVar {
 public:
  void NotifyOne() { changed_.notify_one(); }
  void NotifyAll() { changed_.notify_all(); }

  template <typename Condition>
  void Wait(Mutex& mutex, Condition condition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    WaitFor(mutex, absl::InfiniteDuration(), condition);
  }

  // Returns the condition at the end: false only after `limit`.
  template <typename Condition>
  bool WaitFor(Mutex& mutex, absl::Duration limit, Condition condition)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    // A clock's time plus an infinite duration would overflow.
    const absl::Duration bounded = std::min(limit, absl::Hours(24 * 365));
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    const bool met = changed_.wait_for(lock, absl::ToChronoNanoseconds(bounded), condition);
    lock.release();
    return met;
  }

 private:
  std::condition_variable changed_;
};

}  // namespace deepnet
