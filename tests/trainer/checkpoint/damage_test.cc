#include <atomic>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"
#include "tests/support/memory_file_system.h"
#include "tests/trainer/checkpoint/checkpoint_samples.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/retention.h"

namespace deepnet {
namespace {

using deepnet::testing::ExpectHoldsSample;
using deepnet::testing::MemoryFileSystem;
using deepnet::testing::MutableViews;
using deepnet::testing::SampleManifest;
using deepnet::testing::SampleTensor;
using deepnet::testing::SampleTensors;
using deepnet::testing::SaveSample;
using deepnet::testing::Views;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kTensors[] = "run/step-00000020/tensors-00000-of-00001.bin";
constexpr char kManifest[] = "run/step-00000020/manifest.pb";

class Damage : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(SaveSample(fs_, "run", 10).ok());
    ASSERT_TRUE(SaveSample(fs_, "run", 20).ok());
  }

  // The checkpoint before is taken, and a note says why.
  void ExpectStepTenIsFoundWithNote(const std::string& part_of_note) {
    const auto found = FindLatest(fs_, "run");
    ASSERT_TRUE(found.ok()) << found.status();
    ASSERT_TRUE(found->has_value());
    EXPECT_EQ((*found)->folder, "run/step-00000010");
    EXPECT_THAT((*found)->notes, ::testing::ElementsAre(HasSubstr(part_of_note)));
  }

  absl::Status ReadStepTwenty() {
    const absl::StatusOr<Manifest> manifest = ReadManifest(fs_, "run/step-00000020");
    if (!manifest.ok()) return manifest.status();
    std::vector<SampleTensor> tensors = SampleTensors(0);
    return ReadTensors(fs_, "run/step-00000020", *manifest, MutableViews(tensors));
  }

  // Cuts or lengthens a file.
  void Resize(const std::string& path, size_t bytes) {
    std::string contents = *ReadWholeFile(fs_, path, 1 << 20);
    contents.resize(bytes);
    ASSERT_TRUE(ReplaceFile(fs_, path, contents).ok());
  }

  MemoryFileSystem fs_;
};

TEST_F(Damage, OfAnyBitOfTheTensorsIsDetected) {
  const int64_t bytes = *fs_.Size(kTensors);
  for (int64_t offset = 0; offset < bytes; ++offset) {
    fs_.FlipBit(kTensors, offset, static_cast<int>(offset % 8));
    EXPECT_EQ(ReadStepTwenty().code(), absl::StatusCode::kDataLoss) << offset;
    ExpectStepTenIsFoundWithNote("tensors-00000-of-00001.bin' is damaged in block ");
    fs_.FlipBit(kTensors, offset, static_cast<int>(offset % 8));
  }
  EXPECT_TRUE(ReadStepTwenty().ok());
}

TEST_F(Damage, OfAnyBitOfTheManifestIsDetected) {
  const int64_t bytes = *fs_.Size(kManifest);
  for (int64_t offset = 0; offset < bytes; ++offset) {
    for (int bit = 0; bit < 8; ++bit) {
      fs_.FlipBit(kManifest, offset, bit);
      EXPECT_EQ(ReadStepTwenty().code(), absl::StatusCode::kDataLoss) << offset << " " << bit;
      fs_.FlipBit(kManifest, offset, bit);
    }
  }
  fs_.FlipBit(kManifest, 5, 0);
  ExpectStepTenIsFoundWithNote("manifest.pb' is damaged or foreign: its checksum is wrong");
}

