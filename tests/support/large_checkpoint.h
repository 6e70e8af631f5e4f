// Saves checkpoints that are larger than the memory that tools may take.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

#include "parallel/base/file_system.h"

namespace deepnet::testing {

struct LargeCheckpoint {
  int64_t bytes = 0;        // of all tensors, approximately
  int num_files = 4;        // each with a run of every kind's elements, as sharded ranks save
  int64_t block_bytes = 0;  // 0: the default
  int64_t step = 1;         // the elements depend on it
};

// Saves it below `run_folder`: weights and two moments of parameters of 1,000 to 4 million
// elements. Holds 16 MiB.
absl::Status SaveLargeCheckpoint(FileSystem& fs, const std::string& run_folder,
                                 const LargeCheckpoint& checkpoint);

}  // namespace deepnet::testing
