#include "trainer/stop_requests.h"

#include <algorithm>

#include "parallel/base/clock.h"

namespace deepnet {
namespace {

constexpr double kLeavingSeconds = 2.0;  // ranks that end, mpirun that notices

}  // namespace

int StopRequests::Poll() {
  const int polled = bits_ != nullptr ? bits_->exchange(0) : 0;
  stopping_ = stopping_ || (polled & kStopRequest) != 0 || TimeIsUp();
  return stopping_ ? polled | kStopRequest : polled;
}

bool StopRequests::IsStopping() const {
  return stopping_ || TimeIsUp() || (bits_ != nullptr && (*bits_ & kStopRequest) != 0);
}

void StopRequests::Expect(double step_seconds, double save_seconds) {
  longest_step_seconds_ = std::max(longest_step_seconds_, step_seconds);
  lead_seconds_ = 2.0 * longest_step_seconds_ + 2.0 * save_seconds + kLeavingSeconds;
}

bool StopRequests::TimeIsUp() const { return SecondsNow() + lead_seconds_ >= deadline_; }

}  // namespace deepnet
