// The writer is stopped before every single changing call, and the machine then loses nothing, all
// or some of what was not synced: the newest complete checkpoint is found, is right, and the next
// save works.
#include <functional>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/memory_file_system.h"
#include "tests/trainer/checkpoint/checkpoint_samples.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/retention.h"

namespace deepnet {
namespace {

using deepnet::testing::CrashKind;
using deepnet::testing::ExpectHoldsSample;
using deepnet::testing::MemoryFileSystem;
using deepnet::testing::SaveSample;

// The newest checkpoint is complete, right and of `step` or, if that is given, `other`.
void ExpectNewestIs(FileSystem& fs, int64_t step, std::optional<int64_t> other = std::nullopt) {
  const auto found = FindLatest(fs, "run");
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_TRUE(found->has_value());
  const int64_t found_step = (*found)->manifest.step();
  EXPECT_TRUE(found_step == step || found_step == other) << found_step;
  ExpectHoldsSample(fs, (*found)->folder, found_step);
}

using Action = std::function<absl::Status(FileSystem&)>;
using Check = std::function<void(FileSystem&, bool finished)>;

// Prepares, then stops `action` after 0, 1, 2, ... calls until it finishes, with every kind of
// crash.
void StopEverywhere(const Action& prepare, const Action& action, const Check& check) {
  bool finished = false;
  int64_t calls = 0;
  for (; !finished; ++calls) {
    for (uint64_t trial = 0; trial < 12; ++trial) {
      const CrashKind kind = trial == 0   ? CrashKind::kKeepAll
                             : trial == 1 ? CrashKind::kLoseUnsynced
                                          : CrashKind::kLoseSome;
      SCOPED_TRACE(::testing::Message() << "stopped after " << calls << " calls, trial " << trial);
      MemoryFileSystem fs;
      ASSERT_TRUE(prepare(fs).ok());
      fs.StopAfter(calls);
      finished = action(fs).ok();
      fs.Crash(kind, trial);
      check(fs, finished);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
  EXPECT_GT(calls, 10);  // it did stop in between
}

absl::Status SaveTwo(FileSystem& fs) {
  absl::Status status = SaveSample(fs, "run", 10);
  status.Update(SaveSample(fs, "run", 20));
  return status;
}

TEST(Crash, WhileSavingLeavesTheCheckpointBeforeOrTheNewOne) {
  StopEverywhere(
      SaveTwo, [](FileSystem& fs) { return SaveSample(fs, "run", 30); },
      [](FileSystem& fs, bool finished) {
        ExpectNewestIs(fs, 30, finished ? std::nullopt : std::optional<int64_t>(20));
        ExpectHoldsSample(fs, "run/step-00000010", 10);
        const int64_t latest = *GetPointer(fs, "run", "latest");
        EXPECT_TRUE(latest == 30 || (!finished && latest == 20));
        ExpectHoldsSample(fs, *ResolveCheckpoint(fs, "run/latest"), latest);
        ASSERT_TRUE(SaveSample(fs, "run", 30).ok());
        ExpectNewestIs(fs, 30);
      });
}

TEST(Crash, WhileSavingTheVeryFirstLeavesNoneOrAWholeOne) {
  StopEverywhere([](FileSystem&) { return absl::OkStatus(); },
                 [](FileSystem& fs) { return SaveSample(fs, "run", 1); },
                 [](FileSystem& fs, bool finished) {
                   const auto found = FindLatest(fs, "run");
                   ASSERT_TRUE(found.ok()) << found.status();
                   EXPECT_TRUE(found->has_value() || !finished);
                   if (found->has_value()) ExpectHoldsSample(fs, (*found)->folder, 1);
                   ASSERT_TRUE(SaveSample(fs, "run", 1).ok());
                   ExpectNewestIs(fs, 1);
                 });
}

TEST(Crash, WhileReplacingTheOnlyCheckpointLeavesOneOfThatStep) {
  StopEverywhere([](FileSystem& fs) { return SaveSample(fs, "run", 20); },
                 [](FileSystem& fs) { return SaveSample(fs, "run", 20); },
                 [](FileSystem& fs, bool) {
                   ExpectNewestIs(fs, 20);
                   ASSERT_TRUE(SaveSample(fs, "run", 20).ok());
                   ExpectNewestIs(fs, 20);
                   std::vector<std::string> names = *fs.List("run");
                   std::erase_if(names, IsUnusedName);  // the next lock deletes them
                   EXPECT_THAT(names, ::testing::ElementsAre("latest", "step-00000020"));
                 });
}

TEST(Crash, WhileDeletingOldOnesNeverTouchesTheNewest) {
  const auto save_four = [](FileSystem& fs) {
    absl::Status status = SaveTwo(fs);
    status.Update(SaveSample(fs, "run", 30));
    status.Update(SaveSample(fs, "run", 40));
    return status;
  };
  StopEverywhere(
      save_four, [](FileSystem& fs) { return DeleteOldCheckpoints(fs, "run", {.keep_latest = 2}); },
      [](FileSystem& fs, bool) {
        ExpectNewestIs(fs, 40);
        ExpectHoldsSample(fs, "run/step-00000030", 30);
        ASSERT_TRUE(SaveSample(fs, "run", 50).ok());
        ASSERT_TRUE(DeleteOldCheckpoints(fs, "run", {}).ok());
        EXPECT_THAT(*fs.List("run"), ::testing::ElementsAre("latest", "step-00000050"));
      });
}

}  // namespace
}  // namespace deepnet
