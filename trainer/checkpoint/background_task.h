// Runs one piece of work in the background of the thread that asked for it.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/base/host.h"

namespace deepnet {

// All methods are for one thread, which waits in the destructor. It may read what the work changes
// after Wait().
class BackgroundTask {
 public:
  BackgroundTask() = default;
  ~BackgroundTask() { Wait().IgnoreError(); }

  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  // Runs `work` in a thread of its own, once the work before it has ended; here and now where the
  // system gives no thread.
  void Start(std::function<absl::Status()> work) {
    Wait().IgnoreError();
    done_ = false;
    const auto run = [this, work = std::move(work)] {
      status_ = work();
      done_ = true;
    };
    absl::StatusOr<std::thread> thread = StartThread(run);
    if (!thread.ok()) return run();
    thread_ = *std::move(thread);
  }

  // True if Wait() would return at once.
  bool Done() const { return done_; }

  // Waits for the last work and returns its status; OK if there was none.
  absl::Status Wait() {
    if (thread_.joinable()) thread_.join();
    return status_;
  }

 private:
  std::thread thread_;
  std::atomic<bool> done_{true};
  absl::Status status_;  // belongs to thread_ until that is joined
};

}  // namespace deepnet
