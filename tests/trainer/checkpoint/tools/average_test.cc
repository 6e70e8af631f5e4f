#include "trainer/checkpoint/tools/average.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"
#include "tests/trainer/checkpoint/tools/tool_samples.h"

namespace deepnet {
namespace {

using deepnet::testing::ManifestOf;
using deepnet::testing::MemoryFileSystem;
using deepnet::testing::MutableViews;
using deepnet::testing::SampleManifest;
using deepnet::testing::SampleTensor;
using deepnet::testing::SampleTensors;
using deepnet::testing::SaveSpreadSample;
using deepnet::testing::Views;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Weights whose sums need rounding: of all magnitudes and both signs.
void SaveRandom(FileSystem& fs, int64_t step) {
  std::mt19937 random(static_cast<unsigned>(step));
  std::uniform_real_distribution<float> fraction(-1.0f, 1.0f);
  std::vector<SampleTensor> tensors = SampleTensors(step);
  for (SampleTensor& tensor : tensors) {
    for (float& element : tensor.data) {
      element = std::ldexp(fraction(random), static_cast<int>(random() % 40) - 20);
    }
  }
  Manifest manifest = SampleManifest(step);
  manifest.add_best()->set_metric("bleu");
  ASSERT_TRUE(SaveCheckpoint(fs, "run", manifest, Views(tensors)).ok());
}

std::vector<SampleTensor> ReadWeights(FileSystem& fs, const std::string& folder) {
  std::vector<SampleTensor> tensors = SampleTensors(0);
  tensors.resize(3);
  const absl::Status status =
      ReadTensors(fs, folder, ManifestOf(fs, folder), MutableViews(tensors));
  EXPECT_TRUE(status.ok()) << status;
  return tensors;
}

// The slow twin: an element at a time.
float PlainMean(const std::vector<std::vector<SampleTensor>>& all, size_t tensor, size_t element) {
  double sum = 0.0;
  for (const auto& tensors : all) sum += static_cast<double>(tensors[tensor].data[element]);
  return static_cast<float>(sum / static_cast<double>(all.size()));
}

class Average : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const int64_t step : {10, 20, 30}) SaveRandom(fs_, step);
  }

  std::vector<std::string> folders_ = {"run/step-00000010", "run/step-00000020",
                                       "run/step-00000030"};
  MemoryFileSystem fs_;
};

TEST_F(Average, HasTheBitsOfTheSlowTwin) {
  const auto folder = AverageCheckpoints(fs_, folders_, "mean", {});
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ(*folder, "mean/step-00000030");
  std::vector<std::vector<SampleTensor>> all;
  for (const std::string& source : folders_) all.push_back(ReadWeights(fs_, source));
  const std::vector<SampleTensor> mean = ReadWeights(fs_, *folder);
  for (size_t t = 0; t < mean.size(); ++t) {
    for (size_t i = 0; i < mean[t].data.size(); ++i) {
      EXPECT_EQ(mean[t].data[i], PlainMean(all, t, i)) << mean[t].name << " " << i;
    }
  }
}

TEST_F(Average, DoesNotDependOnTheOrderOfItsArguments) {
  ASSERT_TRUE(AverageCheckpoints(fs_, folders_, "mean", {}).ok());
  std::reverse(folders_.begin(), folders_.end());
  ASSERT_TRUE(AverageCheckpoints(fs_, folders_, "reversed", {}).ok());
  for (const char* file : {"manifest.pb", "tensors-00000-of-00001.bin"}) {
    EXPECT_EQ(*ReadWholeFile(fs_, JoinPath("mean/step-00000030", file), 1 << 20),
              *ReadWholeFile(fs_, JoinPath("reversed/step-00000030", file), 1 << 20));
  }
}

TEST_F(Average, OfOneCheckpointIsItsWeights) {
  const auto folder = AverageCheckpoints(fs_, std::span(&folders_[1], 1), "mean", {});
  ASSERT_TRUE(folder.ok()) << folder.status();
  const std::vector<SampleTensor> mean = ReadWeights(fs_, *folder);
  for (size_t t = 0; t < mean.size(); ++t) {
    EXPECT_EQ(mean[t].data, ReadWeights(fs_, folders_[1])[t].data);
  }
}

TEST_F(Average, SaysWhatItWasMadeOfAndHasNoMomentsAndNoScores) {
  ASSERT_TRUE(AverageCheckpoints(fs_, folders_, "mean", {}).ok());
  const Manifest manifest = ManifestOf(fs_, "mean/step-00000030");
  ASSERT_EQ(manifest.averaged_size(), 3);
  EXPECT_EQ(manifest.averaged(0).folder(), folders_[0]);
  EXPECT_EQ(manifest.averaged(0).step(), 10);
  EXPECT_EQ(manifest.averaged(0).manifest_crc32c(), ManifestOf(fs_, folders_[0]).manifest_crc32c());
  EXPECT_EQ(manifest.best_size(), 0);
  EXPECT_EQ(manifest.data().step(), 30);
  EXPECT_EQ(manifest.files(0).extents_size(), 3);
  for (const TensorExtent& extent : manifest.files(0).extents()) {
    EXPECT_THAT(extent.name(), StartsWith("weight/"));
  }
}

TEST_F(Average, RefusesOtherModelsAndVocabulariesWithBothValues) {
  Manifest other = SampleManifest(40);
  other.set_inventory_hash("fedcba");
  ASSERT_TRUE(SaveCheckpoint(fs_, "run", other, Views(SampleTensors(40))).ok());
  folders_.push_back("run/step-00000040");
  const absl::Status status = AverageCheckpoints(fs_, folders_, "mean", {}).status();
  EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("different inventories: '0123456789abcdef' and 'fedcba'"));
}

TEST_F(Average, RefusesATensorOfAnotherShape) {
  std::vector<SampleTensor> tensors = SampleTensors(40);
  tensors[0].shape = {5, 3};
  ASSERT_TRUE(SaveCheckpoint(fs_, "run", SampleManifest(40), Views(tensors)).ok());
  folders_.push_back("run/step-00000040");
  const absl::Status status = AverageCheckpoints(fs_, folders_, "mean", {}).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("of another shape"));
}

TEST_F(Average, RefusesOneGivenTwice) {
  folders_.push_back(folders_.front());
  const absl::Status status = AverageCheckpoints(fs_, folders_, "mean", {}).status();
  EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
  EXPECT_THAT(std::string(status.message()), HasSubstr("are the same checkpoint"));
}

TEST_F(Average, OfDamageIsAnErrorAndLeavesNoCheckpoint) {
  fs_.FlipBit("run/step-00000020/tensors-00000-of-00001.bin", 17, 3);
  const absl::Status status = AverageCheckpoints(fs_, folders_, "mean", {}).status();
  EXPECT_EQ(GetExitCode(status), ExitCode::kCheckpoint);
  EXPECT_THAT(std::string(status.message()), HasSubstr("run/step-00000020"));
  EXPECT_FALSE(FindLatest(fs_, "mean")->has_value());
}

TEST_F(Average, DamageOfMomentsDoesNotMatter) {
  fs_.FlipBit("run/step-00000020/tensors-00000-of-00001.bin", 290, 3);
  EXPECT_TRUE(AverageCheckpoints(fs_, folders_, "mean", {}).ok());
}

}  // namespace
}  // namespace deepnet
