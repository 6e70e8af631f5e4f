#include "trainer/telemetry/intervals.h"

#include <cstdint>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deepnet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Intervals, OfCheckpointsAndOfValidationsAreApart) {
  TrainSpec train;
  train.set_checkpoint_every_steps(1);
  train.set_checkpoint_every_tokens(2);
  train.set_checkpoint_every_epochs(3);
  train.set_checkpoint_every_minutes(4);
  train.set_validate_every_steps(5);
  train.set_validate_every_tokens(6);
  train.set_validate_every_epochs(7);
  train.set_validate_every_minutes(8);
  const auto fields = [](const Interval& it) {
    return std::tuple(it.steps, it.tokens, it.epochs, it.minutes);
  };
  EXPECT_EQ(fields(CheckpointInterval(train)), std::tuple(1, 2, 3.0, 4.0));
  EXPECT_EQ(fields(ValidationInterval(train)), std::tuple(5, 6, 7.0, 8.0));
}

// Returns the steps, of those with `tokens` target tokens each, after which `interval` is due.
std::vector<int64_t> DueSteps(const Interval& interval, const std::vector<int64_t>& tokens,
                              double steps_per_epoch = 4.0) {
  std::vector<int64_t> due;
  RunPosition position{.steps_per_epoch = steps_per_epoch};
  for (const int64_t step_tokens : tokens) {
    ++position.step;
    position.step_tokens = step_tokens;
    position.target_tokens += step_tokens;
    if (IsDue(interval, position)) due.push_back(position.step);
  }
  return due;
}

TEST(IsDue, IsNeverTrueByDefault) {
  EXPECT_THAT(DueSteps({}, {10, 10, 10}), IsEmpty());
  EXPECT_THAT(DueSteps({.steps = -1}, {10, 10, 10}), IsEmpty());
}

TEST(IsDue, OnceForEachMultipleOfTokensThatAStepReachesOrPasses) {
  EXPECT_THAT(DueSteps({.tokens = 100}, {60, 40, 60, 60, 250, 1}), ElementsAre(2, 4, 5));
  EXPECT_THAT(DueSteps({.tokens = 100}, {100, 0, 0, 99}), ElementsAre(1))
      << "a step that is left out has no tokens";
}

TEST(IsDue, AtTheEndsOfWholeAndPartialEpochs) {
  EXPECT_THAT(DueSteps({.epochs = 1}, std::vector<int64_t>(12, 1)), ElementsAre(4, 8, 12));
  EXPECT_THAT(DueSteps({.epochs = 0.5}, std::vector<int64_t>(6, 1)), ElementsAre(2, 4, 6));
  EXPECT_THAT(DueSteps({.epochs = 1}, std::vector<int64_t>(8, 1), 2.5), ElementsAre(3, 5, 8));
  EXPECT_THAT(DueSteps({.epochs = 1}, std::vector<int64_t>(3, 1), 0.3), ElementsAre(1, 2, 3));
}

TEST(IsDue, WhicheverComesFirst) {
  EXPECT_THAT(DueSteps({.steps = 5, .tokens = 30, .epochs = 1.5}, std::vector<int64_t>(9, 10)),
              ElementsAre(3, 5, 6, 9));
  EXPECT_FALSE(IsDue({.minutes = 2}, {.step = 1, .seconds = 119}));
  EXPECT_TRUE(IsDue({.minutes = 2}, {.step = 1, .seconds = 120}));
}

// The obvious twin: takes steps until one is due.
double SimulatedSeconds(const Interval& interval, RunPosition position, const Pace& pace) {
  for (int steps = 1; steps <= 1000; ++steps) {
    ++position.step;
    position.step_tokens = static_cast<int64_t>(pace.tokens_per_step);
    position.target_tokens += position.step_tokens;
    position.seconds += pace.seconds_per_step;
    if (IsDue(interval, position)) return steps * pace.seconds_per_step;
  }
  return -1.0;
}

TEST(SecondsUntilDue, IsThatOfTakingTheSteps) {
  const Pace pace{.seconds_per_step = 0.5, .tokens_per_step = 30};
  for (const Interval& interval :
       {Interval{}, Interval{.steps = -1}, Interval{.steps = 7}, Interval{.tokens = 100},
        Interval{.tokens = 10}, Interval{.epochs = 1.5}, Interval{.epochs = 0.1},
        Interval{.minutes = 0.125},
        Interval{.steps = 9, .tokens = 200, .epochs = 2, .minutes = 1}}) {
    RunPosition position{.steps_per_epoch = 4.5};
    for (int step = 0; step < 40; ++step) {
      EXPECT_EQ(SecondsUntilDue(interval, position, pace),
                SimulatedSeconds(interval, position, pace))
          << "after step " << step;
      ++position.step;
      position.target_tokens += 30;
      position.seconds = position.seconds > 10 ? 0.0 : position.seconds + 0.5;
    }
  }
}

TEST(SecondsUntilDue, IsNotKnownBeforeAPaceIs) {
  EXPECT_LT(SecondsUntilDue({.steps = 7}, {.step = 1}, {}), 0.0);
  EXPECT_LT(SecondsUntilDue({.tokens = 7}, {.step = 1}, {.seconds_per_step = 1}), 0.0);
}

}  // namespace
}  // namespace deepnet
