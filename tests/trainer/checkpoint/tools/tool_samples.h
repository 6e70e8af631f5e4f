// Checkpoints for the tools' tests, kept in memory, and how to look at what tools made of them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/memory_file_system.h"
#include "tests/trainer/checkpoint/checkpoint_samples.h"
#include "trainer/checkpoint/checkpoint.h"

namespace deepnet::testing {

inline Manifest ManifestOf(FileSystem& fs, const std::string& folder) {
  absl::StatusOr<Manifest> manifest = ReadManifest(fs, folder);
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  return *std::move(manifest);
}

// The sample of SaveSample(), saved by `num_writers` who each hold an equal run of elements of
// every tensor (the last one what is left): tensors lie in all files. Writer 0 holds run `first`.
inline absl::Status SaveSpreadSample(FileSystem& fs, const std::string& run_folder, int64_t step,
                                     int num_writers, int first = 0) {
  const std::vector<SampleTensor> tensors = SampleTensors(step);
  Manifest manifest = SampleManifest(step);
  absl::Status status = BeginCheckpoint(fs, run_folder, step);
  for (int writer = 0; writer < num_writers && status.ok(); ++writer) {
    std::vector<NamedTensor> parts;
    for (const SampleTensor& tensor : tensors) {
      const size_t size = tensor.data.size(), n = static_cast<size_t>(num_writers);
      const size_t run = static_cast<size_t>((writer + first) % num_writers);
      const size_t begin = size * run / n;
      const size_t end = size * (run + 1) / n;
      if (begin == end) continue;
      parts.push_back({tensor.name, tensor.shape,
                       std::span<const float>(tensor.data).subspan(begin, end - begin),
                       static_cast<int64_t>(begin)});
    }
    const absl::StatusOr<ShardFile> file =
        WriteShard(fs, run_folder, step, {writer, num_writers, manifest.block_bytes()}, parts);
    if (!file.ok()) return file.status();
    *manifest.add_files() = *file;
  }
  return status.ok() ? CommitCheckpoint(fs, run_folder, std::move(manifest)) : status;
}

// Everything in a folder and below, sorted.
inline std::vector<std::string> FilesBelow(FileSystem& fs, const std::string& folder) {
  const absl::StatusOr<std::vector<std::string>> names = fs.List(folder);
  if (!names.ok()) return {folder};
  std::vector<std::string> files;
  for (const std::string& name : *names) {
    for (std::string& file : FilesBelow(fs, JoinPath(folder, name))) files.push_back(file);
  }
  return files;
}

}  // namespace deepnet::testing
