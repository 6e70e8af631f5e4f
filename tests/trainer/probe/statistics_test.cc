#include "trainer/probe/statistics.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace deepnet {
namespace {

constexpr double kRounding = 1e-9;

TEST(Statistics, SpreadLeavesOutWhatIsNoNumber) {
  const Spread spread = MeanAndSpread(std::vector<double>{1.0, 2.0, 6.0, std::nan("")});
  EXPECT_EQ(spread.count, 3);
  EXPECT_DOUBLE_EQ(spread.mean, 3.0);
  EXPECT_DOUBLE_EQ(spread.low, 1.0);
  EXPECT_DOUBLE_EQ(spread.high, 6.0);
  EXPECT_NEAR(spread.deviation, std::sqrt(7.0), kRounding);
}

TEST(Statistics, OneValueHasNoDeviation) {
  EXPECT_EQ(MeanAndSpread(std::vector<double>{4.0}).deviation, 0.0);
  EXPECT_EQ(MeanAndSpread({}).count, 0);
}

TEST(Statistics, FitOfAnExactLawIsTheLaw) {
  std::vector<double> x = {12, 20, 100, 200, 1000}, y;
  for (const double depth : x) y.push_back(3.66 * std::log10(depth) + 21.9);
  const auto fit = FitLogarithm(x, y);
  ASSERT_TRUE(fit.has_value());
  EXPECT_NEAR(fit->slope, 3.66, kRounding);
  EXPECT_NEAR(fit->offset, 21.9, kRounding);
  EXPECT_NEAR(fit->slope_error, 0.0, 1e-6);
}

// The textbook formulas, with centred sums written out for three points u = 0, 1, 2; v = 0, 1, 3.
TEST(Statistics, ErrorsOfAFitAreThoseOfTheTextbook) {
  const auto fit =
      FitLogarithm(std::vector<double>{1, 10, 100}, std::vector<double>{0.0, 1.0, 3.0});
  ASSERT_TRUE(fit.has_value());
  EXPECT_NEAR(fit->slope, 1.5, kRounding);
  EXPECT_NEAR(fit->offset, -1.0 / 6, kRounding);
  const double variance = (1.0 / 36 + 4.0 / 36 + 1.0 / 36) / 1;  // residuals 1/6, -1/3, 1/6
  EXPECT_NEAR(fit->slope_error, std::sqrt(variance / 2), kRounding);
  EXPECT_NEAR(fit->offset_error, std::sqrt(variance * (1.0 / 3 + 1.0 / 2)), kRounding);
}

TEST(Statistics, NoFitThroughOneDepth) {
  EXPECT_FALSE(FitLogarithm(std::vector<double>{10, 10}, std::vector<double>{1.0, 2.0}));
  EXPECT_FALSE(FitLogarithm(std::vector<double>{-1, 10}, std::vector<double>{1.0, 2.0}));
}

}  // namespace
}  // namespace deepnet
