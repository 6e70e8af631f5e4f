#include "trainer/checkpoint_policy.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/communicator.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/run_ranks.h"
#include "tests/trainer/data/temp_folder.h"
#include "tests/trainer/tiny_run.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/kernels/aten.h"
#include "trainer/model/describe.h"
#include "trainer/rank_context.h"
#include "trainer/rank_snapshot.h"

namespace deepnet {
namespace {

using ::testing::ElementsAre;
using testing::TinyRun;

struct LoneRank {
  explicit LoneRank(const RunSpec& run) : whole(Describe(run.model(), run.data().microbatch())) {
    auto made = MakeRankContext(run, whole, LonePlan(whole, 1), world);
    DEEPNET_CHECK(made.ok()) << made.status().ToString();
    context = *std::move(made);
    context->model->parameters().Initialize(1);
  }

  SelfCommunicator world;
  const Inventory whole;
  std::unique_ptr<RankContext> context;
};

TEST(CheckpointPolicy, MinutesCountFromTheLastSaveOn) {
  RunSpec run = TinyRun();
  run.mutable_train()->set_checkpoint_every_minutes(1);
  const LoneRank rank(run);
  const auto fs = MakePosixFileSystem();
  const testing::TempFolder folder;
  Manifest state;
  state.set_train_seconds(1000);  // of an earlier start
  std::vector<int64_t> saved;
  CheckpointPolicy policy(*fs, run.train(), state, *rank.context,
                          {.saver = {.folder = folder.path()},
                           .record = [&](const SaveRecord& it) { saved.push_back(it.step()); }});
  ASSERT_TRUE(policy.saver().Open().ok());
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
  const LoneRank rank(run);
  const auto fs = MakePosixFileSystem();
  const testing::TempFolder folder;
  Manifest state;
  CheckpointPolicy policy(*fs, run.train(), state, *rank.context,
                          {.saver = {.folder = folder.path()}});
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

// At a save that is asked for, and where the run goes on after a stop.
TEST(CheckpointPolicy, TheLedgerOfASaveHasTheStepThatWasJustSkippedAndNoOther) {
  const RunSpec run = TinyRun();
  const LoneRank rank(run);
  testing::MemoryFileSystem fs;
  Manifest state;
  state.set_step(4);
  state.set_skipped_steps(2);
  CheckpointPolicy policy(fs, run.train(), state, *rank.context,
                          {.saver = {.folder = "run"}, .resumed = true});
  ASSERT_TRUE(policy.saver().Open().ok());
  state.set_step(5);
  ASSERT_TRUE(policy.SaveAndWait(/*tidy=*/true).ok());
  EXPECT_EQ(ReadManifest(fs, "run/step-00000005")->skips_size(), 0);
  state.set_step(6);
  state.set_skipped_steps(3);
  ASSERT_TRUE(policy.SaveAndWait(/*tidy=*/true).ok());
  const auto manifest = ReadManifest(fs, "run/step-00000006");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  ASSERT_EQ(manifest->skips_size(), 1);
  EXPECT_EQ(manifest->skips(0).first_step(), 6);
  EXPECT_EQ(manifest->skips(0).count(), 1);
}

TEST(CheckpointPolicy, ASaveIsExpectedToTakeAsLongAsTheLongestSoFar) {
  const RunSpec run = TinyRun();
  const LoneRank rank(run);
  testing::MemoryFileSystem memory;
  Manifest state;
  const auto fs = MakeObservedFileSystem(memory, [&](const std::string& path) {
    if (state.step() == 1 && path.ends_with(".pb")) absl::SleepFor(absl::Milliseconds(50));
  });
  CheckpointPolicy policy(*fs, run.train(), state, *rank.context, {.saver = {.folder = "run"}});
  ASSERT_TRUE(policy.saver().Open().ok());
  EXPECT_EQ(policy.ExpectedSeconds(),
            static_cast<double>(3 * 4 * rank.whole.NumElements()) / 100e6);
  for (const int step : {1, 2}) {
    state.set_step(step);
    ASSERT_TRUE(policy.SaveAndWait(/*tidy=*/true).ok());
    EXPECT_GE(policy.ExpectedSeconds(), 0.05) << step;
  }
}

// So large that weights would change while they are copied.
TEST(CheckpointPolicy, WeightsThatChangeBehindAwaitCopyAreSavedAsTheyWere) {
  RunSpec run = TinyRun();
  run.mutable_model()->set_d_model(256);
  run.mutable_model()->set_ffn_dim(1024);
  const LoneRank rank(run);
  at::Tensor weights = rank.context->model->parameters().weights();
  weights.fill_(1);
  testing::MemoryFileSystem fs;
  Manifest state;
  CheckpointPolicy policy(fs, run.train(), state, *rank.context, {.saver = {.folder = "run"}});
  ASSERT_TRUE(policy.saver().Open().ok());
  ASSERT_TRUE(policy.Save().ok());
  policy.saver().AwaitCopy();
  weights.fill_(2);
  ASSERT_TRUE(policy.Finish().ok());
  const auto manifest = ReadManifest(fs, "run/step-00000000");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  ASSERT_TRUE(LoadRankState(fs, "run/step-00000000", *manifest, *rank.context).ok());
  EXPECT_TRUE(at::equal(weights, at::ones_like(weights)));
}

TEST(CheckpointPolicy, OldCheckpointsGoUnlessThereIsNoTime) {
  RunSpec run = TinyRun();
  run.mutable_train()->set_keep_checkpoints(1);
  const LoneRank rank(run);
  testing::MemoryFileSystem fs;
  Manifest state;
  CheckpointPolicy policy(fs, run.train(), state, *rank.context, {.saver = {.folder = "run"}});
  ASSERT_TRUE(policy.saver().Open().ok());
  const auto saved = [&](int step, bool tidy) {
    state.set_step(step);
    EXPECT_TRUE(policy.SaveAndWait(tidy).ok());
    return CheckpointSteps(*fs.List("run"));
  };
  EXPECT_THAT(saved(1, false), ElementsAre(1));
  EXPECT_THAT(saved(2, false), ElementsAre(1, 2));
  EXPECT_THAT(saved(3, true), ElementsAre(3));
}

TEST(CheckpointPolicy, ASaveOfSeveralRanksIsOfTheBytesOfAllOfThem) {
  RunSpec run = TinyRun();
  run.mutable_data()->set_global_microbatches(2);
  run.mutable_optim()->set_virtual_replicas(2);
  const Inventory whole = Describe(run.model(), run.data().microbatch());
  Plan plan = LonePlan(whole, 2);
  plan.set_data_parallel_size(2);
  testing::MemoryFileSystem fs;
  std::vector<SaveRecord> saves(2);
  const auto statuses = RunRanks(2, [&](Communicator& world) -> absl::Status {
    ASSIGN_OR_RETURN(const auto context, MakeRankContext(run, whole, plan, world));
    context->model->parameters().Initialize(1);
    Manifest state;
    state.set_step(1);
    CheckpointPolicy policy(fs, run.train(), state, *context,
                            {.saver = {.folder = "run"}, .record = [&](const SaveRecord& save) {
                               saves[world.rank()] = save;
                             }});
    RETURN_IF_ERROR(policy.saver().Open());
    return policy.SaveAndWait(/*tidy=*/true);
  });
  ASSERT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
  for (const SaveRecord& save : saves) {
    EXPECT_EQ(save.step(), 1);
    EXPECT_EQ(save.error(), "");
    EXPECT_EQ(save.bytes(), 3 * 4 * whole.NumElements());  // weights and moments in float32
  }
}

TEST(CheckpointPolicy, NothingIsSavedIntoAFolderThatAnotherJobHasTakenOver) {
  const RunSpec run = TinyRun();
  const LoneRank rank(run);
  testing::MemoryFileSystem fs;
  const auto lock = RunLock::Acquire(fs, "run", MakeRunOwner(""), {});
  ASSERT_TRUE(lock.ok()) << lock.status();
  Manifest state;
  CheckpointPolicy policy(fs, run.train(), state, *rank.context,
                          {.saver = {.folder = "run", .lock = lock->get()}});
  ASSERT_TRUE(policy.saver().Open().ok());
  ASSERT_TRUE(fs.Delete("run/lock").ok());
  const absl::Status saved = policy.SaveAndWait(/*tidy=*/true);
  EXPECT_TRUE(absl::IsAborted(saved)) << saved;
  EXPECT_EQ(GetExitCode(saved), ExitCode::kCheckpoint);
  EXPECT_FALSE(*Exists(fs, "run/step-00000000"));
}

}  // namespace
}  // namespace deepnet
