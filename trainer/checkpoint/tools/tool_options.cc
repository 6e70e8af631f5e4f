#include "trainer/checkpoint/tools/tool_options.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/base/units.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/format.h"

namespace deepnet {

absl::Status CheckMemory(int64_t needed_bytes, const ToolOptions& options,
                         const std::string& what) {
  if (needed_bytes <= options.memory_bytes) return absl::OkStatus();
  return WithExitCode(absl::ResourceExhaustedError(
                          absl::StrCat(what, " takes ", ByteText(needed_bytes),
                                       " of memory; allowed are ", ByteText(options.memory_bytes))),
                      ExitCode::kDoesNotFit);
}

absl::StatusOr<Manifest> ReadManifestWithin(FileSystem& fs, const std::string& checkpoint_folder,
                                            const ToolOptions& options) {
  const absl::StatusOr<int64_t> bytes = fs.Size(JoinPath(checkpoint_folder, kManifestFile));
  // Without a manifest there is a better error below.
  const int64_t needed = kReadManifestFactor * std::min(bytes.value_or(0), kMaxManifestBytes);
  RETURN_IF_ERROR(CheckMemory(kToolFixedBytes + needed, options,
                              absl::StrCat("the manifest of '", checkpoint_folder, "'")));
  return ReadManifest(fs, checkpoint_folder);
}

int64_t TensorBytes(const Manifest& manifest) {
  int64_t bytes = 0;
  for (const ShardFile& file : manifest.files()) bytes += file.bytes();
  return bytes;
}

}  // namespace deepnet
