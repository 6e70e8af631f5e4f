#include "trainer/checkpoint/tools/inspect.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"
#include "tests/support/run_ranks.h"
#include "tests/trainer/checkpoint/tools/tool_samples.h"

namespace deepnet {
namespace {

using deepnet::testing::MemoryFileSystem;
using deepnet::testing::SaveSample;
using deepnet::testing::SaveSpreadSample;
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
  EXPECT_EQ(listing.checkpoints[0].state, CheckpointState::kIntact);
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
  EXPECT_EQ(sizes.checkpoints[2].state, CheckpointState::kIntact);  // as far as was looked
  EXPECT_THAT(sizes.checkpoints[3].problems, ElementsAre(HasSubstr("has a wrong name")));
  EXPECT_THAT(sizes.notes, ElementsAre("'latest' names step-00000040, which is not there"));
  EXPECT_THAT(List(ListDepth::kContents).checkpoints[2].problems,
              ElementsAre(HasSubstr("damaged in block 0")));
}

TEST_F(RunFolder, APointerThatNamesNothingIsNoted) {
  ASSERT_TRUE(ReplaceFile(fs_, "run/best-bleu", "elsewhere").ok());
  const RunListing listing = List();
  EXPECT_THAT(listing.notes, ElementsAre("pointer 'run/best-bleu': it does not name a checkpoint, "
                                         "such as step-00000010"));
  EXPECT_THAT(listing.checkpoints[3].marks, ElementsAre("latest"));
}

TEST_F(RunFolder, IsListedInTheOrderOfNumbersNotOfNames) {
  ASSERT_TRUE(SaveSample(fs_, "run", 100000000).ok() && SaveSample(fs_, "run", 99999999).ok());
  const RunListing listing = List();
  ASSERT_EQ(listing.checkpoints.size(), 6u);
  EXPECT_EQ(listing.checkpoints[4].step, 99999999);
  EXPECT_EQ(listing.checkpoints[5].step, 100000000);
  EXPECT_EQ(Choose("run"), "run/step-100000000");
}

TEST_F(RunFolder, UnfinishedAndReplacedOnesAreToldApart) {
  ASSERT_TRUE(fs_.Rename("run/step-00000010", "run/step-00000010.deepnet-replaced").ok());
  ASSERT_TRUE(fs_.Rename("run/step-00000020", "run/step-00000020.deepnet-unfinished").ok());
  const RunListing listing = List();
  EXPECT_EQ(listing.checkpoints[0].state, CheckpointState::kReplaced);
  EXPECT_EQ(listing.checkpoints[1].state, CheckpointState::kUnfinished);
  EXPECT_GT(listing.checkpoints[1].bytes, 300);
  ASSERT_TRUE(fs_.Rename("run/step-00000040", "earlier").ok());
  ASSERT_TRUE(SaveSample(fs_, "run", 40).ok());
  ASSERT_TRUE(fs_.Rename("earlier", "run/step-00000040.deepnet-replaced").ok());
  EXPECT_EQ(Choose("run"), "run/step-00000040");
}

TEST_F(RunFolder, ThatDoesNotExistIsAnError) {
  EXPECT_EQ(GetExitCode(ListRun(fs_, "typo", ListDepth::kSizes, {}).status()),
            ExitCode::kCheckpoint);
}

TEST_F(RunFolder, CheckpointsAreChosenByFolderPointerAndRun) {
  EXPECT_EQ(Choose("run/step-00000010/"), "run/step-00000010");
  EXPECT_EQ(Choose("run/best-bleu"), "run/step-00000020");
  EXPECT_EQ(Choose("run"), "run/step-00000040");
  fs_.FlipBit("run/step-00000040/tensors-00000-of-00001.bin", 9, 0);  // contents are not read
  EXPECT_EQ(Choose("run"), "run/step-00000040");
  fs_.FlipBit("run/step-00000040/manifest.pb", 9, 0);
  EXPECT_EQ(Choose("run/"), "run/step-00000030");
  EXPECT_THAT(Choose("typo"), HasSubstr("checkpoint 'typo'"));
  ASSERT_TRUE(fs_.MakeFolder("empty").ok());
  EXPECT_THAT(Choose("empty"), HasSubstr("holds no checkpoint"));
}

constexpr char kFolder[] = "run/step-00000003";
constexpr char kFirst[] = "tensors-00000-of-00002.bin";
constexpr char kSecond[] = "tensors-00001-of-00002.bin";

class Verify : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(SaveSpreadSample(fs_, "run", 3, 2).ok()); }

  VerifyReport Run() {
    absl::StatusOr<VerifyReport> report = VerifyCheckpoint(fs_, kFolder, {});
    EXPECT_TRUE(report.ok()) << report.status();
    return *std::move(report);
  }

  std::string Path(const char* file) { return JoinPath(kFolder, file); }

  MemoryFileSystem fs_;
};

TEST_F(Verify, AWholeCheckpointHasNoDamage) {
  const VerifyReport report = Run();
  EXPECT_THAT(report.damage, IsEmpty());
  EXPECT_EQ(report.step, 3);
  EXPECT_EQ(report.files, 2);
  EXPECT_EQ(report.bytes, 300);
  EXPECT_EQ(report.tensors, 9);
}

