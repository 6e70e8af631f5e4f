// Options of all tools on checkpoints: a bound on their memory, and a callback for progress.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "parallel/comm/communicator.h"
#include "proto/checkpoint.pb.h"

namespace deepnet {

// Called now and then, from the calling thread, with the bytes done and the bytes in all.
using ToolProgress = std::function<void(int64_t done, int64_t total)>;

struct ToolOptions {
  // Bound on what the tool takes beyond the process as it starts, in bytes, however large the
  // checkpoint is. A tool that cannot keep it says so before it begins, with ExitCode::kDoesNotFit
  // and what it would need.
  int64_t memory_bytes = int64_t{256} << 20;
  ToolProgress progress = [](int64_t, int64_t) {};  // of this rank's share
  // The ranks that share the work of a tool that says so; every one calls it, sees the same files
  // and gets the same result. Null: this process alone.
  Communicator* world = nullptr;
};

// Bytes of buffers and all else that does not depend on the checkpoint.
inline constexpr int64_t kToolFixedBytes = int64_t{8} << 20;

// Bytes of memory for a byte of manifest.pb, at most, once it is parsed and indexed; and if another
// manifest of that size is made of it.
inline constexpr int64_t kReadManifestFactor = 10;
inline constexpr int64_t kWriteManifestFactor = 24;

// Fails with ExitCode::kDoesNotFit if `needed_bytes` are more than `options.memory_bytes`; `what`
// names what needs them.
absl::Status CheckMemory(int64_t needed_bytes, const ToolOptions& options, const std::string& what);

// ReadManifest(), after CheckMemory() of kReadManifestFactor.
absl::StatusOr<Manifest> ReadManifestWithin(FileSystem& fs, const std::string& checkpoint_folder,
                                            const ToolOptions& options);

// Bytes of all files of tensors.
int64_t TensorBytes(const Manifest& manifest);

}  // namespace deepnet