// Three files, 16 blocks, and the manifest: a byte of any of them becomes any other.
TEST(Damaged, AnyOfAThousandRandomBytesIsDetectedAndNothingOfItIsLoaded) {
  MemoryFileSystem fs;
  ASSERT_TRUE(SaveSample(fs, "run", 10).ok());
  const std::vector<SampleTensor> saved = SampleTensors(20);
  const std::vector<NamedTensor> views = Views(saved);
  Manifest manifest = SampleManifest(20);
  ASSERT_TRUE(BeginCheckpoint(fs, "run", 20).ok());
  for (int writer = 0; writer < 3; ++writer) {
    const auto share = std::span(views).subspan(static_cast<size_t>(3 * writer), 3);
    *manifest.add_files() = *WriteShard(fs, "run", 20, {writer, 3, manifest.block_bytes()}, share);
  }
  ASSERT_TRUE(CommitCheckpoint(fs, "run", manifest).ok());
  const std::string folder = "run/step-00000020";
  std::mt19937 random(5);
  std::vector<std::pair<std::string, int64_t>> bytes;  // of all files
  const auto names = fs.List(folder);
  ASSERT_TRUE(names.ok()) << names.status();
  for (const std::string& name : *names) {
    const std::string path = JoinPath(folder, name);
    for (int64_t i = 0; i < *fs.Size(path); ++i) bytes.emplace_back(path, i);
  }
  for (int trial = 0; trial < 1000; ++trial) {
    const auto& [path, offset] = bytes[random() % bytes.size()];
    const std::string whole = *ReadWholeFile(fs, path, 1 << 20);
    std::string changed = whole;
    changed[static_cast<size_t>(offset)] ^= static_cast<char>(1 + random() % 255);
    ASSERT_TRUE(ReplaceFile(fs, path, changed).ok());
    const auto found = FindLatest(fs, "run");
    ASSERT_TRUE(found.ok() && found->has_value()) << found.status();
    EXPECT_EQ((*found)->folder, "run/step-00000010") << path << " " << offset;
    ASSERT_TRUE(ReplaceFile(fs, path, whole).ok());
  }
  EXPECT_EQ((*FindLatest(fs, "run"))->folder, folder);
  ExpectHoldsSample(fs, folder, 20);
}

TEST_F(Damage, NamesFileBlockBytesAndTensor) {
  fs_.FlipBit(kTensors, 64 + 9, 3);  // the vector's last element and the start of the next tensor
  const absl::Status status = ReadStepTwenty();
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("'run/step-00000020/tensors-00000-of-00001.bin' is damaged in block "
                              "2 (bytes 64 to 95)"),
                    HasSubstr("'weight/encoder.layers.0.fc1.bias' and 1 more is stored there")));
  EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
}

TEST_F(Damage, ElsewhereInTheFileDoesNotMatterToAnotherTensor) {
  fs_.FlipBit(kTensors, *fs_.Size(kTensors) - 1, 0);
  std::vector<SampleTensor> first = {SampleTensors(0)[0]};
  const Manifest manifest = *ReadManifest(fs_, "run/step-00000020");
  EXPECT_TRUE(ReadTensors(fs_, "run/step-00000020", manifest, MutableViews(first)).ok());
  EXPECT_EQ(first[0].data, SampleTensors(20)[0].data);
}

// Blocks of two elements, a tensor each.
TEST(Damaged, BlocksBesideATensorAreNeitherReadNorBlamedOnIt) {
  MemoryFileSystem fs;
  std::vector<SampleTensor> tensors;
  for (const char* name : {"weight/a", "weight/b", "weight/c"}) {
    tensors.push_back({name, {2}, {1.5f, 2.5f}});
  }
  Manifest manifest = SampleManifest(1);
  manifest.set_block_bytes(8);
  ASSERT_TRUE(SaveCheckpoint(fs, "run", manifest, Views(tensors)).ok());
  const std::string file = "run/step-00000001/tensors-00000-of-00001.bin";
  fs.FlipBit(file, 3, 0);
  fs.FlipBit(file, 16, 0);
  manifest = *ReadManifest(fs, "run/step-00000001");
  std::vector<SampleTensor> read = {{"weight/b", {2}, {0.0f, 0.0f}}};
  EXPECT_TRUE(ReadTensors(fs, "run/step-00000001", manifest, MutableViews(read)).ok());
  EXPECT_EQ(read[0].data, tensors[1].data);
  fs.FlipBit(file, 15, 7);
  const absl::Status status = ReadTensors(fs, "run/step-00000001", manifest, MutableViews(read));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("is damaged in block 1 (bytes 8 to 15): checksum "),
                    HasSubstr("; 'weight/b' is stored there")));
}

