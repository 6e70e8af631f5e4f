// Constants and small pieces of docs/design/checkpoint_format.md that writer and reader share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "proto/checkpoint.pb.h"

namespace deepnet {

inline constexpr int32_t kFormatVersion = 1;
inline constexpr int64_t kDefaultBlockBytes = int64_t{16} << 20;
inline constexpr int64_t kMaxBlockBytes = int64_t{1} << 30;
inline constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;
inline constexpr int64_t kElementBytes = 4;
inline constexpr char kManifestFile[] = "manifest.pb";
inline constexpr char kLatestPointer[] = "latest";
inline constexpr char kBestPointerPrefix[] = "best-";

// Beside the checkpoints of a run: what a model needs to translate.
inline constexpr char kRunTokenizerFile[] = "tokenizer.model";
inline constexpr char kRunLanguagesFile[] = "languages.txt";

// A folder being written or deleted: never a checkpoint, removed by the next save.
inline constexpr char kTemporarySuffix[] = ".tmp";

// A checkpoint whose successor of the same step is about to take its name: still good.
inline constexpr char kReplacedSuffix[] = ".old";

// "tensors-00000-of-00001.bin"
std::string TensorFileName(int index, int count);

// The bytes of manifest.pb: `manifest` and, last, its checksum.
std::string SerializeManifest(const Manifest& manifest);

// The inverse, with the checksum verified and the contents consistent: format version, sizes,
// extents inside their files, every tensor whole. Error: says what is wrong, without a file name.
absl::StatusOr<Manifest> ParseManifest(std::string_view bytes);

// `status` with ExitCode::kCheckpoint and `context` before its text.
absl::Status CheckpointError(const absl::Status& status, const std::string& context);

}  // namespace deepnet
