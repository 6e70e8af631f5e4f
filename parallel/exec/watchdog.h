// Ends a process whose main thread makes no progress: the last line of defence, for what no
// communicator's own limit covers (a collective inside a library, a deadlock, a stopped disk).
//
// Example:
//   Watchdog watchdog({.on_stuck = EndProcess});
//   watchdog.Begin("step 12: sum of gradients", absl::Seconds(315));
//   ...                     // still here after 315 s: EndProcess("step 12: sum of gradients ...")
//   watchdog.End();
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "proto/plan.pb.h"

namespace deepnet {

// How long things may take before somebody must be dead.
struct TimeLimits {
  absl::Duration message = absl::Seconds(300);  // longest wait for one message or collective
  // What an action may take beyond that before the watchdog ends the process: time for a rank that
  // noticed first to say more than the watchdog could.
  absl::Duration grace = absl::Seconds(15);

  friend bool operator==(const TimeLimits&, const TimeLimits&) = default;
};

// parallel.step_timeout_seconds, 300 if not set. The first step of a start has four times as long:
// memory is touched for the first time, connections are made, other hosts still read their corpus.
TimeLimits MakeTimeLimits(const ParallelSpec& parallel, bool first_step);

// Sleeps in a thread of its own; wakes up at limits only. All methods are for one thread.
class Watchdog {
 public:
  // Called once, from the watchdog's thread, with DeadlineExceeded and ExitCode::kHang: "<what>: no
  // progress for 315 s". Returning leaves the watchdog asleep for good.
  using OnStuck = std::function<void(const absl::Status& status)>;

  explicit Watchdog(OnStuck on_stuck);
  ~Watchdog();  // waits for an on_stuck that runs

  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // `what` is under way from now on, in place of what was, and may take `limit` (> 0).
  void Begin(std::string what, absl::Duration limit);
  // Nothing is under way: no limit.
  void End();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// An OnStuck for programs: prints "error: ..." to stderr and ends the process at once with the
// status's exit code, without destructors, which might wait for what is stuck.
[[noreturn]] void EndProcess(const absl::Status& status);

}  // namespace deepnet
