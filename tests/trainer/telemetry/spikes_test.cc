#include "trainer/telemetry/spikes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deepnet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

SpikeSpec Spec() {
  SpikeSpec spec;
  spec.set_action(SpikeSpec::ROLL_BACK);
  spec.set_deviations(6);
  spec.set_window_steps(8);
  spec.set_steps_before(10);
  spec.set_steps_after(5);
  return spec;
}

SpikeWindow Window(int steps) {
  SpikeWindow window;
  for (int i = 0; i < steps; ++i) {
    RememberStep(Spec(), 3.0 + 0.1 * (i % 3), 1.0 + 0.2 * (i % 2), window);
  }
  return window;
}

std::vector<double> Normal(size_t count, double mean, double deviation, double slope = 0.0) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal(mean, deviation);
  std::vector<double> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = normal(random) + slope * static_cast<double>(i);
  return values;
}

TEST(Band, IsThatOfTheNormalDistributionWhateverAFewOutliersSay) {
  std::vector<double> values = Normal(1001, 5.0, 0.5);
  // The deviation of 1,001 normal values is known to about 3.7 %.
  EXPECT_NEAR(BandLimit(values, 6, 0.01), 5.0 + 6 * 0.5, 0.3);
  std::fill(values.begin(), values.begin() + 20, 1e6);
  EXPECT_NEAR(BandLimit(values, 6, 0.01), 5.0 + 6 * 0.5, 0.4);
}

TEST(Band, GoesAlongWithATrendUpwardAndStaysAtTheMedianOfOneDownward) {
  // Without the trend the deviation would be 1.4826 times a quarter of the 10 that values grow by.
  EXPECT_NEAR(BandLimit(Normal(1001, 5.0, 0.5, 0.01), 6, 0.01), 15.0 + 6 * 0.5, 0.4);
  EXPECT_NEAR(BandLimit(Normal(1001, 15.0, 0.5, -0.01), 6, 0.01), 10.0 + 6 * 0.5, 0.4);
}

TEST(Band, OfEqualValuesLeavesTheLeastDeviation) {
  EXPECT_DOUBLE_EQ(BandLimit(std::vector<double>(9, 2.0), 6, 0.02), 2.0 + 6 * 0.02);
  EXPECT_DOUBLE_EQ(BandLimit(std::vector<double>(1, 2.0), 6, 0.02), 2.0 + 6 * 0.02);
}

TEST(FindSpike, ComparesNormsByTheirRatios) {
  SpikeWindow window;
  SpikeSpec spec = Spec();
  spec.set_window_steps(512);
  const std::vector<double> logs = Normal(512, 0.0, 0.2, 0.0025);  // grow to 3.6 times
  for (const double log : logs) RememberStep(spec, 3.0, std::exp(log), window);
  const double expected = std::exp(1.28);
  EXPECT_FALSE(FindSpike(spec, window, 513, 3.0, expected * std::exp(4 * 0.2)));
  const auto spike = FindSpike(spec, window, 513, 3.0, expected * std::exp(8 * 0.2));
  ASSERT_TRUE(spike);
  EXPECT_NEAR(std::log(spike->gradient_norm_limit()), 1.28 + 6 * 0.2, 0.3);
  EXPECT_FALSE(FindSpike(spec, window, 513, 3.0, 0.0));
}

TEST(FindSpike, BeginsWhereHalfOfTheWindowIsThere) {
  for (const int window : {7, 8}) {
    SpikeSpec spec = Spec();
    spec.set_window_steps(window);
    EXPECT_FALSE(FindSpike(spec, Window(3), 4, 30.0, 1.0)) << window;
    EXPECT_TRUE(FindSpike(spec, Window(4), 5, 30.0, 1.0)) << window;
  }
}

