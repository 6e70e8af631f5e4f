// Compares every byte of a checkpoint with its checksums, and finds all damage, not just the first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "trainer/checkpoint/tools/tool_options.h"

namespace deepnet {

// One place that is not as it was written.
struct Damage {
  std::string file;                       // its name in the checkpoint's folder
  int64_t block = -1;                     // -1: the file as a whole, missing or of another size
  int64_t begin = 0, end = 0;             // bytes in the file that are concerned
  std::string text = {};                  // a sentence, with the file's path
  std::vector<std::string> tensors = {};  // all that have bytes there
};

struct VerifyReport {
  std::string folder;
  int64_t step = 0;
  int64_t files = 0, blocks = 0, bytes = 0;  // as the manifest says
  int64_t tensors = 0;
  std::vector<Damage> damage =
      {};  // ascending by file and block; empty: every bit is as it was written
};

// Error only where the manifest itself cannot be used, or `options.memory_bytes` is too little;
// damage to tensors is in the report. Holds the manifest and 1 MiB.
absl::StatusOr<VerifyReport> VerifyCheckpoint(FileSystem& fs, const std::string& checkpoint_folder,
                                              const ToolOptions& options);

}  // namespace deepnet
