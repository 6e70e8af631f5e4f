#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"
#include "tests/trainer/checkpoint/tools/tool_samples.h"
#include "trainer/checkpoint/tools/inspect.h"

namespace deepnet {
namespace {

using deepnet::testing::MemoryFileSystem;
using deepnet::testing::SampleManifest;
using deepnet::testing::SampleTensor;
using deepnet::testing::SampleTensors;
using deepnet::testing::SaveSpreadSample;
using deepnet::testing::Views;
using ::testing::ElementsAre;

class Diff : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(SaveSpreadSample(fs_, "a", 3, 1).ok()); }

  // Compares the sample with `tensors`.
  CheckpointDiff With(const std::vector<SampleTensor>& tensors, const std::string& filter = "") {
    EXPECT_TRUE(SaveCheckpoint(fs_, "b", SampleManifest(4), Views(tensors)).ok());
    auto diff = DiffCheckpoints(fs_, "a/step-00000003", "b/step-00000004", filter, {});
    EXPECT_TRUE(diff.ok()) << diff.status();
    return *std::move(diff);
  }

  MemoryFileSystem fs_;
  std::vector<SampleTensor> tensors_ = SampleTensors(3);
};

TEST_F(Diff, OfTheSameTensorsInOtherFilesIsNothing) {
  ASSERT_TRUE(SaveSpreadSample(fs_, "b", 3, 3).ok());
  const auto diff = DiffCheckpoints(fs_, "a/step-00000003", "b/step-00000003", "", {});
  ASSERT_TRUE(diff.ok()) << diff.status();
  EXPECT_TRUE(diff->Identical());
  EXPECT_EQ(diff->num_equal, 9);
}

TEST_F(Diff, HasTheGreatestDistanceOfEachTensorAndItsShareOfTheGreatestElement) {
  tensors_[1].data[0] += 1.0f;
  tensors_[1].data[2] -= 2.0f;  // of 310, 310.25, 310.5
  const CheckpointDiff diff = With(tensors_);
  ASSERT_EQ(diff.different.size(), 1u);
  EXPECT_EQ(diff.different[0].name, "weight/encoder.layers.0.fc1.bias");
  EXPECT_EQ(diff.different[0].num_different, 2);
  EXPECT_EQ(diff.different[0].max_absolute, 2.0);
  EXPECT_EQ(diff.different[0].max_relative, 2.0 / 311.0);
  EXPECT_EQ(diff.num_equal, 8);
  EXPECT_FALSE(diff.Identical());
}

// Compared are pieces of 65,536 elements, in runs of 1024.
TEST_F(Diff, FindsADifferenceAnywhereInALongTensor) {
  constexpr int kSize = 2 * 65536 + 1500;
  std::vector<SampleTensor> tensors = {{"weight/long", {kSize}, std::vector<float>(kSize, 4.0f)}};
  Manifest manifest = SampleManifest(3);
  manifest.set_block_bytes(1 << 16);
  ASSERT_TRUE(SaveCheckpoint(fs_, "a", manifest, Views(tensors)).ok());
  const std::vector<int> places = {0, 1023, 1024, 65535, 65536, 131072, kSize - 477, kSize - 1};
  for (size_t i = 0; i < places.size(); ++i) {
    tensors[0].data[static_cast<size_t>(places[i])] += static_cast<float>(i + 1);
    manifest.set_step(4);
    ASSERT_TRUE(SaveCheckpoint(fs_, "b", manifest, Views(tensors)).ok());
    std::vector<int64_t> done;
    ToolOptions options;
    options.progress = [&](int64_t bytes, int64_t total) {
      done.push_back(bytes);
      EXPECT_EQ(total, 4 * kSize);
    };
    const auto diff = DiffCheckpoints(fs_, "a/step-00000003", "b/step-00000004", "", options);
    ASSERT_TRUE(diff.ok()) << diff.status();
    ASSERT_EQ(diff->different.size(), 1u);
    EXPECT_EQ(diff->different[0].num_elements, kSize);
    EXPECT_EQ(diff->different[0].num_different, static_cast<int64_t>(i + 1));
    EXPECT_EQ(diff->different[0].max_absolute, static_cast<double>(i + 1));
    EXPECT_EQ(diff->different[0].max_relative, (i + 1) / (i + 5.0));
    EXPECT_EQ(diff->step_a, 3);
    EXPECT_EQ(diff->step_b, 4);
    EXPECT_THAT(done, ElementsAre(4 << 16, 8 << 16, 4 * kSize));
  }
}

