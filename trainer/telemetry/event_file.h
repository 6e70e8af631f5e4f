// TensorBoard's event files: the records of metrics.jsonl for those who look at their runs there.
//
//   train/loss, save/seconds, spike/loss, ...   every figure of a record, by its kind and name
//   validation/bleu, bleu/de-en, nll/de-en      means over directions, and each direction
//   sample/de-en.12                             line 12 of the dev set and its translation: text
//
// A figure that has only been zero so far is left out: most zeros of proto/report.proto say "not
// known". A file is TFRecords: the length of an Event (proto/tensorboard.proto) in 8 bytes, the
// masked CRC-32C of these, the Event, its masked CRC-32C in 4 bytes; all little-endian. Every start
// has a file of its own, numbered, so a record that a crash tears is the last of its file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include <google/protobuf/message.h>

#include "parallel/base/file_system.h"
#include "proto/tensorboard.pb.h"

namespace deepnet {

// Returns `bytes` as one TFRecord.
std::string ToTfRecord(std::string_view bytes);

// Appends records to a file. Not thread-safe.
class EventWriter {
 public:
  // Nothing is written before the first record; from then on, TensorBoard no longer shows steps
  // after `last_step` of earlier files.
  EventWriter(std::string folder, int64_t last_step)
      : folder_(std::move(folder)), forget_from_(last_step + 1) {}

  // Appends `record`, a message of proto/report.proto with `kind` and `step`, as one Event. Fails
  // naming the file, for example on a full disk; the next Write cuts off what was written of it,
  // and may succeed.
  absl::Status Write(const google::protobuf::Message& record);

  // With the next record, TensorBoard forgets the steps after `last_step`.
  void GoBack(int64_t last_step) { forget_from_ = last_step + 1; }

 private:
  absl::Status Open();
  tensorboard::Summary SummaryOf(const google::protobuf::Message& record);
  void AddFigures(const google::protobuf::Message& record, std::string_view prefix,
                  std::string_view suffix, tensorboard::Summary& summary);

  const std::unique_ptr<FileSystem> files_ = MakePosixFileSystem();
  const std::string folder_;
  std::string path_;                    // empty: not chosen
  std::unique_ptr<AppendFile> file_;    // null: to be opened
  int64_t good_bytes_ = 0;              // of the file: whole records
  std::optional<int64_t> forget_from_;  // a step; set: to be said before the next record
  std::set<std::string> shown_;         // tags of figures that were something else than zero
};

}  // namespace deepnet
