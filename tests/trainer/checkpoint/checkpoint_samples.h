// Small checkpoints for tests: a function of the step, so that a test knows what it should read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "parallel/base/file_system.h"
#include "tests/support/save_checkpoint.h"
#include "trainer/checkpoint/checkpoint.h"

namespace deepnet::testing {

// Owns its elements.
struct SampleTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> data;
};

// A matrix, a vector and a scalar-like one, as weight and two moments; values depend on `step`.
inline std::vector<SampleTensor> SampleTensors(int64_t step) {
  std::vector<SampleTensor> tensors;
  for (const char* prefix : {kWeightPrefix, kMoment1Prefix, kMoment2Prefix}) {
    tensors.push_back({std::string(prefix) + "encoder.layers.0.fc1.weight", {3, 5}, {}});
    tensors.push_back({std::string(prefix) + "encoder.layers.0.fc1.bias", {3}, {}});
    tensors.push_back({std::string(prefix) + "embed_tokens.weight", {7, 1}, {}});
  }
  for (size_t t = 0; t < tensors.size(); ++t) {
    size_t elements = 1;
    for (const int64_t size : tensors[t].shape) elements *= static_cast<size_t>(size);
    for (size_t i = 0; i < elements; ++i) {
      const float value = static_cast<float>(100 * step) + 10 * static_cast<float>(t) +
                          0.25f * static_cast<float>(i);
      tensors[t].data.push_back(value);
    }
  }
  return tensors;
}

inline std::vector<NamedTensor> Views(const std::vector<SampleTensor>& tensors) {
  std::vector<NamedTensor> views;
  for (const SampleTensor& tensor : tensors) {
    views.push_back({tensor.name, tensor.shape, tensor.data});
  }
  return views;
}

inline std::vector<MutableNamedTensor> MutableViews(std::vector<SampleTensor>& tensors) {
  std::vector<MutableNamedTensor> views;
  for (SampleTensor& tensor : tensors) views.push_back({tensor.name, tensor.shape, tensor.data});
  return views;
}

// Blocks of 32 bytes: tensors share blocks and reach over several.
inline Manifest SampleManifest(int64_t step) {
  Manifest manifest;
  manifest.set_step(step);
  manifest.mutable_run()->set_name("sample");
  manifest.mutable_data()->set_step(step);
  manifest.set_inventory_hash("0123456789abcdef");
  manifest.set_block_bytes(32);
  return manifest;
}

inline absl::Status SaveSample(FileSystem& fs, const std::string& run_folder, int64_t step) {
  return SaveCheckpoint(fs, run_folder, SampleManifest(step), Views(SampleTensors(step)));
}

// The checkpoint in `folder` holds the tensors of SampleTensors(step).
inline void ExpectHoldsSample(FileSystem& fs, const std::string& folder, int64_t step) {
  const absl::StatusOr<Manifest> manifest = ReadManifest(fs, folder);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->step(), step);
  std::vector<SampleTensor> tensors = SampleTensors(0);
  const absl::Status status = ReadTensors(fs, folder, *manifest, MutableViews(tensors));
  ASSERT_TRUE(status.ok()) << status;
  const std::vector<SampleTensor> expected = SampleTensors(step);
  for (size_t t = 0; t < tensors.size(); ++t) {
    EXPECT_EQ(tensors[t].data, expected[t].data) << tensors[t].name;
  }
}

}  // namespace deepnet::testing
