#include "trainer/optim/learning_rate.h"

#include <gtest/gtest.h>

namespace deepnet {
namespace {

OptimSpec Spec(LearningRateSchedule schedule) {
  OptimSpec optim;
  optim.set_schedule(schedule);
  optim.set_learning_rate(5e-4);
  optim.set_initial_learning_rate(1e-7);
  optim.set_warmup_steps(4000);
  optim.set_decay_steps(12000);
  optim.set_final_learning_rate(1e-5);
  return optim;
}

// T-Fixup trains without warm-up, at the full rate from the start.
TEST(LearningRate, ShiftedInverseSqrtStartsAtItsRate) {
  OptimSpec optim = Spec(SHIFTED_INVERSE_SQRT);
  optim.set_warmup_steps(4000);
  EXPECT_DOUBLE_EQ(LearningRate(optim, 0), optim.learning_rate());
  EXPECT_DOUBLE_EQ(LearningRate(optim, 12000), optim.learning_rate() / 2);
}

TEST(LearningRate, WarmsUpInALineFromTheInitialRateWhateverFollows) {
  for (const LearningRateSchedule schedule : {INVERSE_SQRT, COSINE, CONSTANT}) {
    const OptimSpec optim = Spec(schedule);
    const double slope = (5e-4 - 1e-7) / 4000;
    for (const int64_t update : {1, 2, 1000, 3999}) {
      EXPECT_DOUBLE_EQ(LearningRate(optim, update), 1e-7 + slope * static_cast<double>(update));
    }
    EXPECT_EQ(LearningRate(optim, 4000), 5e-4);
  }
}

TEST(LearningRate, InverseSquareRootHalvesWithFourTimesTheUpdates) {
  const OptimSpec optim = Spec(INVERSE_SQRT);
  EXPECT_DOUBLE_EQ(LearningRate(optim, 16000), 2.5e-4);
  EXPECT_DOUBLE_EQ(LearningRate(optim, 64000), 1.25e-4);
  EXPECT_LT(LearningRate(optim, 4001), 5e-4);
}

TEST(LearningRate, CosineEndsAtTheFinalRateAndStaysThere) {
  const OptimSpec optim = Spec(COSINE);
  EXPECT_DOUBLE_EQ(LearningRate(optim, 8000), (5e-4 + 1e-5) / 2);
  EXPECT_DOUBLE_EQ(LearningRate(optim, 12000), 1e-5);
  EXPECT_DOUBLE_EQ(LearningRate(optim, 1'000'000), 1e-5);
  EXPECT_GT(LearningRate(optim, 11999), 1e-5);
}

TEST(LearningRate, ConstantIsTheRateAfterTheWarmUp) {
  const OptimSpec optim = Spec(CONSTANT);
  EXPECT_EQ(LearningRate(optim, 4001), 5e-4);
  EXPECT_EQ(LearningRate(optim, 1'000'000'000), 5e-4);
}

TEST(LearningRate, WithoutWarmUpStartsAtTheRate) {
  for (const LearningRateSchedule schedule : {INVERSE_SQRT, COSINE, CONSTANT}) {
    OptimSpec optim = Spec(schedule);
    optim.set_warmup_steps(0);
    EXPECT_NEAR(LearningRate(optim, 1), 5e-4, 1e-10) << LearningRateSchedule_Name(schedule);
  }
  OptimSpec optim = Spec(INVERSE_SQRT);
  optim.set_warmup_steps(0);
  EXPECT_DOUBLE_EQ(LearningRate(optim, 4), 2.5e-4);
}

}  // namespace
}  // namespace deepnet
