#include "trainer/checkpoint/tools/verify.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"
#include "tests/trainer/checkpoint/tools/tool_samples.h"

namespace deepnet {
namespace {

using deepnet::testing::MemoryFileSystem;
using deepnet::testing::SaveSpreadSample;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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
