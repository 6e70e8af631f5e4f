#include "trainer/decode/line_chunk_reader.h"

#include <streambuf>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

// Bytes of the well-formed character that starts at text[0]; 0 if there is none.
size_t CharacterBytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  // The second byte alone rules out overlong forms, surrogates and code points above U+10FFFF.
  const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  return length;
}

}  // namespace

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = CharacterBytes(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

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