TEST_F(Diff, AnInfinityThatBothHaveIsNoMeasure) {
  tensors_[1].data[1] = std::numeric_limits<float>::infinity();
  ASSERT_TRUE(SaveCheckpoint(fs_, "a", SampleManifest(3), Views(tensors_)).ok());
  tensors_[1].data[0] += 1.0f;
  const CheckpointDiff diff = With(tensors_);
  ASSERT_EQ(diff.different.size(), 1u);
  EXPECT_EQ(diff.different[0].max_relative, 1.0 / 311.0);
}

TEST_F(Diff, NamesMissingAndReshapedTensors) {
  tensors_[0].shape = {5, 3};
  tensors_[2].name = "weight/new";
  const CheckpointDiff diff = With(tensors_);
  EXPECT_THAT(diff.only_a, ElementsAre("weight/embed_tokens.weight"));
  EXPECT_THAT(diff.only_b, ElementsAre("weight/new"));
  ASSERT_EQ(diff.reshaped.size(), 1u);
  EXPECT_THAT(diff.reshaped[0].shape_a, ElementsAre(3, 5));
  EXPECT_THAT(diff.reshaped[0].shape_b, ElementsAre(5, 3));
  EXPECT_EQ(diff.num_equal, 7);
}

TEST_F(Diff, ComparesBitsSoThatSignsOfZeroAndNotANumberCount) {
  tensors_[0].data[0] = 0.0f;
  tensors_[0].data[1] = std::numeric_limits<float>::quiet_NaN();
  ASSERT_TRUE(SaveCheckpoint(fs_, "a", SampleManifest(3), Views(tensors_)).ok());
  EXPECT_TRUE(With(tensors_).Identical());
  tensors_[0].data[0] = -0.0f;
  const CheckpointDiff zero = With(tensors_);
  ASSERT_EQ(zero.different.size(), 1u);
  EXPECT_EQ(zero.different[0].max_absolute, 0.0);
  EXPECT_EQ(zero.different[0].max_relative, 0.0);
  tensors_[0].data[1] = 1.0f;
  EXPECT_TRUE(std::isinf(With(tensors_).different[0].max_absolute));
}

TEST_F(Diff, LooksOnlyAtTensorsThatTheFilterNames) {
  tensors_[1].data[0] += 1.0f;
  EXPECT_TRUE(With(tensors_, "embed_tokens").Identical());
  EXPECT_EQ(With(tensors_, "embed_tokens").num_equal, 3);
  tensors_.push_back(tensors_[2]);
  tensors_.back().name = "weight/new";
  EXPECT_THAT(With(tensors_, "embed_tokens").only_b, ElementsAre());
  EXPECT_THAT(With(tensors_, "new").only_b, ElementsAre("weight/new"));
  EXPECT_FALSE(With(tensors_, "weight/").Identical());
}

TEST_F(Diff, WithDamageIsAnError) {
  ASSERT_TRUE(SaveSpreadSample(fs_, "b", 3, 1).ok());
  fs_.FlipBit("b/step-00000003/tensors-00000-of-00001.bin", 299, 0);
  const auto diff = DiffCheckpoints(fs_, "a/step-00000003", "b/step-00000003", "", {});
  EXPECT_EQ(GetExitCode(diff.status()), ExitCode::kCheckpoint);
}

}  // namespace
}  // namespace deepnet