TEST_F(Damage, ByTruncationOfAnyLengthIsDetected) {
  for (const std::string path : {kTensors, kManifest}) {
    const std::string whole = *ReadWholeFile(fs_, path, 1 << 20);
    for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
      Resize(path, bytes);
      EXPECT_FALSE(ReadStepTwenty().ok()) << path << " " << bytes;
    }
    ASSERT_TRUE(ReplaceFile(fs_, path, whole).ok());
  }
  EXPECT_TRUE(ReadStepTwenty().ok());
}

TEST_F(Damage, ByALongerFileIsDetected) {
  Resize(kTensors, static_cast<size_t>(*fs_.Size(kTensors)) + 1);
  ExpectStepTenIsFoundWithNote("bytes; its manifest says");
  EXPECT_EQ(ReadStepTwenty().code(), absl::StatusCode::kDataLoss);
}

TEST_F(Damage, IsNoLongerLookedForWhenThereIsNoTime) {
  fs_.FlipBit(kTensors, 0, 0);
  const Manifest manifest = *ReadManifest(fs_, "run/step-00000020");
  EXPECT_FALSE(VerifyTensors(fs_, "run/step-00000020", manifest).ok());
  const std::atomic<bool> cancel{true};
  EXPECT_TRUE(VerifyTensors(fs_, "run/step-00000020", manifest, &cancel).ok());
}

TEST_F(Damage, ByAMissingFileIsDetected) {
  ASSERT_TRUE(fs_.Delete(kTensors).ok());
  ExpectStepTenIsFoundWithNote(kTensors);
}

TEST_F(Damage, ByAMissingManifestIsDetected) {
  ASSERT_TRUE(fs_.Delete(kManifest).ok());
  ExpectStepTenIsFoundWithNote("'run/step-00000020' is no complete checkpoint");
}

TEST_F(Damage, OfAFoldersNameIsDetected) {
  ASSERT_TRUE(fs_.Rename("run/step-00000020", "run/step-00000021").ok());
  ExpectStepTenIsFoundWithNote("'run/step-00000021' has a wrong name: its manifest says step 20");
}

TEST_F(Damage, OfAllCheckpointsIsAnErrorThatNamesEach) {
  fs_.FlipBit(kTensors, 0, 0);
  ASSERT_TRUE(fs_.Delete("run/step-00000010/manifest.pb").ok());
  const absl::Status status = FindLatest(fs_, "run").status();
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("'run' has no complete checkpoint"), HasSubstr("run/step-00000010"),
                    HasSubstr("run/step-00000020")));
  EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
}

TEST_F(Damage, OfThePointerDoesNotHideTheNewestCheckpoint) {
  fs_.FlipBit("run/latest", 3, 0);
  const auto found = FindLatest(fs_, "run");
  ASSERT_TRUE(found.ok());
  EXPECT_EQ((*found)->folder, "run/step-00000020");
}

TEST_F(Damage, OfTheNewestKeepsTheOldOnes) {
  fs_.FlipBit(kTensors, 0, 0);
  EXPECT_FALSE(DeleteOldCheckpoints(fs_, "run", {}).ok());
  ExpectHoldsSample(fs_, "run/step-00000010", 10);
}

TEST_F(Damage, UnfinishedFolderIsNamedAndPassedOver) {
  ASSERT_TRUE(fs_.Rename("run/step-00000020", "run/step-00000020.deepnet-unfinished").ok());
  ExpectStepTenIsFoundWithNote("'run/step-00000020.deepnet-unfinished' was never finished");
}

TEST(FindLatest, OfANewRunIsNothing) {
  MemoryFileSystem fs;
  EXPECT_FALSE(FindLatest(fs, "run")->has_value());
  ASSERT_TRUE(fs.MakeFolder("run/step-1").ok());
  EXPECT_FALSE(FindLatest(fs, "run")->has_value());
}

}  // namespace
}  // namespace deepnet
