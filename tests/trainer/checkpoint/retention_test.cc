#include "trainer/checkpoint/retention.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/memory_file_system.h"
#include "tests/trainer/checkpoint/checkpoint_samples.h"

namespace deepnet {
namespace {

using deepnet::testing::MemoryFileSystem;
using deepnet::testing::SaveSample;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::vector<int64_t> kSteps = {30, 10, 50, 20, 40};

TEST(CheckpointsToDelete, KeepsTheLatest) {
  EXPECT_THAT(CheckpointsToDelete(kSteps, 2, {}), ElementsAre(10, 20, 30));
  EXPECT_THAT(CheckpointsToDelete(kSteps, 5, {}), IsEmpty());
  EXPECT_THAT(CheckpointsToDelete(kSteps, 9, {}), IsEmpty());
  EXPECT_THAT(CheckpointsToDelete({}, 2, {}), IsEmpty());
}

TEST(CheckpointsToDelete, KeepsTheNewestWhateverIsAsked) {
  EXPECT_THAT(CheckpointsToDelete(kSteps, 0, {}), ElementsAre(10, 20, 30, 40));
  EXPECT_THAT(CheckpointsToDelete(kSteps, -1, {}), ElementsAre(10, 20, 30, 40));
}

TEST(CheckpointsToDelete, KeepsTheBestBesidesTheLatest) {
  const std::vector<int64_t> best = {10, 50, 60};
  EXPECT_THAT(CheckpointsToDelete(kSteps, 2, best), ElementsAre(20, 30));
}

TEST(CheckpointsToDelete, KeepsMultiplesOfANumberOfSteps) {
  EXPECT_THAT(CheckpointsToDelete(kSteps, 1, {}, 20), ElementsAre(10, 30));
  const std::vector<int64_t> from_zero = {0, 1, 2, 3, 4};
  EXPECT_THAT(CheckpointsToDelete(from_zero, 1, {}, 2), ElementsAre(0, 1, 3));
}

TEST(DeleteOldCheckpoints, DeletesNothingMoreOnceItIsCancelled) {
  MemoryFileSystem fs;
  for (const int64_t step : {10, 20, 30}) ASSERT_TRUE(SaveSample(fs, "run", step).ok());
  const std::atomic<bool> cancel{true};
  ASSERT_TRUE(DeleteOldCheckpoints(fs, "run", 1, 0, &cancel).ok());
  EXPECT_THAT(*fs.List("run"),
              ElementsAre("latest", "step-00000010", "step-00000020", "step-00000030"));
}

TEST(DeleteOldCheckpoints, KeepsWhatBestPointersName) {
  MemoryFileSystem fs;
  for (const int64_t step : {10, 20, 30, 40}) ASSERT_TRUE(SaveSample(fs, "run", step).ok());
  ASSERT_TRUE(SetPointer(fs, "run", "best-bleu", 20).ok());
  ASSERT_TRUE(DeleteOldCheckpoints(fs, "run", 1).ok());
  EXPECT_THAT(*fs.List("run"),
              ElementsAre("best-bleu", "latest", "step-00000020", "step-00000040"));
}

}  // namespace
}  // namespace deepnet
