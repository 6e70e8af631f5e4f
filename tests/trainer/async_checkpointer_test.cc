#include "trainer/async_checkpointer.h"

#include <limits>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/logging.h"
#include "parallel/comm/communicator.h"
#include "tests/support/tiny_model.h"
#include "tests/trainer/data/temp_folder.h"
#include "trainer/model/describe.h"
#include "trainer/rank_context.h"

namespace deepnet {
namespace {

using ::testing::ElementsAre;

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

RunSpec TinyRun() {
  RunSpec run;
  *run.mutable_model() = testing::TinySpec();
  *run.mutable_data()->mutable_microbatch() = testing::TinyCapacity();
  run.mutable_data()->set_global_microbatches(1);
  run.mutable_optim()->set_virtual_replicas(1);
  run.mutable_compute()->set_device("cpu");
  run.mutable_compute()->set_dtype(FLOAT32);
  run.mutable_compute()->set_matmul(NATIVE);
  run.mutable_compute()->set_threads_per_rank(1);
  run.mutable_train()->set_keep_checkpoints(100);
  return run;
}

TEST(CheckpointPolicy, MinutesCountFromTheLastSaveOn) {
  RunSpec run = TinyRun();
  run.mutable_train()->set_checkpoint_every_minutes(1);
  const Inventory whole = Describe(run.model(), run.data().microbatch());
  SelfCommunicator alone;
  const auto context = MakeRankContext(run, whole, LonePlan(whole, 1), alone);
  ASSERT_TRUE(context.ok()) << context.status();
  (*context)->model->parameters().Initialize(1);
  const auto fs = MakePosixFileSystem();
  const testing::TempFolder folder;
  std::ostringstream text;
  Logger log({.stream = &text});
  Manifest state;
  state.set_train_seconds(1000);  // of an earlier start
  std::vector<int64_t> saved;
  CheckpointPolicy policy(*fs, run.train(), state, **context, log,
                          {.folder = folder.path(),
                           .record = [&](const SaveRecord& it) { saved.push_back(it.step()); }});
  ASSERT_TRUE(policy.Open().ok());
  for (int step = 1; step <= 8; ++step) {  // of 25 s each
    state.set_step(step);
    state.set_train_seconds(state.train_seconds() + 25);
    ASSERT_TRUE(policy.SaveIfDue(0).ok());
    ASSERT_TRUE(policy.Finish().ok());
  }
  EXPECT_THAT(saved, ElementsAre(3, 6)) << text.str();
}

}  // namespace
}  // namespace deepnet
