#include "trainer/checkpoint/retention.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"
#include "tests/support/memory_file_system.h"
#include "tests/trainer/checkpoint/checkpoint_samples.h"
#include "tests/trainer/checkpoint/tools/tool_samples.h"

namespace deepnet {
namespace {

using deepnet::testing::MemoryFileSystem;
using deepnet::testing::SaveSample;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::vector<int64_t> kSteps = {30, 10, 50, 20, 40};

TEST(CheckpointsToDelete, KeepsTheLatest) {
  EXPECT_THAT(CheckpointsToDelete(kSteps, {}, {.keep_latest = 2}), ElementsAre(10, 20, 30));
  EXPECT_THAT(CheckpointsToDelete(kSteps, {}, {.keep_latest = 5}), IsEmpty());
  EXPECT_THAT(CheckpointsToDelete(kSteps, {}, {.keep_latest = 9}), IsEmpty());
  EXPECT_THAT(CheckpointsToDelete({}, {}, {.keep_latest = 2}), IsEmpty());
}

TEST(CheckpointsToDelete, KeepsTheNewestWhateverIsAsked) {
  EXPECT_THAT(CheckpointsToDelete(kSteps, {}, {.keep_latest = 0}), ElementsAre(10, 20, 30, 40));
  EXPECT_THAT(CheckpointsToDelete(kSteps, {}, {.keep_latest = -1}), ElementsAre(10, 20, 30, 40));
}

TEST(CheckpointsToDelete, KeepsTheBestBesidesTheLatest) {
  const std::vector<int64_t> best = {10, 50, 60};
  EXPECT_THAT(CheckpointsToDelete(kSteps, best, {.keep_latest = 2}), ElementsAre(20, 30));
}

TEST(CheckpointsToDelete, KeepsMultiplesOfANumberOfSteps) {
  EXPECT_THAT(CheckpointsToDelete(kSteps, {}, {.keep_every_steps = 20}), ElementsAre(10, 30));
  const std::vector<int64_t> from_zero = {0, 1, 2, 3, 4};
  EXPECT_THAT(CheckpointsToDelete(from_zero, {}, {.keep_every_steps = 2}), ElementsAre(0, 1, 3));
}

TEST(CheckpointsToDelete, KeepsTheOneToGoBackToAndAllBehindIt) {
  EXPECT_THAT(CheckpointsToDelete(kSteps, {}, {.go_back_steps = 15}), ElementsAre(10, 20));
  EXPECT_THAT(CheckpointsToDelete(kSteps, {}, {.go_back_steps = 20}), ElementsAre(10, 20));
  EXPECT_THAT(CheckpointsToDelete(kSteps, {}, {.go_back_steps = 21}), ElementsAre(10));
  EXPECT_THAT(CheckpointsToDelete(kSteps, {}, {.go_back_steps = 0}), ElementsAre(10, 20, 30, 40));
  EXPECT_THAT(CheckpointsToDelete(kSteps, {}, {.go_back_steps = 60}), IsEmpty());
}

TEST(CheckpointsToDelete, NoStepOfARunGoesFurtherBackThanItMust) {
  constexpr int64_t kEvery = 4, kBack = 6;
  std::vector<int64_t> kept;
  for (int64_t step = 0; step <= 40; step += kEvery) {
    kept.push_back(step);
    for (const int64_t old : CheckpointsToDelete(kept, {}, {.go_back_steps = kBack}))
      std::erase(kept, old);
    const int64_t first = std::max<int64_t>(0, (step - kBack) / kEvery * kEvery);
    EXPECT_EQ(kept.front(), first) << step;
    EXPECT_EQ(kept.size(), static_cast<size_t>((step - first) / kEvery + 1)) << step;
  }
}

TEST(DeleteNewerCheckpoints, SetsPointersBackToWhatIsThere) {
  MemoryFileSystem fs;
  for (const int64_t step : {10, 20, 30, 40}) ASSERT_TRUE(SaveSample(fs, "run", step).ok());
  ASSERT_TRUE(SetPointer(fs, "run", "best-bleu", 40).ok());
  ASSERT_TRUE(SetPointer(fs, "run", "best-nll", 30).ok());
  Manifest manifest;
  manifest.set_step(20);
  for (const auto& [metric, step] : {std::pair("bleu", 10), std::pair("nll", 5),
                                     std::pair("chrf", 30), std::pair("comet", 20)}) {
    BestScore& best = *manifest.add_best();
    best.set_metric(metric);
    best.set_step(step);
  }
  ASSERT_TRUE(DeleteNewerCheckpoints(fs, "run", manifest).ok());
  EXPECT_THAT(*fs.List("run"),
              ElementsAre("best-bleu", "latest", "step-00000010", "step-00000020"));
  EXPECT_EQ(*GetPointer(fs, "run", "latest"), 20);
  EXPECT_EQ(*GetPointer(fs, "run", "best-bleu"), 10);
  ASSERT_EQ(manifest.best_size(), 2);
  EXPECT_EQ(manifest.best(0).metric(), "bleu");
  EXPECT_EQ(manifest.best(1).metric(), "comet");
}

TEST(DeleteOldCheckpoints, DeletesNothingMoreOnceItIsCancelled) {
  MemoryFileSystem fs;
  for (const int64_t step : {10, 20, 30}) ASSERT_TRUE(SaveSample(fs, "run", step).ok());
  const std::atomic<bool> cancel{true};
  ASSERT_TRUE(DeleteOldCheckpoints(fs, "run", {}, &cancel).ok());
  EXPECT_THAT(*fs.List("run"),
              ElementsAre("latest", "step-00000010", "step-00000020", "step-00000030"));
}

TEST(DeleteOldCheckpoints, KeepsWhatBestPointersName) {
  MemoryFileSystem fs;
  for (const int64_t step : {10, 20, 30, 40}) ASSERT_TRUE(SaveSample(fs, "run", step).ok());
  ASSERT_TRUE(SetPointer(fs, "run", "best-bleu", 20).ok());
  ASSERT_TRUE(DeleteOldCheckpoints(fs, "run", {}).ok());
  EXPECT_THAT(*fs.List("run"),
              ElementsAre("best-bleu", "latest", "step-00000020", "step-00000040"));
}

TEST(DeleteOldCheckpoints, KeepsWhatEachBestPointerNamesWhereTheyDiffer) {
  MemoryFileSystem fs;
  for (const int64_t step : {10, 20, 30, 40}) ASSERT_TRUE(SaveSample(fs, "run", step).ok());
  ASSERT_TRUE(SetPointer(fs, "run", "best-bleu", 20).ok());
  ASSERT_TRUE(SetPointer(fs, "run", "best-nll", 10).ok());
  ASSERT_TRUE(DeleteOldCheckpoints(fs, "run", {}).ok());
  EXPECT_THAT(*fs.List("run"), ElementsAre("best-bleu", "best-nll", "latest", "step-00000010",
                                           "step-00000020", "step-00000040"));
}

const std::vector<std::string> kAll = {"best-bleu",     "latest",        "step-00000010",
                                       "step-00000020", "step-00000030", "step-00000040"};

class Prune : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const int64_t step : {10, 20, 30, 40}) ASSERT_TRUE(SaveSample(fs_, "run", step).ok());
    ASSERT_TRUE(SetPointer(fs_, "run", "best-bleu", 20).ok());
  }

  std::vector<std::string> Names() { return *fs_.List("run"); }

  MemoryFileSystem fs_;
};

