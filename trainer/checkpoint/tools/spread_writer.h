// Writes a checkpoint as one stream of tensors that is cut into files of equal size, without ever
// holding a tensor. The order of calls and of what becomes durable is that of checkpoint.h.
//
// Example:
//   SpreadWriter writer(fs, "copy", {.num_files = 4, .num_elements = 1000}, manifest);
//   RETURN_IF_ERROR(writer.Begin());
//   for (const StoredTensor& tensor : tensors) RETURN_IF_ERROR(writer.Append(tensor, bytes));
//   RETURN_IF_ERROR(writer.Commit());
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"

#include "parallel/base/file_system.h"
#include "proto/checkpoint.pb.h"
#include "trainer/checkpoint/background_task.h"
#include "trainer/checkpoint/tools/tensor_reader.h"

namespace deepnet {

struct SpreadShape {
  int num_files = 1;
  int64_t num_elements = 0;  // of all tensors together; at least num_files
};

// File i of n gets elements [i * all / n, (i + 1) * all / n) of the stream: sizes differ by one
// element at most, and at most n - 1 tensors lie in two files. Errors carry ExitCode::kCheckpoint.
class SpreadWriter {
 public:
  // `manifest` describes the checkpoint, its files left out; its block_bytes are the files' own.
  SpreadWriter(FileSystem& fs, std::string run_folder, const SpreadShape& shape, Manifest manifest);

  // Unless Commit() succeeded, deletes what was written; a failure to do so is not reported.
  ~SpreadWriter();

  SpreadWriter(const SpreadWriter&) = delete;
  SpreadWriter& operator=(const SpreadWriter&) = delete;

  absl::Status Begin();

  // Adds bytes of `tensor` where those before ended. A tensor must be complete before the next one.
  absl::Status Append(const StoredTensor& tensor, std::string_view bytes);

  // Completes the checkpoint, which exists from here on; call it after all of shape.num_elements.
  absl::Status Commit();

 private:
  absl::Status AppendToFile(const StoredTensor& tensor, std::string_view bytes);
  absl::Status OpenFile();
  absl::Status Flush();
  absl::Status Write(std::string_view bytes);
  absl::Status FinishFile();
  absl::Status AwaitSync();
  void CloseExtent();
  int64_t FileEnd() const;  // bytes of the stream

  FileSystem& fs_;
  const std::string run_folder_;
  const std::string temporary_folder_;
  const SpreadShape shape_;
  Manifest manifest_;
  bool begun_ = false;
  bool committed_ = false;
  int64_t position_ = 0;  // bytes of the stream that were appended

  std::unique_ptr<AppendFile> file_;  // the last of manifest_.files, while it is written
  std::string buffer_;                // its bytes that are not yet written
  uint32_t block_crc_ = 0;            // of its last block so far
  int64_t block_filled_ = 0;          // bytes of its last block so far
  int64_t extent_bytes_ = 0;          // of its last extent so far; 0: none is open
  int64_t tensor_bytes_ = 0;          // of the current tensor that were appended
  BackgroundTask syncing_;            // makes the file before durable while the next is written
};

// Fails with ExitCode::kBadConfig unless a tool may write into `run_folder`: it does not exist, or
// is empty but for what an earlier attempt left.
absl::Status CheckOutputFolder(FileSystem& fs, const std::string& run_folder);

// Copies what a run folder needs beside its checkpoints to translate with them (tokenizer and list
// of languages), where `from` has it. Makes `to`.
absl::Status CopyVocabulary(FileSystem& fs, const std::string& from, const std::string& to);

}  // namespace deepnet
