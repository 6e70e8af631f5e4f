// Requests to a run to save or to stop, by signals and by the clock.
#pragma once

#include <algorithm>
#include <atomic>
#include <limits>

#include "parallel/base/clock.h"

namespace deepnet {

// Bits of a request. Handlers of signals add bits; the run takes them.
inline constexpr int kStopRequest = 1;  // save and end with ExitCode::kSavedRunAgain
inline constexpr int kSaveRequest = 2;  // save and go on

inline constexpr double kNoDeadline = std::numeric_limits<double>::infinity();

// The requests to this rank. Ranks tell each other at the ends of steps. In between, something that
// takes long asks IsStopping whether to go on.
class StopRequests {
 public:
  // `bits` may be null. `deadline` is the SecondsNow() at which this process must have ended.
  StopRequests(std::atomic<int>* bits, double deadline) : bits_(bits), deadline_(deadline) {}

  // Returns the bits that came since the last call. A stop, once requested, is returned every time.
  int Poll() {
    const int polled = bits_ != nullptr ? bits_->exchange(0) : 0;
    stopping_ = stopping_ || (polled & kStopRequest) != 0 || TimeIsUp();
    return stopping_ ? polled | kStopRequest : polled;
  }

  // Returns whether a stop has been requested or time is up, polled or not.
  bool IsStopping() const {
    return stopping_ || TimeIsUp() || (bits_ != nullptr && (*bits_ & kStopRequest) != 0);
  }

  // Tells how long a step took and how long a save will take. The run stops before the deadline by
  // two of the longest steps so far, two saves (one may be under way) and some seconds.
  void Expect(double step_seconds, double save_seconds) {
    constexpr double kLeavingSeconds = 2.0;  // ranks that end, mpirun that notices
    longest_step_seconds_ = std::max(longest_step_seconds_, step_seconds);
    lead_seconds_ = 2.0 * longest_step_seconds_ + 2.0 * save_seconds + kLeavingSeconds;
  }

  // Returns whether the run stops because of the deadline.
  bool TimeIsUp() const { return SecondsNow() + lead_seconds_ >= deadline_; }

 private:
  std::atomic<int>* const bits_;
  const double deadline_;
  double longest_step_seconds_ = 0.0, lead_seconds_ = 0.0;
  bool stopping_ = false;
};

}  // namespace deepnet