TEST_F(Prune, DeletesWhatThePlanSays) {
  const auto plan = PlanPrune(fs_, "run", {.keep_latest = 1}, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->delete_steps, ElementsAre(10, 30));
  EXPECT_EQ(plan->kept, 2);
  EXPECT_EQ(plan->delete_bytes, 2 * 300 + *fs_.Size("run/step-00000010/manifest.pb") +
                                    *fs_.Size("run/step-00000030/manifest.pb"));
  EXPECT_EQ(Names(), kAll);  // a plan changes nothing
  const auto done = PruneRun(fs_, "run", {.keep_latest = 1}, {}, {});
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->delete_steps, plan->delete_steps);
  EXPECT_THAT(Names(), ElementsAre("best-bleu", "latest", "step-00000020", "step-00000040"));
}

TEST_F(Prune, CountsNoBytesOfWhatIsLeftBesideACheckpoint) {
  const auto before = PlanPrune(fs_, "run", {.keep_latest = 1}, {});
  ASSERT_TRUE(SaveSample(fs_, "other", 10).ok());
  ASSERT_TRUE(fs_.Rename("other/step-00000010", "run/step-00000010.deepnet-replaced").ok());
  const auto plan = PlanPrune(fs_, "run", {.keep_latest = 1}, {});
  ASSERT_TRUE(before.ok() && plan.ok()) << plan.status();
  EXPECT_EQ(plan->delete_bytes, before->delete_bytes);
}

TEST_F(Prune, WhatWasReplacedIsFoundOnlyWhereNothingReplacesIt) {
  ASSERT_TRUE(SaveSample(fs_, "other", 40).ok());
  ASSERT_TRUE(fs_.Rename("other/step-00000040", "run/step-00000040.deepnet-replaced").ok());
  const auto latest = [&] { return FindLatest(fs_, "run").value()->folder; };
  EXPECT_EQ(latest(), "run/step-00000040");
  ASSERT_TRUE(fs_.DeleteTree("run/step-00000040").ok());
  EXPECT_EQ(latest(), "run/step-00000040.deepnet-replaced");
}

