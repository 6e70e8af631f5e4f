#include "trainer/monitored_run.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"

#include "parallel/comm/agreement.h"

namespace deepnet {
MonitoredRun::MonitoredRun(const ParallelSpec& parallel, Communicator& world, FileSystem& files,
                           HeartbeatMonitor::OnStuck on_stuck)
    : world_(world),
      files_(files),
      longest_silence_(CommTimeout(parallel, /*first_step=*/true)),
      heartbeat_(world.rank()),
      monitored_world_(world, heartbeat_),
      monitored_files_(MakeObservedFileSystem(files, [this](const std::string& path) {
        // The beat of a run folder's lock (trainer/checkpoint/run_lock.h) has a thread of its own
        // and says nothing of the run.
        if (!absl::EndsWith(path, "/lock")) heartbeat_.Beat();
      })) {
  heartbeat_.Begin("begin of the run");
  if (world.size() == 1) return;
  if (!on_stuck) on_stuck = [&world](const absl::Status& status) { EndJob(world, status); };
  monitor_ = std::make_unique<HeartbeatMonitor>(heartbeat_, longest_silence_, std::move(on_stuck));
}

absl::Status MonitoredRun::Join() {
  return monitor_ != nullptr ? monitor_->Join(world_) : absl::OkStatus();
}

std::function<void(absl::Duration)> MonitoredRun::Beating(
    std::function<void(absl::Duration)> wait) {
  return [this, wait = std::move(wait)](absl::Duration time) {
    const absl::Duration slice = longest_silence_ / 4;
    for (; time > absl::ZeroDuration(); time -= slice) {
      wait(std::min(time, slice));
      heartbeat_.Beat();
    }
  };
}

absl::Status MonitoredRun::End(absl::Status status) {
  EndJobUnlessAgreed(world_, status);
  if (monitor_ != nullptr && (status.ok() || IsAgreed(status))) status.Update(monitor_->Leave());
  return status;
}

}  // namespace deepnet
