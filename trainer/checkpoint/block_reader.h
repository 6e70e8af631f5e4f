// One tensor file of a checkpoint, read in blocks that are each compared with their checksum.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "parallel/base/file_system.h"
#include "proto/checkpoint.pb.h"

namespace deepnet {

// Damage is kDataLoss, and its text names file, block, bytes and a tensor; a file system's own
// errors are passed on. One thread at a time.
class BlockReader {
 public:
  // `path` is the file that `file` describes. `fs` and `file` are borrowed.
  BlockReader(FileSystem& fs, std::string path, const ShardFile& file, int64_t block_bytes);

  // Whether the file has the size that its manifest says.
  absl::Status CheckSize();

  int64_t num_blocks() const { return file_.block_crc32c_size(); }
  int64_t Begin(int64_t block) const { return block * block_bytes_; }  // bytes in the file
  int64_t End(int64_t block) const;

  // Fills `into`, as long as the block. After an error its contents are not to be used.
  absl::Status Read(int64_t block, std::span<char> into);

  // Compares a block's checksum. Holds 1 MiB, however long the block.
  absl::Status Verify(int64_t block);

 private:
  absl::Status Compare(int64_t block, int64_t bytes_read, uint32_t checksum) const;

  FileSystem& fs_;
  const std::string path_;
  const ShardFile& file_;
  const int64_t block_bytes_;
};

// The tensors that have bytes in [begin, end) of the file, in its order, without repetition.
std::vector<std::string> TensorsIn(const ShardFile& file, int64_t begin, int64_t end);

}  // namespace deepnet
