#include "parallel/base/statistics.h"

#include <gtest/gtest.h>

namespace deepnet {
namespace {

TEST(Median, IsTheMiddleAndOfAnEvenNumberTheUpperOrTheLowerOne) {
  EXPECT_EQ(Median({5.0, 1.0, 3.0}), 3.0);
  EXPECT_EQ(LowerMedian({5.0, 1.0, 3.0}), 3.0);
  EXPECT_EQ(Median({4.0, 1.0, 3.0, 2.0}), 3.0);
  EXPECT_EQ(LowerMedian({4.0, 1.0, 3.0, 2.0}), 2.0);
  EXPECT_EQ(Median({7.0}), 7.0);
  EXPECT_EQ(Median({}), 0.0);
}

}  // namespace
}  // namespace deepnet
