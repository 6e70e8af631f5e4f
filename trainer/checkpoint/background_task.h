// One piece of work beside the thread that asked for it.
//
// Example:
//   BackgroundTask task;
//   task.Start([&] { return WriteShard(...).status(); });
//   ...                                    // steps
//   if (task.Done()) RETURN_IF_ERROR(task.Wait());
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "absl/status/status.h"

namespace deepnet {

// All methods are for one thread. What the work changes may be read after Wait.
class BackgroundTask {
 public:
  BackgroundTask() = default;
  ~BackgroundTask();  // waits

  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  // Runs `work` in a thread of its own. Waits for the work before.
  void Start(std::function<absl::Status()> work);

  // Whether Wait would return at once.
  bool Done() const { return done_; }

  // What the last work returned; OK if there was none.
  absl::Status Wait();

 private:
  std::thread thread_;
  std::atomic<bool> done_{true};
  absl::Status status_;  // the thread's until it is joined
};

}  // namespace deepnet
