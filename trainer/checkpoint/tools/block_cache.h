// The blocks of a checkpoint that were used last and, read beside their use, the one that comes
// after: so reading and comparing cost a tool nothing that has enough to do with the bytes.
//
// Example:
//   BlockCache blocks(fs, "run/step-00000010", manifest);
//   blocks.Hold(4, /*ahead=*/true);
//   ASSIGN_OR_RETURN(const std::string_view bytes, blocks.Get(file, block));
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "proto/checkpoint.pb.h"
#include "trainer/checkpoint/background_task.h"

namespace deepnet {

// Every byte handed out was compared with its block's checksum. One thread at a time; `fs` is also
// read from a thread of this. Errors carry ExitCode::kCheckpoint; damage names file, block and
// tensor.
class BlockCache {
 public:
  // `fs` and `manifest`, the one of the checkpoint in `folder`, are borrowed.
  BlockCache(FileSystem& fs, std::string folder, const Manifest& manifest);

  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  // How many blocks may be held, at least 1, and whether one of them may be the next of a file, for
  // which it takes 2. As made: 1. Before the first Get.
  void Hold(int64_t num_blocks, bool ahead);

  // Bytes of block `block` of Manifest.files(file), valid until the next call.
  absl::StatusOr<std::string_view> Get(int file, int64_t block);

 private:
  struct Held {
    int file = -1;  // -1: nothing, or nothing good
    int64_t block = -1;
    int64_t last_use = 0;
    std::vector<char> bytes = {};
  };

  Held* Find(int file, int64_t block);
  Held& MakeRoom(int file, int64_t block, const Held* in_use);
  absl::Status Read(int file, int64_t block, Held& held);
  absl::Status TakeComing();
  void ReadAhead(const Held& in_use);

  FileSystem& fs_;
  const std::string folder_;
  const Manifest& manifest_;
  size_t most_ = 1;
  bool ahead_ = false;
  int64_t uses_ = 0;
  std::vector<std::unique_ptr<Held>> held_;
  Held* coming_ = nullptr;  // is task_'s until TakeComing
  BackgroundTask task_;     // last: it uses the others
};

}  // namespace deepnet
