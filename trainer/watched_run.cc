#include "trainer/watched_run.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/match.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/watched_file_system.h"
#include "parallel/comm/agreement.h"
#include "parallel/exec/watchdog.h"

namespace deepnet {
namespace {

constexpr char kLockFile[] = "/lock";  // trainer/checkpoint/run_lock.h

}  // namespace

void EndJobUnlessAgreed(Communicator& world, const absl::Status& status) {
  if (status.ok() || world.size() == 1 || IsAgreed(status)) return;
  if (!absl::IsAborted(status)) {
    std::fprintf(stderr, "[%d/%d] error: %s\n", world.rank(), world.size(),
                 std::string(status.message()).c_str());
  }
  world.Abort(static_cast<int>(GetExitCode(status)));
}

std::function<void(absl::Duration)> BeatingWait(std::function<void(absl::Duration)> wait,
                                                const ParallelSpec& parallel, Pulse& pulse) {
  const absl::Duration slice = MakeTimeLimits(parallel, /*first_step=*/true).message / 4;
  return [wait = std::move(wait), slice, &pulse](absl::Duration time) {
    for (; time > absl::ZeroDuration(); time -= slice) {
      wait(std::min(time, slice));
      pulse.Beat();
    }
  };
}

absl::Status RunWatched(const ParallelSpec& parallel, Communicator& world, FileSystem& files,
                        Vigil::OnStuck on_stuck,
                        const std::function<absl::Status(WatchedSurroundings)>& run) {
  Pulse pulse;
  pulse.Begin("begin of the run");
  if (world.size() == 1) return run({.world = world, .files = files, .pulse = pulse});
  if (!on_stuck) {
    on_stuck = [&world](const absl::Status& status) { EndJobUnlessAgreed(world, status); };
  }
  PulseCommunicator beating(world, pulse);
  WatchedFileSystem watched(files, [&pulse](const std::string& path) {
    if (!absl::EndsWith(path, kLockFile)) pulse.Beat();
  });
  const absl::Duration longest = MakeTimeLimits(parallel, /*first_step=*/true).message;
  ASSIGN_OR_RETURN(const auto vigil, Vigil::Keep(world, pulse, longest, std::move(on_stuck)));
  absl::Status status = run({.world = beating, .files = watched, .pulse = pulse});
  if (status.ok() || IsAgreed(status)) {
    status.Update(vigil->End());
  } else {
    EndJobUnlessAgreed(world, status);
  }
  return status;
}

}  // namespace deepnet
