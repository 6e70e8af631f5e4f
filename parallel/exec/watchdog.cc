#include "parallel/exec/watchdog.h"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"

namespace deepnet {
namespace {

constexpr double kDefaultSeconds = 300.0;
constexpr int kFirstStepFactor = 4;

absl::Status Stuck(const std::string& what, absl::Duration limit) {
  return WithExitCode(absl::DeadlineExceededError(
                          absl::StrCat(what, ": no progress for ", absl::FormatDuration(limit))),
                      ExitCode::kHang);
}

}  // namespace

TimeLimits MakeTimeLimits(const ParallelSpec& parallel, bool first_step) {
  const double seconds =
      parallel.step_timeout_seconds() > 0 ? parallel.step_timeout_seconds() : kDefaultSeconds;
  TimeLimits limits;
  limits.message = absl::Seconds(seconds) * (first_step ? kFirstStepFactor : 1);
  return limits;
}

// The thread sleeps until the limit that stood when it fell asleep. A later one is found when it
// wakes, so that beginning an action wakes nobody unless its limit comes earlier. The steady clock:
// a wall clock that is put right must not end a job.
class Watchdog::Impl {
 public:
  explicit Impl(OnStuck on_stuck) : on_stuck_(std::move(on_stuck)), thread_([this] { Watch(); }) {}

  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      leaving_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  void Begin(std::string what, absl::Duration limit) {
    const std::lock_guard lock(mutex_);
    what_ = std::move(what);
    limit_ = limit;
    due_ = SecondsNow() + absl::ToDoubleSeconds(limit);
    if (due_ < asleep_until_) changed_.notify_one();
  }

  void End() {
    const std::lock_guard lock(mutex_);
    due_ = kNever;
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  void Watch() {
    std::unique_lock lock(mutex_);
    while (!leaving_) {
      const double left = due_ - SecondsNow();
      if (left <= 0) {
        const absl::Status status = Stuck(what_, limit_);
        lock.unlock();
        on_stuck_(status);
        return;
      }
      asleep_until_ = due_;
      if (due_ == kNever) {
        changed_.wait(lock);
      } else {
        changed_.wait_for(lock, std::chrono::duration<double>(left));
      }
    }
  }

  const OnStuck on_stuck_;
  std::mutex mutex_;  // guards all below but the thread
  std::condition_variable changed_;
  std::string what_;
  absl::Duration limit_;
  double due_ = kNever;  // of SecondsNow(), as is:
  double asleep_until_ = kNever;
  bool leaving_ = false;
  std::thread thread_;  // last: starts when all else is there
};

Watchdog::Watchdog(OnStuck on_stuck) : impl_(std::make_unique<Impl>(std::move(on_stuck))) {}
Watchdog::~Watchdog() = default;

void Watchdog::Begin(std::string what, absl::Duration limit) {
  impl_->Begin(std::move(what), limit);
}

void Watchdog::End() { impl_->End(); }

void EndProcess(const absl::Status& status) {
  std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  std::fflush(stderr);
  std::_Exit(static_cast<int>(GetExitCode(status)));
}

}  // namespace deepnet
