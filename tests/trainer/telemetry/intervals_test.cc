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

void AddStep(int64_t tokens, double seconds, Manifest& state) {
  state.set_step(state.step() + 1);
  state.set_target_tokens(state.target_tokens() + tokens);
  state.set_train_seconds(state.train_seconds() + seconds);
}

// Returns the steps, of those with `tokens` target tokens each, after which `interval` is due.
std::vector<int64_t> DueSteps(const Interval& interval, const std::vector<int64_t>& tokens,
                              double steps_per_epoch = 4.0, double seconds = 0.0) {
  std::vector<int64_t> due;
  Manifest state;
  const IntervalClock clock(interval, state, steps_per_epoch);
  for (const int64_t step_tokens : tokens) {
    AddStep(step_tokens, seconds, state);
    if (clock.IsDue(step_tokens)) due.push_back(state.step());
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
  EXPECT_THAT(DueSteps({.minutes = 2}, {1}, 4.0, 119), IsEmpty());
  EXPECT_THAT(DueSteps({.minutes = 2}, {1}, 4.0, 120), ElementsAre(1));
}

// The obvious twin: takes steps until one is due. Leaves `state`, the clock's, as it was.
double SimulatedSeconds(const IntervalClock& clock, const Pace& pace, Manifest& state) {
  const Manifest before = state;
  const auto tokens = static_cast<int64_t>(pace.tokens_per_step);
  double seconds = -1.0;
  for (int steps = 1; steps <= 1000 && seconds < 0; ++steps) {
    AddStep(tokens, pace.seconds_per_step, state);
    if (clock.IsDue(tokens)) seconds = steps * pace.seconds_per_step;
  }
  state = before;
  return seconds;
}

TEST(SecondsUntilDue, IsThatOfTakingTheSteps) {
  const Pace pace{.seconds_per_step = 0.5, .tokens_per_step = 30};
  for (const Interval& interval :
       {Interval{}, Interval{.steps = -1}, Interval{.steps = 7}, Interval{.tokens = 100},
        Interval{.tokens = 10}, Interval{.epochs = 1.5}, Interval{.epochs = 0.1},
        Interval{.minutes = 0.125},
        Interval{.steps = 9, .tokens = 200, .epochs = 2, .minutes = 1}}) {
    Manifest state;
    IntervalClock clock(interval, state, 4.5);
    for (int step = 0; step < 40; ++step) {
      EXPECT_EQ(clock.SecondsUntilDue(pace), SimulatedSeconds(clock, pace, state))
          << "after step " << step;
      AddStep(30, 0.5, state);
      if (step % 21 == 20) clock.Restart();
    }
  }
}

TEST(SecondsUntilDue, IsNotKnownBeforeAPaceIs) {
  Manifest state;
  state.set_step(1);
  EXPECT_LT(IntervalClock({.steps = 7}, state, 0.0).SecondsUntilDue({}), 0.0);
  EXPECT_LT(IntervalClock({.tokens = 7}, state, 0.0).SecondsUntilDue({.seconds_per_step = 1}), 0.0);
}

}  // namespace
}  // namespace deepnet
