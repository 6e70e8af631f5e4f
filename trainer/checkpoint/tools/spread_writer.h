// Writes a checkpoint as one stream of tensors that is cut into files of equal size, without ever
// holding a tensor. The order of calls and of what becomes durable is that of checkpoint.h.
//
// Example:
//   SpreadWriter writer(fs, "copy", {.num_files = 4, .num_elements = 1000}, manifest);
//   RETURN_IF_ERROR(writer.Begin());
//   for (const StoredTensor& tensor : tensors) RETURN_IF_ERROR(writer.Append(tensor, bytes));
//   ASSIGN_OR_RETURN(const Manifest files, writer.Finish());  // of this writer
//   ASSIGN_OR_RETURN(const std::string folder, writer.Commit(files));
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "proto/checkpoint.pb.h"
#include "trainer/checkpoint/background_task.h"
#include "trainer/checkpoint/format.h"
#include "trainer/checkpoint/tools/tensor_reader.h"

namespace deepnet {

struct SpreadShape {
  int num_files = 1;
  int64_t num_elements = 0;  // of all tensors together; at least num_files
};

// Returns the element of the stream with which file `file` begins: file i of n gets elements
// [i * all / n, (i + 1) * all / n), so sizes differ by one element at most, and at most n - 1
// tensors lie in two files.
int64_t FirstElementOf(const SpreadShape& shape, int file);

// Errors carry ExitCode::kCheckpoint.
class SpreadWriter {
 public:
  // `manifest` describes the checkpoint, its files left out; its block_bytes are the files' own.
  SpreadWriter(FileSystem& fs, std::string run_folder, const SpreadShape& shape, Manifest manifest);

  // Unless Commit() succeeded, deletes what was written, where this writer has called Begin(); a
  // failure to do so is not reported.
  ~SpreadWriter();

  SpreadWriter(const SpreadWriter&) = delete;
  SpreadWriter& operator=(const SpreadWriter&) = delete;

  const SpreadShape& shape() const { return shape_; }

  // Makes the temporary folder.
  absl::Status Begin();

  // This writer, one of several, writes files [first, end) alone; its first bytes are those of
  // element `first_element` of a tensor. One of the writers calls Begin() before the others write,
  // and Commit() when they have finished.
  void Share(int first, int end, int64_t first_element);

  // Adds bytes of `tensor` where those before ended. A tensor must be complete before the next one.
  absl::Status Append(const StoredTensor& tensor, std::string_view bytes);

  // Returns a manifest with nothing but the files of this writer, which are durable then.
  absl::StatusOr<Manifest> Finish();

  // Completes the checkpoint of all `files`, of every writer's Finish(). It exists from here on;
  // returns its folder.
  absl::StatusOr<std::string> Commit(const Manifest& files);

 private:
  absl::Status OpenFile();
  absl::Status FinishFile();
  absl::Status WithContext(const absl::Status& status) const;
  int64_t FileEnd() const;  // bytes of the stream, for the last of manifest_.files

  FileSystem& fs_;
  const std::string run_folder_;
  const std::string folder_;
  const std::string temporary_folder_;
  const SpreadShape shape_;
  Manifest manifest_;
  int first_file_ = 0;
  int end_file_;
  bool owns_folder_ = false;
  int64_t position_ = 0;  // bytes of the stream up to what was appended

  std::unique_ptr<AppendFile> file_;   // the last of manifest_.files, while it is written
  std::optional<BlockWriter> blocks_;  // of file_
  int64_t tensor_bytes_ = 0;           // of the current tensor that were appended
  BackgroundTask syncing_;             // makes the file before durable while the next is written
};

// Fails with ExitCode::kBadConfig unless a tool may write into `folder`: it does not exist, or is
// empty but for what an earlier attempt to write a run folder left, where `may_be_left_over`.
absl::Status CheckOutputFolder(FileSystem& fs, const std::string& folder,
                               bool may_be_left_over = true);

// Copies what a run folder needs beside its checkpoints to translate with them (tokenizer and list
// of languages), where `from` has it. Makes `to`.
absl::Status CopyVocabulary(FileSystem& fs, const std::string& from, const std::string& to);

}  // namespace deepnet
