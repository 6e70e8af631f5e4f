// metrics.jsonl: one record a line (proto/report.proto), for programs.
//
// A record, {"kind":"train","step":1210,"loss":4.31,...}, is protobuf's JSON with the field names
// of the proto files and every field printed, zeros included, what is absent as null, with one
// difference: 64-bit counts are numbers, not strings. Protobuf reads these lines back.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"

namespace google::protobuf {
class Message;
}

namespace deepnet {

// Returns `message` on one line, without a newline at the end.
std::string ToJson(const google::protobuf::Message& message);

// Appends records to a file. Not thread-safe.
class MetricsWriter {
 public:
  // Creates the file if there is none (its folder must exist). Existing lines stay, except those
  // that a run resumed at `last_step` will write again and a torn last line. `fs` is borrowed.
  static absl::StatusOr<std::unique_ptr<MetricsWriter>> Open(FileSystem& fs,
                                                             const std::string& path,
                                                             int64_t last_step);

  // Appends one line. Fails naming the file, for example on a full disk; what was written of it is
  // left as a line of its own, and the next Write may succeed.
  absl::Status Write(const google::protobuf::Message& record);

  // Drops the lines that Open would drop.
  absl::Status GoBack(int64_t last_step);

 private:
  MetricsWriter(FileSystem& fs, const std::string& path) : fs_(fs), path_(path) {}

  FileSystem& fs_;
  const std::string path_;
  std::unique_ptr<AppendFile> file_;  // null after a failure to open it
  bool torn_ = false;                 // the last line may have no end
};

}  // namespace deepnet
