#include "trainer/stop_requests.h"

#include <atomic>

#include <gtest/gtest.h>

#include "parallel/base/clock.h"

namespace deepnet {
namespace {

TEST(StopRequests, AreTakenOnceButAStopComesAgain) {
  std::atomic<int> bits{kSaveRequest};
  StopRequests requests(&bits, kNoDeadline);
  EXPECT_FALSE(requests.IsStopping());
  EXPECT_EQ(requests.Poll(), kSaveRequest);
  EXPECT_EQ(requests.Poll(), 0);
  bits = kStopRequest;
  EXPECT_TRUE(requests.IsStopping());
  EXPECT_EQ(requests.Poll(), kStopRequest);
  EXPECT_EQ(requests.Poll(), kStopRequest);
  EXPECT_TRUE(requests.IsStopping());
}

// Two steps, two saves and two seconds before the deadline.
TEST(StopRequests, ByTheClockComeSoonerTheLongerStepsAndSavesTake) {
  const double deadline = SecondsNow() + 1000;
  StopRequests requests(nullptr, deadline);
  requests.Expect(/*step_seconds=*/100, /*save_seconds=*/390);  // 982 s before
  EXPECT_FALSE(requests.IsStopping());
  requests.Expect(/*step_seconds=*/110, /*save_seconds=*/390);  // 1,002 s
  EXPECT_TRUE(requests.IsStopping());
  requests.Expect(/*step_seconds=*/100, /*save_seconds=*/390);  // the longest step counts
  EXPECT_TRUE(requests.IsStopping());
  StopRequests saves(nullptr, deadline);
  saves.Expect(/*step_seconds=*/100, /*save_seconds=*/400);  // likewise
  EXPECT_TRUE(saves.IsStopping());
  EXPECT_EQ(requests.Poll(), kStopRequest);
  requests.Expect(0, 0);  // once decided it stays so
  EXPECT_EQ(requests.Poll(), kStopRequest);
}

}  // namespace
}  // namespace deepnet