TEST_F(Verify, TheGoldenCheckpointIsWhole) {
  const std::unique_ptr<FileSystem> fs = MakePosixFileSystem();
  const auto report = VerifyCheckpoint(*fs, "tests/golden/checkpoint-v1/step-00000003", {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->damage, IsEmpty());
  EXPECT_EQ(report->blocks, 10);
}

TEST_F(Verify, NamesEveryDamagedPlaceAndAllItsTensors) {
  fs_.FlipBit(Path(kFirst), 30, 0);  // the first matrix ends at 28, the vector at 32
  fs_.FlipBit(Path(kSecond), 0, 7);
  fs_.FlipBit(Path(kSecond), 70, 1);
  const VerifyReport report = Run();
  ASSERT_EQ(report.damage.size(), 3u);
  EXPECT_EQ(report.damage[0].file, kFirst);
  EXPECT_EQ(report.damage[0].block, 0);
  EXPECT_EQ(report.damage[0].end, 32);
  EXPECT_THAT(report.damage[0].tensors, ElementsAre("weight/encoder.layers.0.fc1.weight",
                                                    "weight/encoder.layers.0.fc1.bias"));
  EXPECT_THAT(report.damage[0].text, HasSubstr("is damaged in block 0 (bytes 0 to 31)"));
  EXPECT_EQ(report.damage[1].file, kSecond);
  EXPECT_EQ(report.damage[1].block, 0);
  EXPECT_EQ(report.damage[2].block, 2);
}

TEST_F(Verify, EveryBitThatFlipsIsOneDamagedBlock) {
  const int64_t bytes = *fs_.Size(Path(kFirst));
  for (int64_t offset = 0; offset < bytes; ++offset) {
    fs_.FlipBit(Path(kFirst), offset, static_cast<int>(offset % 8));
    const VerifyReport report = Run();
    ASSERT_EQ(report.damage.size(), 1u) << offset;
    EXPECT_EQ(report.damage[0].block, offset / 32);
    fs_.FlipBit(Path(kFirst), offset, static_cast<int>(offset % 8));
  }
}

TEST_F(Verify, AMissingFileIsOneDamageWithAllItsTensorsAndTheRestIsReadStill) {
  fs_.FlipBit(Path(kSecond), 5, 5);
  ASSERT_TRUE(fs_.Delete(Path(kFirst)).ok());
  const VerifyReport report = Run();
  ASSERT_EQ(report.damage.size(), 2u);
  EXPECT_EQ(report.damage[0].block, -1);
  EXPECT_EQ(report.damage[0].tensors.size(), 9u);
  EXPECT_EQ(report.damage[1].file, kSecond);
}

TEST_F(Verify, AShorterFileLosesItsLastBlocks) {
  std::string contents = *ReadWholeFile(fs_, Path(kSecond), 1000);
  const size_t blocks = (contents.size() + 31) / 32;
  contents.resize(40);
  ASSERT_TRUE(ReplaceFile(fs_, Path(kSecond), contents).ok());
  const VerifyReport report = Run();
  ASSERT_EQ(report.damage.size(), blocks);  // the file, and all blocks but the first
  EXPECT_EQ(report.damage[0].block, -1);
  EXPECT_EQ(report.damage[0].begin, 40);
  EXPECT_THAT(report.damage[0].text, HasSubstr("has 40 bytes; its manifest says"));
  EXPECT_EQ(report.damage[1].block, 1);
}

TEST_F(Verify, RanksThatShareTheBlocksFindTheSame) {
  fs_.FlipBit(Path(kFirst), 30, 0);
  fs_.FlipBit(Path(kSecond), 70, 1);
  std::string contents = *ReadWholeFile(fs_, Path(kSecond), 1000);
  ASSERT_TRUE(ReplaceFile(fs_, Path(kSecond), contents.substr(0, 100)).ok());
  const VerifyReport alone = Run();
  for (const int ranks : {2, 3, 20}) {
    const absl::Status status = FirstError(RunRanks(ranks, [&](Communicator& world) {
      ToolOptions options;
      options.world = &world;
      int64_t last = 0, all = 0;
      options.progress = [&](int64_t done, int64_t total) {
        last = done;
        all = total;
      };
      const auto report = VerifyCheckpoint(fs_, kFolder, options);
      EXPECT_TRUE(report.ok()) << report.status();
      if (!report.ok()) return report.status();
      EXPECT_EQ(last, all);
      EXPECT_EQ(report->blocks, alone.blocks);
      EXPECT_EQ(report->damage.size(), alone.damage.size());
      for (size_t i = 0; i < std::min(report->damage.size(), alone.damage.size()); ++i) {
        EXPECT_EQ(report->damage[i].file, alone.damage[i].file);
        EXPECT_EQ(report->damage[i].block, alone.damage[i].block);
        EXPECT_EQ(report->damage[i].text, alone.damage[i].text);
      }
      return absl::OkStatus();
    }));
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST_F(Verify, ADamagedManifestIsAnError) {
  fs_.FlipBit(Path("manifest.pb"), 20, 0);
  EXPECT_EQ(GetExitCode(VerifyCheckpoint(fs_, kFolder, {}).status()), ExitCode::kCheckpoint);
}

TEST_F(Verify, ProgressEndsWithAllBytes) {
  int64_t last = 0, total = 0;
  ToolOptions options;
  options.progress = [&](int64_t done, int64_t all) {
    EXPECT_GT(done, last);
    last = done;
    total = all;
  };
  ASSERT_TRUE(VerifyCheckpoint(fs_, kFolder, options).ok());
  EXPECT_EQ(last, 300);
  EXPECT_EQ(total, 300);
}

}  // namespace
}  // namespace deepnet
