// Disks that fail while a checkpoint is saved: the call says so, older checkpoints are what they
// were, and the next save works.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"
#include "tests/support/fault_file_system.h"
#include "tests/support/memory_file_system.h"
#include "tests/trainer/checkpoint/checkpoint_samples.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/retention.h"

namespace deepnet {
namespace {

using ::testing::ElementsAre;
using testing::ExpectHoldsSample;
using testing::FaultFileSystem;
using testing::MemoryFileSystem;
using testing::SaveSample;

void ExpectNewestHolds(FileSystem& fs, int64_t at_least, int64_t at_most) {
  const auto found = FindLatest(fs, "run");
  ASSERT_TRUE(found.ok() && found->has_value()) << found.status();
  const int64_t step = (*found)->manifest.step();
  EXPECT_GE(step, at_least);
  EXPECT_LE(step, at_most);
  ExpectHoldsSample(fs, (*found)->folder, step);
}

// Saves steps 10 and 20 well, then 30 with call n failing, for all n.
TEST(Fault, OfAnyOneCallCostsAtMostTheCheckpointUnderWay) {
  int64_t failures = 0;
  for (bool ended = false; !ended; ++failures) {
    SCOPED_TRACE(failures);
    MemoryFileSystem memory;
    FaultFileSystem fs(memory);
    ASSERT_TRUE(SaveSample(fs, "run", 10).ok());
    ASSERT_TRUE(SaveSample(fs, "run", 20).ok());
    const int64_t before = fs.num_calls();
    fs.FailCall(before + failures, absl::DataLossError("EIO"));
    absl::Status status = SaveSample(fs, "run", 30);
    status.Update(DeleteOldCheckpoints(fs, "run", {.keep_latest = 2}));
    ended = fs.num_calls() <= before + failures;
    EXPECT_EQ(status.ok(), ended) << status;
    EXPECT_EQ(GetExitCode(status), ended ? ExitCode::kDone : ExitCode::kCheckpoint) << status;
    ExpectNewestHolds(fs, 20, 30);
    ASSERT_TRUE(SaveSample(fs, "run", 40).ok());
    ASSERT_TRUE(DeleteOldCheckpoints(fs, "run", {}).ok());
    EXPECT_THAT(*fs.List("run"), ::testing::ElementsAre("latest", "step-00000040"));
    ExpectHoldsSample(fs, "run/step-00000040", 40);
  }
  EXPECT_GT(failures, 20);
}

TEST(Fault, OfADiskWithAnyRoomLeavesOlderCheckpointsAndMakesRoomAgain) {
  int64_t needed = 0;
  for (bool fits = false; !fits; needed += 7) {
    SCOPED_TRACE(needed);
    MemoryFileSystem memory;
    FaultFileSystem fs(memory);
    ASSERT_TRUE(SaveSample(fs, "run", 10).ok());
    fs.SetRoom(needed);
    const absl::Status status = SaveSample(fs, "run", 20);
    fits = status.ok();
    ExpectHoldsSample(fs, "run/step-00000010", 10);
    if (fits) continue;
    EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint) << status;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("no space"));
    ExpectNewestHolds(fs, 10, 20);
    ASSERT_TRUE(RemoveUnfinished(fs, "run").ok());
    fs.SetRoom(1 << 20);
    ASSERT_TRUE(SaveSample(fs, "run", 30).ok());
    ExpectNewestHolds(fs, 30, 30);
  }
  EXPECT_GT(needed, 500);
}

// The file system's promise depends on this order; no crash of a test shows all of it.
TEST(Save, MakesTheNewOneDurableBeforeItTakesTheOldOnesName) {
  MemoryFileSystem memory;
  FaultFileSystem fs(memory);
  ASSERT_TRUE(SaveSample(fs, "run", 20).ok());
  fs.ClearChanges();
  ASSERT_TRUE(SaveSample(fs, "run", 20).ok());
  const std::string now = "run/step-00000020", next = now + ".deepnet-unfinished",
                    before = now + ".deepnet-replaced", tensors = "/tensors-00000-of-00001.bin",
                    manifest = "/manifest.pb";
  EXPECT_THAT(
      fs.changes(),
      ElementsAre("make run", "make " + next, "create " + next + tensors,
                  "append " + next + tensors, "sync " + next + tensors, "close " + next + tensors,
                  "create " + next + manifest, "append " + next + manifest,
                  "sync " + next + manifest, "close " + next + manifest, "sync " + next, "sync run",
                  "rename " + now + " " + before, "sync run", "rename " + next + " " + now,
                  "sync run", "delete " + before + manifest, "delete " + before + tensors,
                  "delete " + before, "create run/unused", "append run/unused", "sync run/unused",
                  "close run/unused", "rename run/unused run/latest", "sync run"));
}

TEST(DeleteOldCheckpoints, TakesTheNameAwayBeforeTheFirstFile) {
  MemoryFileSystem memory;
  FaultFileSystem fs(memory);
  ASSERT_TRUE(SaveSample(fs, "run", 10).ok() && SaveSample(fs, "run", 20).ok());
  fs.ClearChanges();
  ASSERT_TRUE(DeleteOldCheckpoints(fs, "run", {}).ok());
  const std::string gone = "run/step-00000010.deepnet-unfinished";
  EXPECT_THAT(
      fs.changes(),
      ElementsAre("rename run/step-00000010 " + gone, "sync run", "delete " + gone + "/manifest.pb",
                  "delete " + gone + "/tensors-00000-of-00001.bin", "delete " + gone));
}

}  // namespace
}  // namespace deepnet
