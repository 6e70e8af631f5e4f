// Lines of untrusted text, a bounded number of bytes at a time.
#pragma once

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace deepnet {

class LineChunkReader {
 public:
  static constexpr size_t kMaxLineBytes = size_t{1} << 20;
  static constexpr size_t kMaxChunkBytes = size_t{1} << 23;

  // Both must outlive the reader; `name` is how errors call the input ("standard input").
  LineChunkReader(std::istream& in, std::string name) : in_(in), name_(std::move(name)) {}

  // The next lines, without "\n" or "\r\n": `max_lines` of them, fewer if they hold more than
  // kMaxChunkBytes together or the input ends, none at its end. A last line without "\n" counts.
  // INVALID_ARGUMENT with ExitCode::kData names input and line of one that is no UTF-8 or is longer
  // than kMaxLineBytes.
  absl::StatusOr<std::vector<std::string>> ReadChunk(int max_lines);

  const std::string& name() const { return name_; }
  int64_t num_lines() const { return num_lines_; }  // read so far

 private:
  absl::StatusOr<bool> ReadLine(std::string& line);

  std::istream& in_;
  const std::string name_;
  int64_t num_lines_ = 0;
};

}  // namespace deepnet
