#include "trainer/validation_policy.h"

#include <limits>
#include <sstream>
#include <string>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/logging.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A run's state, and what it says is best.
class Scores {
 public:
  bool Add(int64_t step, const std::string& metric, double value, Better better) {
    state_.set_step(step);
    return UpdateBest(state_, metric, value, better);
  }
  // Step and value of the best; {-1, 0} before the first.
  std::tuple<int64_t, double> Best(const std::string& metric) const {
    for (const BestScore& best : state_.best()) {
      if (best.metric() == metric) return {best.step(), best.value()};
    }
    return {-1, 0.0};
  }
  Manifest& state() { return state_; }

 private:
  Manifest state_;
};

using Best = std::tuple<int64_t, double>;

TEST(UpdateBest, KeepsTheGreatestOrTheSmallestAndItsStep) {
  Scores scores;
  EXPECT_TRUE(scores.Add(1, "bleu", 20.0, Better::kGreater));
  EXPECT_FALSE(scores.Add(2, "bleu", 19.0, Better::kGreater));
  EXPECT_EQ(scores.Best("bleu"), Best(1, 20.0));
  EXPECT_TRUE(scores.Add(3, "bleu", 21.0, Better::kGreater));
  EXPECT_EQ(scores.Best("bleu"), Best(3, 21.0));

  EXPECT_TRUE(scores.Add(1, "nll", 4.0, Better::kSmaller));
  EXPECT_FALSE(scores.Add(2, "nll", 5.0, Better::kSmaller));
  EXPECT_EQ(scores.Best("nll"), Best(1, 4.0));
  EXPECT_TRUE(scores.Add(3, "nll", 3.0, Better::kSmaller));
  EXPECT_EQ(scores.Best("nll"), Best(3, 3.0));
  EXPECT_EQ(scores.Best("bleu"), Best(3, 21.0)) << "metrics are apart";
  EXPECT_EQ(scores.state().best_size(), 2);
}

TEST(UpdateBest, ATieKeepsTheEarlierStep) {
  for (const Better better : {Better::kGreater, Better::kSmaller}) {
    Scores scores;
    EXPECT_TRUE(scores.Add(1, "score", 2.0, better));
    EXPECT_FALSE(scores.Add(2, "score", 2.0, better));
    EXPECT_EQ(scores.Best("score"), Best(1, 2.0));
  }
}

TEST(UpdateBest, NotANumberIsNeverTheBest) {
  for (const Better better : {Better::kGreater, Better::kSmaller}) {
    Scores scores;
    EXPECT_FALSE(scores.Add(1, "score", kNan, better));
    EXPECT_EQ(scores.state().best_size(), 0);
    EXPECT_TRUE(scores.Add(2, "score", 2.0, better));
    EXPECT_FALSE(scores.Add(3, "score", kNan, better));
    EXPECT_EQ(scores.Best("score"), Best(2, 2.0));
    EXPECT_FALSE(scores.Add(4, "score", 2.0, better));
  }
}

// Checkpoints of earlier versions may say so.
TEST(UpdateBest, AnyNumberBeatsABestThatIsNotANumberOnce) {
  for (const Better better : {Better::kGreater, Better::kSmaller}) {
    const double worse = better == Better::kGreater ? -kInfinity : kInfinity;
    Scores scores;
    BestScore& stored = *scores.state().add_best();
    stored.set_metric("score");
    stored.set_value(kNan);
    EXPECT_TRUE(scores.Add(5, "score", worse, better));
    EXPECT_EQ(scores.Best("score"), Best(5, worse));
    EXPECT_FALSE(scores.Add(6, "score", worse, better));
    EXPECT_TRUE(scores.Add(7, "score", 2.0, better));
  }
}

TEST(ValidationPolicy, EndsARunThatHasNoBetterScoreForTooLong) {
  TrainSpec train;
  train.set_patience(2);
  Manifest state;
  std::ostringstream text;
  Logger log({.stream = &text});
  ValidationPolicy policy(train, state, /*steps_per_epoch=*/1.0, log);
  const auto count = [&](int64_t step, double nll) {
    state.set_step(step);
    EvalRecord record;
    record.set_nll(nll);
    return policy.Count(record);
  };
  EXPECT_TRUE(count(1, 3.0).is_best);
  EXPECT_TRUE(policy.IsDone());
  EXPECT_EQ(state.best_size(), 1) << "there is no BLEU";
  EXPECT_TRUE(count(2, 3.5).changed);
  EXPECT_FALSE(policy.IsOutOfPatience());
  EXPECT_TRUE(count(3, 2.5).is_best);
  EXPECT_FALSE(count(4, 2.5).is_best);
  EXPECT_FALSE(policy.Count({}).changed) << "nothing was measured";
  EXPECT_FALSE(policy.IsOutOfPatience());
  EXPECT_EQ(text.str(), "");
  EXPECT_FALSE(count(5, 2.6).is_best);
  EXPECT_TRUE(policy.IsOutOfPatience());
  EXPECT_THAT(text.str(), HasSubstr("no better BLEU or nll in 2 validations in a row"));
}

TEST(ValidationPolicy, MinutesCountFromTheLastValidationOn) {
  TrainSpec train;
  train.set_validate_every_minutes(1);
  Manifest state;
  state.set_train_seconds(100);  // of an earlier start
  Logger log;
  ValidationPolicy policy(train, state, /*steps_per_epoch=*/1.0, log);
  const auto due = [&](double seconds) {
    state.set_train_seconds(seconds);
    return policy.IsDue(0);
  };
  EXPECT_FALSE(due(159));
  EXPECT_TRUE(due(165));
  policy.Done();
  EXPECT_FALSE(due(224));
  EXPECT_TRUE(due(225));
}

TEST(ValidationPolicy, AStepIsDoneUntilTheRunGoesOnOrBack) {
  const TrainSpec train;
  Manifest state;
  Logger log;
  ValidationPolicy policy(train, state, /*steps_per_epoch=*/1.0, log);
  EXPECT_FALSE(policy.IsDone());
  state.set_step(5);
  policy.Done();
  policy.GoBack();
  EXPECT_TRUE(policy.IsDone());
  state.set_step(4);
  policy.GoBack();
  state.set_step(5);
  EXPECT_FALSE(policy.IsDone()) << "it has other weights now";
}

}  // namespace
}  // namespace deepnet