TEST_F(Prune, KeepsWhatEachBestPointerNamesWhereTheyDiffer) {
  ASSERT_TRUE(SetPointer(fs_, "run", "best-nll", 10).ok());
  const auto plan = PlanPrune(fs_, "run", {.keep_latest = 1}, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->delete_steps, ElementsAre(30));
  EXPECT_EQ(plan->kept, 3);
  const auto done = PruneRun(fs_, "run", {.keep_latest = 1}, {}, {});
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->delete_steps, plan->delete_steps);
  EXPECT_THAT(Names(), ElementsAre("best-bleu", "best-nll", "latest", "step-00000010",
                                   "step-00000020", "step-00000040"));
}

TEST_F(Prune, KeepsEveryNthStepAsTrainingDoes) {
  MemoryFileSystem trained;
  for (const int64_t step : {10, 20, 30, 40}) ASSERT_TRUE(SaveSample(trained, "run", step).ok());
  ASSERT_TRUE(SetPointer(trained, "run", "best-bleu", 20).ok());
  ASSERT_TRUE(DeleteOldCheckpoints(trained, "run", {.keep_every_steps = 15}).ok());
  const auto done = PruneRun(fs_, "run", {.keep_latest = 1, .keep_every_steps = 15}, {}, {});
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_THAT(done->delete_steps, ElementsAre(10));
  EXPECT_EQ(Names(), *trained.List("run"));
}

TEST_F(Prune, OfADamagedNewestCheckpointDeletesNothing) {
  fs_.FlipBit("run/step-00000040/tensors-00000-of-00001.bin", 100, 0);
  EXPECT_EQ(GetExitCode(PruneRun(fs_, "run", {}, {}, {}).status()), ExitCode::kCheckpoint);
  EXPECT_EQ(Names(), kAll);
}

TEST_F(Prune, IsRefusedWhileARunHoldsTheLockAndNamesIt) {
  RunOwner owner = MakeRunOwner("77");
  owner.set_host("node7");
  auto run = RunLock::Acquire(fs_, "run", owner, {.beat = absl::InfiniteDuration()});
  ASSERT_TRUE(run.ok()) << run.status();
  // The owner is on another host, so it is watched, and seen to beat.
  const auto beats = [&](absl::Duration) { EXPECT_TRUE((*run)->Beat().ok()); };
  const absl::Status refused = PruneRun(fs_, "run", {}, {.wait = beats}, {}).status();
  EXPECT_EQ(GetExitCode(refused), ExitCode::kCheckpoint) << refused;
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("in use"), HasSubstr("node7")));
  EXPECT_TRUE(PlanPrune(fs_, "run", {}, {}).ok());
  run->reset();
  EXPECT_EQ(Names(), kAll);
}

TEST_F(Prune, DeletesNothingWhereItsLockIsTakenAway) {
  RunOwner thief = MakeRunOwner("78");
  const auto files = MakeObservedFileSystem(fs_, [&](const std::string& path) {
    if (path != "run/step-00000040/manifest.pb" || !*Exists(fs_, "run/lock")) return;
    EXPECT_TRUE(ReplaceFile(fs_, "run/lock", thief.DebugString()).ok());
  });
  const absl::Status status = PruneRun(*files, "run", {}, {}, {}).status();
  EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("was taken away and is held by process"));
  std::vector<std::string> names = Names();
  std::erase(names, "lock");  // the other one's
  EXPECT_EQ(names, kAll);
}

TEST_F(Prune, TakesTheLockOfADeadRunOver) {
  RunOwner dead = MakeRunOwner("77");
  dead.set_process_start(dead.process_start() + 1);  // another process has its number
  const auto run = RunLock::Acquire(fs_, "run", dead, {.beat = absl::InfiniteDuration()});
  ASSERT_TRUE(run.ok()) << run.status();
  const auto done = PruneRun(fs_, "run", {}, {}, {});
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_THAT(Names(), ElementsAre("best-bleu", "latest", "step-00000020", "step-00000040"));
}

// A link in a checkpoint, and a checkpoint that is a link to an archive.
TEST_F(Prune, DeletesLinksAndNothingThatTheyLeadTo) {
  ASSERT_TRUE(fs_.MakeFolder("home").ok());
  ASSERT_TRUE(ReplaceFile(fs_, "home/thesis", "years of work").ok());
  fs_.MakeLink("home", "run/step-00000010/notes");
  ASSERT_TRUE(fs_.Rename("run/step-00000030", "archived").ok());
  fs_.MakeLink("archived", "run/step-00000030");
  const auto done = PruneRun(fs_, "run", {.keep_latest = 1}, {}, {});
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_THAT(Names(), ElementsAre("best-bleu", "latest", "step-00000020", "step-00000040"));
  EXPECT_EQ(*ReadWholeFile(fs_, "home/thesis", 100), "years of work");
  EXPECT_TRUE(ReadManifest(fs_, "archived").ok());
}

TEST_F(Prune, OfAFolderThatDoesNotExistMakesNone) {
  EXPECT_EQ(GetExitCode(PruneRun(fs_, "typo", {}, {}, {}).status()), ExitCode::kCheckpoint);
  EXPECT_FALSE(*Exists(fs_, "typo"));
}

}  // namespace
}  // namespace deepnet
