// Parts of docs/design/checkpoint_format.md that writer, reader and tools share: names, the bytes
// of a manifest, verified blocks of a tensor file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
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

// Files beside the checkpoints of a run that a model needs to translate.
inline constexpr char kRunTokenizerFile[] = "tokenizer.model";
inline constexpr char kRunLanguagesFile[] = "languages.txt";
inline constexpr char kMetricsFile[] = "metrics.jsonl";  // a folder that has one is a run's

// Writes one of the files that a model needs to translate into the folder of a run, which is made
// where it is missing. Refuses to replace other contents in a folder that is no run's yet
// (ExitCode::kBadConfig): they are somebody else's.
absl::Status WriteVocabularyFile(FileSystem& fs, const std::string& run_folder,
                                 const std::string& name, const std::string& contents);

// The ending of a checkpoint whose successor of the same step is about to take its name: still
// good. (One with kUnfinishedEnd is being written or deleted, and is never a checkpoint.)
inline constexpr char kReplacedEnd[] = ".deepnet-replaced";

// "tensors-00000-of-00001.bin"
std::string TensorFileName(int index, int count);

// Returns the bytes of manifest.pb: `manifest` and, last, its checksum.
std::string SerializeManifest(const Manifest& manifest);

// The inverse of SerializeManifest(). Fails, saying what is wrong but without a file name, unless
// the checksum is right and the contents are consistent: format version, sizes, extents inside
// their files, every tensor complete.
absl::StatusOr<Manifest> ParseManifest(std::string_view bytes);

// Returns a status or a result with ExitCode::kCheckpoint and `context` before its text. OK and a
// value stay as they are.
template <typename Result>
Result CheckpointError(Result result, const std::string& context) {
  return WithExitCode(WithPrefix(context, std::move(result)), ExitCode::kCheckpoint);
}

// Returns the elements of a shape from outside; -1 if that makes no sense.
int64_t CheckedElements(const google::protobuf::RepeatedField<int64_t>& shape);

// Writes a tensor file block by block, and adds bytes and checksums to its description.
class BlockWriter {
 public:
  // `file` and `description` are borrowed.
  BlockWriter(AppendFile& file, int64_t block_bytes, ShardFile& description)
      : file_(file), block_bytes_(static_cast<size_t>(block_bytes)), description_(description) {}

  absl::Status Append(std::string_view bytes);

  // Completes the last block, which may be shorter.
  absl::Status Finish();

 private:
  absl::Status Write(std::string_view bytes);
  void EndBlock();

  AppendFile& file_;
  const size_t block_bytes_;
  ShardFile& description_;
  std::string buffer_;        // not yet written, at most 1 MiB
  uint32_t block_crc_ = 0;    // of what the current block has in the file
  size_t block_written_ = 0;  // how many bytes that is
};

// Reads one tensor file of a checkpoint in blocks, and compares each with its checksum.
//
// Damage is kDataLoss, and its text names file, block, bytes and a tensor; a file system's own
// errors are passed on. One thread at a time.
class BlockReader {
 public:
  // `folder` holds the file that `file` describes. `fs` and `file` are borrowed.
  BlockReader(FileSystem& fs, const std::string& folder, const ShardFile& file, int64_t block_bytes)
      : fs_(fs), path_(JoinPath(folder, file.file())), file_(file), block_bytes_(block_bytes) {}

  // Fails unless the file has the size that its manifest says.
  absl::Status CheckSize();

  int64_t num_blocks() const { return file_.block_crc32c_size(); }
  int64_t Begin(int64_t block) const { return block * block_bytes_; }  // bytes in the file
  int64_t End(int64_t block) const;

  // Fills `into`, which is as long as the block; its contents are undefined after an error. Where
  // it is empty, only the checksum is compared: that takes 1 MiB, however long the block.
  absl::Status Read(int64_t block, std::span<char> into = {});

 private:
  FileSystem& fs_;
  const std::string path_;
  const ShardFile& file_;
  const int64_t block_bytes_;
};

// Returns the tensors that have bytes in [begin, end) of the file, in its order, each once.
std::vector<std::string> TensorsIn(const ShardFile& file, int64_t begin, int64_t end);

}  // namespace deepnet
