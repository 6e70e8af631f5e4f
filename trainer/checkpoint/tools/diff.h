// Compares the tensors of two checkpoints. How they are stored, counters and hashes are not
// compared: a checkpoint and its resharded copy are identical.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "trainer/checkpoint/tools/tool_options.h"

namespace deepnet {

struct TensorDifference {
  std::string name;
  int64_t num_elements = 0;
  // Elements with other bits: 0.0 and -0.0 differ, one NaN equals itself.
  int64_t num_different = 0;
  // Greatest |a - b|. Infinity where elements with other bits are not both finite.
  double max_absolute = 0.0;
  // max_absolute over the greatest |a| or |b| of the tensor; 0 where max_absolute is 0.
  double max_relative = 0.0;
};

struct ReshapedTensor {
  std::string name;
  std::vector<int64_t> shape_a, shape_b;
};

struct CheckpointDiff {
  std::string folder_a, folder_b;
  int64_t step_a = 0, step_b = 0;
  int64_t num_equal = 0;                         // tensors whose bits are equal
  std::vector<TensorDifference> different = {};  // in the order of a
  std::vector<ReshapedTensor> reshaped = {};     // their elements are not compared
  std::vector<std::string> only_a = {}, only_b = {};

  bool Identical() const {
    return different.empty() && reshaped.empty() && only_a.empty() && only_b.empty();
  }
};

// Compares the tensors whose names contain `filter`. Holds at least a block of each checkpoint.
// Damage is an error.
absl::StatusOr<CheckpointDiff> DiffCheckpoints(FileSystem& fs, const std::string& folder_a,
                                               const std::string& folder_b,
                                               const std::string& filter,
                                               const ToolOptions& options);

}  // namespace deepnet
