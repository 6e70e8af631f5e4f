#include "trainer/checkpoint/background_task.h"

#include <utility>

namespace deepnet {

BackgroundTask::~BackgroundTask() { Wait().IgnoreError(); }

void BackgroundTask::Start(std::function<absl::Status()> work) {
  Wait().IgnoreError();
  done_ = false;
  thread_ = std::thread([this, work = std::move(work)] {
    status_ = work();
    done_ = true;
  });
}

absl::Status BackgroundTask::Wait() {
  if (thread_.joinable()) thread_.join();
  return status_;
}

}  // namespace deepnet
