// The liveness of one run: its ranks watch over each other from its first call to its end.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "parallel/base/file_system.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/heartbeat.h"
#include "proto/plan.pb.h"

namespace deepnet {

// A run's communicator and file system, whose calls beat, and the monitor of its ranks. A rank may
// be without a message, an action or an ended call of the file system for as long as a message of a
// first step may take (CommTimeout). A rank alone is not watched.
class MonitoredRun {
 public:
  // `world` and `files` outlive this. `on_stuck`, see heartbeat.h; empty: EndJob.
  MonitoredRun(const ParallelSpec& parallel, Communicator& world, FileSystem& files,
               HeartbeatMonitor::OnStuck on_stuck);

  // Collective: from now on ranks watch over each other.
  absl::Status Join();

  Communicator& world() { return monitor_ != nullptr ? monitored_world_ : world_; }
  FileSystem& files() { return monitor_ != nullptr ? *monitored_files_ : files_; }
  Heartbeat& heartbeat() { return heartbeat_; }

  // Returns `wait` cut into slices that beat, none longer than a rank may be silent: for a rank
  // that waits for no other rank of its job but, for example, for another run's lock.
  std::function<void(absl::Duration)> Beating(std::function<void(absl::Duration)> wait);

  // Ends the watch with the outcome of the run: nothing that this rank does afterwards can be taken
  // for a hang. Collective where `status` is OK or agreed on; any other error ends the job
  // (EndJobUnlessAgreed). Returns `status`, or what the monitor was told instead.
  absl::Status End(absl::Status status);

 private:
  Communicator& world_;
  FileSystem& files_;
  const absl::Duration longest_silence_;
  Heartbeat heartbeat_;
  MonitoredCommunicator monitored_world_;
  const std::unique_ptr<FileSystem> monitored_files_;
  std::unique_ptr<HeartbeatMonitor> monitor_;  // null: a rank alone
};

}  // namespace deepnet
