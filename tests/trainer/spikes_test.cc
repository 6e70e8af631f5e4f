#include "trainer/spikes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
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

TEST(Band, IsThatOfTheNormalDistributionWhateverAFewOutliersSay) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal(5.0, 0.5);
  std::vector<double> values(2001);
  std::generate(values.begin(), values.end(), [&] { return normal(random); });
  // The deviation of 2,001 normal values is known to about 2.6 %.
  EXPECT_NEAR(BandLimit(values, 6), 5.0 + 6 * 0.5, 0.25);
  std::fill(values.begin(), values.begin() + 40, 1e6);
  EXPECT_NEAR(BandLimit(values, 6), 5.0 + 6 * 0.5, 0.35);
}

TEST(Band, OfEqualValuesLeavesOnePercentADeviation) {
  EXPECT_DOUBLE_EQ(BandLimit(std::vector<double>(9, 2.0), 6), 2.0 + 6 * 0.02);
}

TEST(FindSpike, FindsALossOrANormAboveItsBand) {
  const SpikeWindow window = Window(8);
  EXPECT_FALSE(FindSpike(Spec(), window, 9, 3.2, 1.2));
  const auto loss = FindSpike(Spec(), window, 9, 7.0, 1.0);
  ASSERT_TRUE(loss);
  EXPECT_EQ(loss->spike_step(), 9);
  EXPECT_EQ(loss->action(), "ROLL_BACK");
  EXPECT_LT(loss->loss_limit(), 7.0);
  EXPECT_GT(loss->gradient_norm_limit(), 1.0);
  EXPECT_TRUE(FindSpike(Spec(), window, 9, 3.0, 9.0));
  EXPECT_FALSE(FindSpike(Spec(), window, 9, 0.1, 0.1)) << "a small loss is no spike";
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
