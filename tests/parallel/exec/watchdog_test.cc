#include "parallel/exec/watchdog.h"

#include <condition_variable>
#include <mutex>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/base/exit_code.h"

namespace deepnet {
namespace {

// What a watchdog said, once it has. Standard locks: the thread sanitizer sees through them.
class Heard {
 public:
  Watchdog::OnStuck Listener() {
    return [this](const absl::Status& status) {
      const std::lock_guard lock(mutex_);
      message_ = std::string(status.message());
      code_ = GetExitCode(status);
      said_.notify_one();
    };
  }
  // The message.
  std::string Wait() {
    std::unique_lock lock(mutex_);
    said_.wait(lock, [this] { return !message_.empty(); });
    return message_;
  }
  ExitCode code() const { return code_; }

 private:
  std::mutex mutex_;
  std::condition_variable said_;
  std::string message_;
  ExitCode code_ = ExitCode::kDone;
};

TEST(Watchdog, NamesWhatTakesTooLong) {
  Heard heard;
  Watchdog watchdog(heard.Listener());
  watchdog.Begin("rank 1, action 3F12", absl::Milliseconds(5));
  EXPECT_EQ(heard.Wait(), "rank 1, action 3F12: no progress for 5ms");
  EXPECT_EQ(heard.code(), ExitCode::kHang);
}

TEST(Watchdog, ANewLimitThatEndsEarlierCounts) {
  Heard heard;
  Watchdog watchdog(heard.Listener());
  watchdog.Begin("first step", absl::Hours(1));
  watchdog.Begin("second step", absl::Milliseconds(5));
  EXPECT_THAT(heard.Wait(), ::testing::StartsWith("second step"));
}

// The limits of the first two are over long before the third's.
TEST(Watchdog, WhatEndedInTimeIsForgotten) {
  Heard heard;
  Watchdog watchdog(heard.Listener());
  watchdog.Begin("first", absl::Milliseconds(400));
  watchdog.Begin("second", absl::Milliseconds(500));
  watchdog.End();
  watchdog.Begin("third", absl::Milliseconds(600));
  EXPECT_THAT(heard.Wait(), ::testing::StartsWith("third"));
}

TEST(Watchdog, GoesQuietlyWithALimitThatIsNotOver) {
  Watchdog watchdog([](const absl::Status& status) { ADD_FAILURE() << status; });
  watchdog.Begin("a long step", absl::Hours(1));
}

TEST(WatchdogDeathTest, EndProcessExitsWithTheCodeOfTheStatus) {
  const absl::Status status = WithExitCode(absl::DeadlineExceededError("stuck"), ExitCode::kHang);
  EXPECT_EXIT(EndProcess(status), ::testing::ExitedWithCode(8), "error: stuck");
}

TEST(TimeLimits, TheFirstStepHasFourTimesAsLong) {
  ParallelSpec parallel;
  EXPECT_EQ(MakeTimeLimits(parallel, false).message, absl::Seconds(300));
  EXPECT_EQ(MakeTimeLimits(parallel, true).message, absl::Seconds(1200));
  parallel.set_step_timeout_seconds(0.5);
  EXPECT_EQ(MakeTimeLimits(parallel, false).message, absl::Milliseconds(500));
}

}  // namespace
}  // namespace deepnet
