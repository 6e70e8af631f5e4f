#include "tests/support/large_checkpoint.h"

#include <algorithm>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/checkpoint.h"

namespace deepnet::testing {
namespace {

constexpr int64_t kLongestTensor = int64_t{4} << 20;  // elements

// Sizes of parameters that have `total` elements together: a big matrix, a small one, a vector.
std::vector<int64_t> ParameterSizes(int64_t total) {
  std::vector<int64_t> sizes;
  for (int i = 0; total > 0; ++i) {
    const int64_t wanted = i % 3 == 0 ? kLongestTensor : i % 3 == 1 ? 333'333 : 1000;
    sizes.push_back(std::min(total, wanted));
    total -= sizes.back();
  }
  return sizes;
}

// The parts of all tensors whose elements lie in [begin, end) of the parameters laid end to end.
std::vector<NamedTensor> PartsOf(const std::vector<int64_t>& sizes, int64_t begin, int64_t end,
                                 std::span<const float> elements) {
  std::vector<NamedTensor> parts;
  for (const char* prefix : {kWeightPrefix, kMoment1Prefix, kMoment2Prefix}) {
    int64_t start = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      const int64_t from = std::max(begin - start, int64_t{0});
      const int64_t to = std::min(end - start, sizes[i]);
      start += sizes[i];
      if (from >= to) continue;
      parts.push_back({absl::StrCat(prefix, "layers.", i, ".weight"),
                       {sizes[i]},
                       elements.subspan(0, static_cast<size_t>(to - from)),
                       from});
    }
  }
  return parts;
}

}  // namespace

absl::Status SaveLargeCheckpoint(FileSystem& fs, const std::string& run_folder,
                                 const LargeCheckpoint& checkpoint) {
  std::vector<float> elements(static_cast<size_t>(kLongestTensor));
  std::mt19937 random(static_cast<unsigned>(checkpoint.step));
  for (float& element : elements) element = static_cast<float>(random()) * 0x1p-32f - 0.5f;
  const int64_t parameters = checkpoint.bytes / 12;
  const std::vector<int64_t> sizes = ParameterSizes(parameters);
  Manifest manifest;
  manifest.set_step(checkpoint.step);
  manifest.set_block_bytes(checkpoint.block_bytes);
  RETURN_IF_ERROR(BeginCheckpoint(fs, run_folder, checkpoint.step));
  for (int file = 0; file < checkpoint.num_files; ++file) {
    const int64_t begin = parameters * file / checkpoint.num_files;
    const int64_t end = parameters * (file + 1) / checkpoint.num_files;
    ASSIGN_OR_RETURN(*manifest.add_files(),
                     WriteShard(fs, run_folder, checkpoint.step,
                                {file, checkpoint.num_files, checkpoint.block_bytes},
                                PartsOf(sizes, begin, end, elements)));
  }
  return CommitCheckpoint(fs, run_folder, std::move(manifest));
}

}  // namespace deepnet::testing
