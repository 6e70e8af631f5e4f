// A checkpoint of a model, larger than the memory that may be spent on it, to be exported.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

#include "parallel/base/file_system.h"

namespace deepnet::testing {

struct LargeModel {
  int64_t bytes = 0;  // of its weights, at least
  int64_t block_bytes = 0;
};

// Saves a DEEPNORM model with tied embeddings, and its tokenizer beside it, below `run_folder`;
// weights only, all of them finite. Holds 4 MiB.
absl::Status SaveLargeModel(FileSystem& fs, const std::string& run_folder, const LargeModel& model);

}  // namespace deepnet::testing
