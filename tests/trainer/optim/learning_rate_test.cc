#include "trainer/optim/learning_rate.h"

#include <utility>

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
  for (const LearningRateSchedule schedule : {INVERSE_SQRT, COSINE, CONSTANT, WSD}) {
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

// The slow twin goes from step to step: up, level, down by equal amounts.
TEST(LearningRate, WsdRisesStaysAndFallsInALineToTheFinalRate) {
  OptimSpec optim = Spec(WSD);
  optim.set_wsd_decay_steps(3000);
  double rate = 1e-7;
  for (int64_t update = 1; update <= 13000; ++update) {
    if (update <= 4000) rate += (5e-4 - 1e-7) / 4000;
    if (update > 9000 && update <= 12000) rate -= (5e-4 - 1e-5) / 3000;
    ASSERT_NEAR(LearningRate(optim, update), rate, 1e-12) << update;  // 12000 rounded sums
  }
  EXPECT_EQ(LearningRate(optim, 9000), 5e-4);
  EXPECT_EQ(LearningRate(optim, 12000), 1e-5);
}

// So that a run can be taken further from a checkpoint of before its decay.
TEST(LearningRate, WsdDoesNotKnowItsEndBeforeTheDecay) {
  OptimSpec optim = Spec(WSD), longer = Spec(WSD);
  optim.set_wsd_decay_steps(3000);
  longer.set_wsd_decay_steps(3000);
  longer.set_decay_steps(50000);
  for (int64_t update = 1; update <= 9000; ++update) {
    ASSERT_EQ(LearningRate(optim, update), LearningRate(longer, update)) << update;
  }
  EXPECT_LT(LearningRate(optim, 9001), LearningRate(longer, 9001));
}

DataSpec Batch(int microbatches, int tokens) {
  DataSpec data;
  data.set_global_microbatches(microbatches);
  data.mutable_microbatch()->set_max_target_tokens(tokens);
  return data;
}

// The curve over tokens is that of the reference, times the factor: update u of a batch k times as
// large has seen what the reference has in k u updates.
TEST(ScaledToBatch, GivesTheRatesOfTheReferenceBatchAtEqualTokensTimesTheFactor) {
  OptimSpec optim = Spec(INVERSE_SQRT);
  optim.set_reference_batch_tokens(4000);
  const DataSpec data = Batch(8, 2000);  // k = 4
  EXPECT_EQ(BatchScale(optim, data), 4.0);
  for (const auto& [scaling, factor] : {std::pair(LINEAR, 4.0), std::pair(SQUARE_ROOT, 2.0)}) {
    optim.set_rate_scaling(scaling);
    const OptimSpec scaled = ScaledToBatch(optim, data);
    EXPECT_EQ(scaled.warmup_steps(), 1000);
    for (int64_t update = 1; update <= 5000; ++update) {
      const double reference = factor * LearningRate(optim, 4 * update);
      ASSERT_NEAR(LearningRate(scaled, update), reference, 1e-14 * reference + 1e-18) << update;
    }
    EXPECT_EQ(BatchScale(scaled, data), 1.0) << "rates would be scaled again";
  }
}

TEST(ScaledToBatch, ScalesEveryRateAndKeepsAWarmUpOfAtLeastOneStep) {
  OptimSpec optim = Spec(COSINE);
  optim.set_reference_batch_tokens(1000);
  const OptimSpec small = ScaledToBatch(optim, Batch(1, 500));
  EXPECT_DOUBLE_EQ(small.learning_rate(), 2.5e-4);
  EXPECT_DOUBLE_EQ(small.initial_learning_rate(), 0.5e-7);
  EXPECT_DOUBLE_EQ(small.final_learning_rate(), 0.5e-5);
  EXPECT_EQ(small.warmup_steps(), 8000);
  EXPECT_EQ(small.decay_steps(), 12000);
  EXPECT_EQ(ScaledToBatch(optim, Batch(1, 1500)).warmup_steps(), 2667);
  EXPECT_EQ(ScaledToBatch(optim, Batch(10'000, 1000)).warmup_steps(), 1);
  optim.set_warmup_steps(0);
  EXPECT_EQ(ScaledToBatch(optim, Batch(1, 500)).warmup_steps(), 0);
}

TEST(ScaledToBatch, WithoutAReferenceNothingChangesAndNothingIsSaid) {
  const OptimSpec optim = Spec(COSINE);
  EXPECT_EQ(ScaledToBatch(optim, Batch(8, 500)).SerializeAsString(), optim.SerializeAsString());
  EXPECT_EQ(BatchScaleText(optim, Batch(8, 500)), "");
  OptimSpec scaled = optim;
  scaled.set_reference_batch_tokens(1000);
  EXPECT_EQ(BatchScaleText(scaled, Batch(8, 500)),
            "a step has up to 4000 target tokens, k = 4 times optim.reference_batch_tokens: rates "
            "times 4 (LINEAR), warm-up of 1000 steps");
}

TEST(LearningRate, WithoutWarmUpStartsAtTheRate) {
  for (const LearningRateSchedule schedule : {INVERSE_SQRT, COSINE, CONSTANT, WSD}) {
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
