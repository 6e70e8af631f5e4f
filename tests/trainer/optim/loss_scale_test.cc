#include "trainer/optim/loss_scale.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;

OptimSpec Optim(double init, int64_t window) {
  OptimSpec optim;
  optim.set_fp16_init_scale(init);
  optim.set_fp16_scale_window(window);
  return optim;
}

// The scales after steps of which those marked by an x overflow.
std::vector<double> ScalesAfter(const OptimSpec& optim, const std::string& steps) {
  DynamicLossScale scale(optim, 1, {});
  std::vector<double> scales;
  for (const char step : steps) {
    EXPECT_TRUE(scale.Update(step == 'x').ok());
    scales.push_back(scale.scale());
  }
  return scales;
}

TEST(DynamicLossScale, DoublesAfterAWindowWithoutOverflow) {
  EXPECT_EQ(ScalesAfter(Optim(8, 3), "......."), (std::vector<double>{8, 8, 16, 16, 16, 32, 32}));
  EXPECT_EQ(ScalesAfter(Optim(8, 3), "..x..."), (std::vector<double>{8, 8, 4, 4, 4, 8}));
}

TEST(DynamicLossScale, KeepsTheStepsOfItsChanges) {
  DynamicLossScale scale(Optim(8, 3), 1, {});
  for (int step = 0; step < 3; ++step) ASSERT_TRUE(scale.Update(false).ok());
  EXPECT_EQ(scale.state().ShortDebugString(),
            "scale: 16 steps: 3 last_overflow: -1 last_change: 2");
  ASSERT_TRUE(scale.Update(true).ok());
  EXPECT_EQ(scale.state().ShortDebugString(), "scale: 8 steps: 4 last_overflow: 3 last_change: 3");
}

TEST(DynamicLossScale, HalvesWithEveryOverflow) {
  EXPECT_EQ(ScalesAfter(Optim(1024, 100), "xx.x"), (std::vector<double>{512, 256, 256, 128}));
}

TEST(DynamicLossScale, BearsAShareOfOverflows) {
  OptimSpec optim = Optim(8, 100);
  optim.set_fp16_scale_tolerance(0.4);
  EXPECT_EQ(ScalesAfter(optim, "...x..x.xx"), (std::vector<double>{8, 8, 8, 8, 8, 8, 8, 8, 8, 4}));
  // The share is that of the steps since then.
  EXPECT_EQ(ScalesAfter(optim, "...x..x.xx.....x").back(), 4);
  // A window begins anew with an overflow that is borne.
  optim.set_fp16_scale_window(4);
  EXPECT_EQ(ScalesAfter(optim, "..x...."), (std::vector<double>{8, 8, 8, 8, 8, 8, 16}));
}

TEST(DynamicLossScale, IsNotHalvedBelowTheThreshold) {
  OptimSpec optim = Optim(8, 100);
  optim.set_threshold_loss_scale(4);
  EXPECT_EQ(ScalesAfter(optim, "xxx"), (std::vector<double>{4, 4, 4}));
}

TEST(DynamicLossScale, EndsARunAtTheMinimum) {
  OptimSpec optim = Optim(8, 100);
  optim.set_min_loss_scale(2);
  DynamicLossScale scale(optim, 1, {});
  ASSERT_TRUE(scale.Update(true).ok());
  const absl::Status status = scale.Update(true);
  EXPECT_EQ(GetExitCode(status), ExitCode::kDiverged);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("minimum loss scale reached (optim.min_loss_scale: 2)"));
  EXPECT_EQ(scale.scale(), 4);
}

TEST(DynamicLossScale, GoesOnFromItsState) {
  const std::string steps = "..x....x..x...";
  const OptimSpec optim = Optim(64, 2);
  const std::vector<double> all = ScalesAfter(optim, steps);
  for (size_t cut = 0; cut < steps.size(); ++cut) {
    DynamicLossScale before(optim, 1, {});
    for (size_t i = 0; i < cut; ++i) ASSERT_TRUE(before.Update(steps[i] == 'x').ok());
    DynamicLossScale after(optim, 1, before.state());
    for (size_t i = cut; i < steps.size(); ++i) {
      ASSERT_TRUE(after.Update(steps[i] == 'x').ok());
      EXPECT_EQ(after.scale(), all[i]) << "cut before " << cut << ", after step " << i;
    }
  }
}

TEST(DynamicLossScale, HasFairseqsDefaults) {
  DynamicLossScale scale({}, 1 << 12, {});
  EXPECT_EQ(scale.scale(), 128);
  for (int step = 0; step < 4; ++step) ASSERT_TRUE(scale.Update(false).ok());
  EXPECT_EQ(scale.scale(), 256);
  absl::Status status;
  int overflows = 0;
  for (; status.ok() && overflows < 100; ++overflows) status = scale.Update(true);
  EXPECT_EQ(overflows, 22);  // 256 / 2^22 is the first that is not above 1e-4
}

}  // namespace
}  // namespace deepnet
