#include "parallel/base/clock.h"

#include <gtest/gtest.h>

namespace deepnet {
namespace {

TEST(SecondsNow, RunsForwardAndDoesNotStandStill) {
  const double start = SecondsNow();
  double now = start;
  while (now == start) {  // ends with the next tick
    const double next = SecondsNow();
    ASSERT_GE(next, now);
    now = next;
  }
  EXPECT_LT(now - start, 60.0);  // seconds, not ticks
}

}  // namespace
}  // namespace deepnet
