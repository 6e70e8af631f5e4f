#include "trainer/checkpoint/tools/run_listing.h"

#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"
#include "tests/trainer/checkpoint/tools/tool_samples.h"

namespace deepnet {
namespace {

using deepnet::testing::MemoryFileSystem;
using deepnet::testing::SaveSample;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RunFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const int64_t step : {10, 20, 30, 40}) ASSERT_TRUE(SaveSample(fs_, "run", step).ok());
    ASSERT_TRUE(SetPointer(fs_, "run", "best-bleu", 20).ok());
  }

  RunListing List(ListDepth depth = ListDepth::kSizes) {
    absl::StatusOr<RunListing> listing = ListRun(fs_, "run", depth, {});
    EXPECT_TRUE(listing.ok()) << listing.status();
    return *std::move(listing);
  }

  std::string Choose(const std::string& path) {
    const absl::StatusOr<std::string> folder = ChooseCheckpoint(fs_, path, {});
    return folder.ok() ? *folder : std::string(folder.status().message());
  }

  MemoryFileSystem fs_;
};

TEST_F(RunFolder, IsListedByStepWithSizesAndMarks) {
  const RunListing listing = List();
  ASSERT_EQ(listing.checkpoints.size(), 4u);
  EXPECT_EQ(listing.checkpoints[0].step, 10);
  EXPECT_EQ(listing.checkpoints[0].state, CheckpointState::kWhole);
  EXPECT_THAT(listing.checkpoints[0].marks, IsEmpty());
  EXPECT_EQ(listing.checkpoints[0].bytes, 300 + *fs_.Size("run/step-00000010/manifest.pb"));
  EXPECT_THAT(listing.checkpoints[1].marks, ElementsAre("best-bleu"));
  EXPECT_THAT(listing.checkpoints[3].marks, ElementsAre("latest"));
  EXPECT_THAT(listing.notes, IsEmpty());
}

TEST_F(RunFolder, DamageIsNamed) {
  fs_.FlipBit("run/step-00000010/manifest.pb", 9, 0);
  ASSERT_TRUE(fs_.Delete("run/step-00000020/tensors-00000-of-00001.bin").ok());
  fs_.FlipBit("run/step-00000030/tensors-00000-of-00001.bin", 9, 0);
  ASSERT_TRUE(fs_.Rename("run/step-00000040", "run/step-00000041").ok());
  const RunListing sizes = List();
  EXPECT_EQ(sizes.checkpoints[0].state, CheckpointState::kDamaged);
  EXPECT_THAT(sizes.checkpoints[0].problems, ElementsAre(HasSubstr("its checksum is wrong")));
  EXPECT_THAT(sizes.checkpoints[1].problems, ElementsAre(HasSubstr("tensors-00000-of-00001.bin")));
  EXPECT_EQ(sizes.checkpoints[2].state, CheckpointState::kWhole);  // as far as was looked
  EXPECT_THAT(sizes.checkpoints[3].problems, ElementsAre(HasSubstr("has a wrong name")));
  EXPECT_THAT(sizes.notes, ElementsAre("'latest' names step-00000040, which is not there"));
  EXPECT_THAT(List(ListDepth::kContents).checkpoints[2].problems,
              ElementsAre(HasSubstr("damaged in block 0")));
}

TEST_F(RunFolder, UnfinishedAndReplacedOnesAreToldApart) {
  ASSERT_TRUE(fs_.Rename("run/step-00000010", "run/step-00000010.old").ok());
  ASSERT_TRUE(fs_.Rename("run/step-00000020", "run/step-00000020.tmp").ok());
  const RunListing listing = List();
  EXPECT_EQ(listing.checkpoints[0].state, CheckpointState::kReplaced);
  EXPECT_EQ(listing.checkpoints[1].state, CheckpointState::kUnfinished);
  EXPECT_GT(listing.checkpoints[1].bytes, 300);
}

TEST_F(RunFolder, ThatDoesNotExistIsAnError) {
  EXPECT_EQ(GetExitCode(ListRun(fs_, "typo", ListDepth::kSizes, {}).status()),
            ExitCode::kCheckpoint);
}

TEST_F(RunFolder, CheckpointsAreChosenByFolderPointerAndRun) {
  EXPECT_EQ(Choose("run/step-00000010/"), "run/step-00000010");
  EXPECT_EQ(Choose("run/best-bleu"), "run/step-00000020");
  EXPECT_EQ(Choose("run"), "run/step-00000040");
  fs_.FlipBit("run/step-00000040/manifest.pb", 9, 0);
  EXPECT_EQ(Choose("run/"), "run/step-00000030");
  EXPECT_THAT(Choose("typo"), HasSubstr("checkpoint 'typo'"));
  ASSERT_TRUE(fs_.MakeFolder("empty").ok());
  EXPECT_THAT(Choose("empty"), HasSubstr("holds no checkpoint"));
}

}  // namespace
}  // namespace deepnet
