#include "trainer/telemetry/stragglers.h"

#include <optional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deepnet {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Figures = std::vector<double>;

TEST(StragglerWatch, ComputesTheMeanOfTheStepsSinceTheLastOne) {
  StragglerWatch watch(/*stages=*/1);
  for (const double seconds : {2.0, 3.0, 1.0}) {
    for (int step = 1; step < kStragglerSteps; ++step) EXPECT_EQ(watch.Add(seconds), std::nullopt);
    EXPECT_EQ(watch.Add(seconds), seconds);
  }
}

TEST(StragglerWatch, NamesTheReplicaWhoseTimeIsBeyondTheRatio) {
  StragglerWatch watch(/*stages=*/1);
  auto found = watch.Look(Figures{0.40, 0.41, 0.40, 0.52});
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].record.kind(), "straggler");
  EXPECT_EQ(found[0].record.rank(), 3);
  EXPECT_DOUBLE_EQ(found[0].record.expected_seconds(), 0.40);
  found[0].record.set_host("b");
  EXPECT_THAT(StragglerLine(found[0].record),
              HasSubstr("rank 3 on b computes 0.520 s a step, 1.30 times as long"));
  EXPECT_THAT(watch.Look(Figures{0.40, 0.41, 0.40, 0.455}), IsEmpty());
}

TEST(StragglerWatch, OfTwoReplicasNamesTheSlowerOneOfOneRankNone) {
  const auto found = StragglerWatch(1).Look(Figures{0.4, 0.5});
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].record.rank(), 1);
  StragglerWatch alone(1);
  EXPECT_THAT(alone.Look(Figures{0.4}), IsEmpty());
  EXPECT_THAT(alone.Look(Figures{0.9}), IsEmpty());
  EXPECT_THAT(StragglerWatch(1).Look(Figures{0.4, 0.0}), IsEmpty()) << "not measured";
}

TEST(StragglerWatch, ComparesARankOnlyWithThoseOfItsStage) {
  StragglerWatch watch(/*stages=*/3);
  // Stages that take 1, 4 and 2 parts, in two replicas.
  EXPECT_THAT(watch.Look(Figures{0.1, 0.4, 0.2, 0.1, 0.4, 0.2}), IsEmpty());
  const auto found = watch.Look(Figures{0.1, 0.4, 0.2, 0.13, 0.4, 0.2});
  ASSERT_THAT(found, SizeIs(1)) << "the stage that has least to do";
  EXPECT_EQ(found[0].record.rank(), 3);
  EXPECT_DOUBLE_EQ(found[0].record.expected_seconds(), 0.1);
}

TEST(StragglerWatch, UnequalStagesOfOneReplicaAreNobodysFault) {
  StragglerWatch watch(/*stages=*/3);
  for (int i = 0; i < 3; ++i) EXPECT_THAT(watch.Look(Figures{0.1, 0.4, 0.2}), IsEmpty());
  EXPECT_THAT(watch.Look(Figures{0.15, 0.6, 0.3}), IsEmpty()) << "longer sentences";
}

TEST(StragglerWatch, NamesAStageOfOneReplicaThatBecomesSlow) {
  StragglerWatch watch(/*stages=*/3);
  EXPECT_THAT(watch.Look(Figures{0.2, 0.5, 0.3}), IsEmpty()) << "the first steps allocate";
  EXPECT_THAT(watch.Look(Figures{0.1, 0.4, 0.2}), IsEmpty());
  for (const bool is_new : {true, false}) {  // it stays one however long it is slow
    const auto found = watch.Look(Figures{0.1, 0.4, 0.26});
    ASSERT_THAT(found, SizeIs(1));
    EXPECT_EQ(found[0].record.rank(), 2);
    EXPECT_DOUBLE_EQ(found[0].record.expected_seconds(), 0.2);
    EXPECT_EQ(found[0].is_new, is_new);
  }
  EXPECT_THAT(watch.Look(Figures{0.1, 0.4, 0.2}), IsEmpty());
  EXPECT_TRUE(watch.Look(Figures{0.1, 0.4, 0.26})[0].is_new) << "once more";
  // The first rank, where the median rank takes 1.5 times its own.
  const auto first = watch.Look(Figures{0.2, 0.4, 0.3});
  ASSERT_THAT(first, SizeIs(1));
  EXPECT_EQ(first[0].record.rank(), 0);
  EXPECT_DOUBLE_EQ(first[0].record.expected_seconds(), 0.15);
}

}  // namespace
}  // namespace deepnet
