#include "trainer/data/utf8.h"

#include <cstdint>
#include <cstring>

namespace deepnet {
namespace {

bool IsContinuation(uint8_t byte) { return (byte & 0xC0) == 0x80; }

// Length of the well-formed multi-byte character at the front of s; 0 if there is none.
size_t MultiByteLength(const uint8_t* s, size_t size) {
  if (size < 2 || !IsContinuation(s[1])) return 0;
  if (s[0] >= 0xC2 && s[0] <= 0xDF) return 2;
  if (size < 3 || !IsContinuation(s[2])) return 0;
  if (s[0] >= 0xE0 && s[0] <= 0xEF) {
    const bool overlong = s[0] == 0xE0 && s[1] < 0xA0;
    const bool surrogate = s[0] == 0xED && s[1] > 0x9F;
    return overlong || surrogate ? 0 : 3;
  }
  if (size < 4 || !IsContinuation(s[3]) || s[0] < 0xF0 || s[0] > 0xF4) return 0;
  const bool overlong = s[0] == 0xF0 && s[1] < 0x90;
  const bool beyond = s[0] == 0xF4 && s[1] > 0x8F;
  return overlong || beyond ? 0 : 4;
}

}  // namespace

bool IsValidUtf8(std::string_view text) {
  const auto* s = reinterpret_cast<const uint8_t*>(text.data());
  size_t i = 0;
  while (i < text.size()) {
    if (s[i] == 0) return false;
    if (s[i] < 0x80) {
      ++i;
      continue;
    }
    const size_t length = MultiByteLength(s + i, text.size() - i);
    if (length == 0) return false;
    i += length;
  }
  return true;
}

std::string_view Trim(std::string_view text) {
  const auto is_blank = [](char c) { return c > 0 && c <= ' '; };
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace deepnet
