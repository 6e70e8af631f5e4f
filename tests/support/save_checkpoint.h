// Saves a checkpoint with one writer.
#pragma once

#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"

#include "parallel/base/file_system.h"
#include "parallel/base/status_macros.h"
#include "trainer/checkpoint/checkpoint.h"

namespace deepnet {

// Writes the checkpoint of `manifest.step()`; `manifest` comes without files.
inline absl::Status SaveCheckpoint(FileSystem& fs, const std::string& run_folder, Manifest manifest,
                                   std::span<const NamedTensor> tensors) {
  const int64_t step = manifest.step();
  RETURN_IF_ERROR(BeginCheckpoint(fs, run_folder, step));
  ASSIGN_OR_RETURN(
      *manifest.add_files(),
      WriteShard(fs, run_folder, step, {.block_bytes = manifest.block_bytes()}, tensors));
  return CommitCheckpoint(fs, run_folder, std::move(manifest));
}

}  // namespace deepnet
