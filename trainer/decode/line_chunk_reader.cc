#include "trainer/decode/line_chunk_reader.h"

#include <streambuf>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "trainer/data/utf8.h"

namespace deepnet {
absl::StatusOr<std::vector<std::string>> LineChunkReader::ReadChunk(int max_lines) {
  std::vector<std::string> lines;
  size_t num_bytes = 0;
  while (static_cast<int>(lines.size()) < max_lines && num_bytes < kMaxChunkBytes) {
    std::string line;
    ASSIGN_OR_RETURN(const bool found, ReadLine(line));
    if (!found) break;
    num_bytes += line.size();
    lines.push_back(std::move(line));
  }
  return lines;
}

// Byte by byte from the buffer: std::getline would take a line of any length into memory.
absl::StatusOr<bool> LineChunkReader::ReadLine(std::string& line) {
  using Traits = std::streambuf::traits_type;
  std::streambuf& buffer = *in_.rdbuf();
  Traits::int_type next = buffer.sbumpc();
  if (Traits::eq_int_type(next, Traits::eof())) return false;
  ++num_lines_;
  const auto fail = [&](const std::string& what) {
    return WithExitCode(
        absl::InvalidArgumentError(absl::StrCat(name_, ", line ", num_lines_, ": ", what)),
        ExitCode::kData);
  };
  for (; !Traits::eq_int_type(next, Traits::eof()); next = buffer.sbumpc()) {
    const char c = Traits::to_char_type(next);
    if (c == '\n') break;
    if (line.size() == kMaxLineBytes) {
      return fail(absl::StrCat("longer than ", kMaxLineBytes, " bytes"));
    }
    line.push_back(c);
  }
  if (!line.empty() && line.back() == '\r') line.pop_back();
  if (!IsUtf8(line)) return fail("not UTF-8");
  return true;
}

}  // namespace deepnet
