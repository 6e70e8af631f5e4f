// metrics.jsonl: one record a line (proto/report.proto), for programs.
//
// A record is protobuf's JSON with the field names of the proto files and every field printed,
// zeros included, with one difference: 64-bit counts are numbers, not strings. Not-a-number and
// infinities are "NaN", "Infinity" and "-Infinity". Protobuf reads these lines back.
//
// Example:
//   ASSIGN_OR_RETURN(auto metrics, MetricsWriter::Open("runs/a/metrics.jsonl", 1200));
//   RETURN_IF_ERROR(metrics->Write(record));  // {"kind":"train","step":1210,"loss":4.31,...}
#pragma once

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

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
  // that a run resumed at `last_step` will write again (a greater "step") and a torn last line.
  static absl::StatusOr<std::unique_ptr<MetricsWriter>> Open(const std::string& path,
                                                             int64_t last_step);

  // Appends one line and flushes it. Fails naming the file, for example on a full disk; the part of
  // the line that was written is left as a line of its own, and the next Write may succeed.
  absl::Status Write(const google::protobuf::Message& record);

  // Drops the lines that Open would drop, for a run that goes back to `last_step`.
  absl::Status GoBack(int64_t last_step);

 private:
  explicit MetricsWriter(const std::string& path);

  const std::string path_;
  std::ofstream stream_;
  bool torn_ = false;  // the last line may have no end
};

}  // namespace deepnet