TEST(FindSpike, FindsALossOrANormAboveItsBand) {
  const SpikeWindow window = Window(8);
  EXPECT_FALSE(FindSpike(Spec(), window, 9, 3.2, 1.2));
  const auto loss = FindSpike(Spec(), window, 9, 7.0, 1.0);
  ASSERT_TRUE(loss);
  EXPECT_EQ(loss->kind(), "spike");
  EXPECT_EQ(loss->step(), 9);
  EXPECT_EQ(loss->spike_step(), 9);
  EXPECT_EQ(loss->loss(), 7.0);
  EXPECT_EQ(loss->gradient_norm(), 1.0);
  EXPECT_EQ(loss->loss_limit(), BandLimit(std::span(window.losses().data(), 8), 6, 0.031));
  EXPECT_EQ(loss->action(), "ROLL_BACK");
  EXPECT_LT(loss->loss_limit(), 7.0);
  EXPECT_GT(loss->gradient_norm_limit(), 1.0);
  EXPECT_TRUE(FindSpike(Spec(), window, 9, 3.0, 9.0));
  EXPECT_FALSE(FindSpike(Spec(), window, 9, 0.1, 0.1)) << "a small loss is no spike";
}

TEST(FindSpike, TakesAHundredthOfTheMedianLossForADeviationAtLeast) {
  SpikeWindow window;
  for (int i = 0; i < 8; ++i) RememberStep(Spec(), 2.0, 1.0, window);
  EXPECT_FALSE(FindSpike(Spec(), window, 9, 2.11, 1.0));
  EXPECT_TRUE(FindSpike(Spec(), window, 9, 2.13, 1.0));
}

TEST(FindSpike, LeavesNonFiniteStepsToOthersAndWaitsForHalfAWindow) {
  EXPECT_FALSE(FindSpike(Spec(), Window(8), 9, kNaN, 1.0));
  EXPECT_FALSE(FindSpike(Spec(), Window(8), 9, 3.0, INFINITY));
  EXPECT_FALSE(FindSpike(Spec(), Window(3), 4, 100.0, 100.0));
  EXPECT_TRUE(FindSpike(Spec(), Window(4), 5, 100.0, 100.0));
}

TEST(Window, KeepsTheLatestFiniteSteps) {
  SpikeWindow window;
  for (int i = 0; i < 10; ++i) RememberStep(Spec(), i, 10 * i, window);
  RememberStep(Spec(), kNaN, 1.0, window);
  RememberStep(Spec(), 1.0, kNaN, window);
  EXPECT_THAT(window.losses(), ElementsAre(2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_THAT(window.gradient_norms(), ElementsAre(20, 30, 40, 50, 60, 70, 80, 90));
}

TEST(Ledger, SaysWhichStepsAreLeftOut) {
  Manifest state;
  SpikeRecord& spike = *state.add_spikes();
  spike.set_spike_step(40);
  EXPECT_FALSE(IsLeftOut(state, 40)) << "noticed, and no more";
  EXPECT_EQ(NumRollBacks(state), 0);
  LeaveOutAround(Spec(), spike);
  EXPECT_FALSE(IsLeftOut(state, 29));
  EXPECT_TRUE(IsLeftOut(state, 30));
  EXPECT_TRUE(IsLeftOut(state, 45));
  EXPECT_FALSE(IsLeftOut(state, 46));
  EXPECT_EQ(NumRollBacks(state), 1);
  spike.set_spike_step(4);
  LeaveOutAround(Spec(), spike);
  EXPECT_EQ(spike.first_left_out(), 1);
}

TEST(Ledger, IsReadable) {
  SpikeRecord spike = *FindSpike(Spec(), Window(8), 1234, 7.0, 1.0);
  EXPECT_THAT(SpikeLine(spike), HasSubstr("spike in step 1,234: loss 7.000 (at most "));
  EXPECT_THAT(SpikeLine(spike), HasSubstr("; skipped"));
  spike.set_action("WARN");
  EXPECT_THAT(SpikeLine(spike), HasSubstr("; trained on"));
  spike.set_step(1200);
  LeaveOutAround(Spec(), spike);
  EXPECT_THAT(SpikeLine(spike),
              HasSubstr("; went back to step 1,200, steps 1,224 to 1,239 are left out"));
}

}  // namespace
}  // namespace deepnet
