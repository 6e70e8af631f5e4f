#include "trainer/stop_requests.h"

#include "parallel/base/clock.h"

namespace deepnet {
namespace {

constexpr double kLeavingSeconds = 2.0;  // ranks that end, mpirun that notices

}  // namespace

int StopRequests::Take() {
  int taken = bits_ != nullptr ? bits_->exchange(0) : 0;
  stopping_ = stopping_ || (taken & kStopRequest) != 0 || TimeIsUp();
  return stopping_ ? taken | kStopRequest : taken;
}

bool StopRequests::IsStopping() const {
  return stopping_ || TimeIsUp() || (bits_ != nullptr && (*bits_ & kStopRequest) != 0);
}

void StopRequests::Expect(double step_seconds, double save_seconds) {
  lead_seconds_ = 2.0 * step_seconds + 2.0 * save_seconds + kLeavingSeconds;
}

bool StopRequests::TimeIsUp() const { return SecondsNow() + lead_seconds_ >= deadline_; }

}  // namespace deepnet
