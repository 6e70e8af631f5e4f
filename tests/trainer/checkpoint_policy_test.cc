#include "trainer/checkpoint_policy.h"

#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/comm/communicator.h"
#include "tests/support/tiny_model.h"
#include "tests/trainer/data/temp_folder.h"
#include "trainer/model/describe.h"
#include "trainer/rank_context.h"

namespace deepnet {
namespace {

using ::testing::ElementsAre;

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
  Manifest state;
  state.set_train_seconds(1000);  // of an earlier start
  std::vector<int64_t> saved;
  CheckpointPolicy policy(*fs, run.train(), state, **context,
                          {.saver = {.folder = folder.path()},
                           .record = [&](const SaveRecord& it) { saved.push_back(it.step()); }});
  ASSERT_TRUE(policy.Open().ok());
  for (int step = 1; step <= 8; ++step) {  // of 25 s each
    state.set_step(step);
    state.set_train_seconds(state.train_seconds() + 25);
    ASSERT_TRUE(policy.SaveIfDue(0).ok());
    ASSERT_TRUE(policy.Finish().ok());
  }
  EXPECT_THAT(saved, ElementsAre(3, 6));
}

TEST(CheckpointPolicy, SkippedStepsInARowAreOneEntryOfTheLedger) {
  const RunSpec run = TinyRun();
  const Inventory whole = Describe(run.model(), run.data().microbatch());
  SelfCommunicator alone;
  const auto context = MakeRankContext(run, whole, LonePlan(whole, 1), alone);
  ASSERT_TRUE(context.ok()) << context.status();
  const auto fs = MakePosixFileSystem();
  const testing::TempFolder folder;
  Manifest state;
  CheckpointPolicy policy(*fs, run.train(), state, **context, {.saver = {.folder = folder.path()}});
  for (int step = 1; step <= 7; ++step) {
    state.set_step(step);
    const bool skipped = step == 2 || step == 3 || step == 6;
    state.set_skipped_steps(state.skipped_steps() + (skipped ? 1 : 0));
    ASSERT_TRUE(policy.SaveIfDue(0).ok());
  }
  std::vector<std::pair<int64_t, int64_t>> skips;
  for (const SkippedSteps& run_of : state.skips()) {
    skips.emplace_back(run_of.first_step(), run_of.count());
  }
  EXPECT_THAT(skips, ElementsAre(std::pair(2, 2), std::pair(6, 1)));
}

}  // namespace
}  // namespace deepnet
