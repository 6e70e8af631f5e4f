#include "parallel/exec/watchdog.h"

#include <string>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/base/exit_code.h"

namespace deepnet {
namespace {

// What a watchdog said, once it has.
class Heard {
 public:
  Watchdog::OnStuck Listener() {
    return [this](const absl::Status& status) {
      status_ = status;
      said_.Notify();
    };
  }
  absl::Status Wait() {
    said_.WaitForNotification();
    return status_;
  }

 private:
  absl::Status status_;
  absl::Notification said_;
};

TEST(Watchdog, NamesWhatTakesTooLong) {
  Heard heard;
  Watchdog watchdog(heard.Listener());
  watchdog.Begin("rank 1, action 3F12", absl::Milliseconds(5));
  const absl::Status status = heard.Wait();
  EXPECT_EQ(status.message(), "rank 1, action 3F12: no progress for 5ms");
  EXPECT_EQ(GetExitCode(status), ExitCode::kHang);
}

TEST(Watchdog, ANewLimitThatEndsEarlierCounts) {
  Heard heard;
  Watchdog watchdog(heard.Listener());
  watchdog.Begin("first step", absl::Hours(1));
  watchdog.Begin("second step", absl::Milliseconds(5));
  EXPECT_THAT(std::string(heard.Wait().message()), ::testing::StartsWith("second step"));
}

// The limits of the first two are over long before the third's.
TEST(Watchdog, WhatEndedInTimeIsForgotten) {
  Heard heard;
  Watchdog watchdog(heard.Listener());
  watchdog.Begin("first", absl::Milliseconds(400));
  watchdog.Begin("second", absl::Milliseconds(500));
  watchdog.End();
  watchdog.Begin("third", absl::Milliseconds(600));
  EXPECT_THAT(std::string(heard.Wait().message()), ::testing::StartsWith("third"));
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
