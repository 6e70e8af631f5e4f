#include "parallel/base/utf8.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_format.h"

namespace deepnet {
namespace {

constexpr char32_t kEscapedByte = 0xDC00;

struct Decoded {
  char32_t code_point;
  size_t bytes;  // at least 1
};

Decoded Escape(unsigned char byte) { return {kEscapedByte + byte, 1}; }

// The code point at the start of `text`, which is not empty.
Decoded DecodeFirst(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || bytes > text.size()) return Escape(lead);
  char32_t code_point = lead & (0xFF >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return Escape(lead);
    code_point = (code_point << 6) | (byte(i) & 0x3F);
  }
  const bool too_long = (bytes == 3 && code_point < 0x800) || (bytes == 4 && code_point < 0x10000);
  const bool surrogate = code_point >= 0xD800 && code_point <= 0xDFFF;
  if (too_long || surrogate || code_point > 0x10FFFF) return Escape(lead);
  return {code_point, bytes};
}

// Calls `visit(character, its bytes)` for one character after the other.
template <typename Visit>
void ForEachCharacter(std::string_view text, const Visit& visit) {
  while (!text.empty()) {
    const Decoded first = DecodeFirst(text);
    visit(first.code_point, text.substr(0, first.bytes));
    text.remove_prefix(first.bytes);
  }
}

bool IsEscapedByte(char32_t c) { return c >= kEscapedByte && c <= kEscapedByte + 0xFF; }

using CharTest = bool (*)(char32_t c);

std::string_view StripTrailing(std::string_view text, CharTest is_end) {
  while (!text.empty()) {
    size_t start = text.size() - 1;
    while (start > 0 && text.size() - start < 3 &&
           (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) {
      --start;
    }
    const Decoded last = DecodeFirst(text.substr(start));
    if (start + last.bytes != text.size() || !is_end(last.code_point)) break;
    text = text.substr(0, start);
  }
  return text;
}

std::string_view Strip(std::string_view text, CharTest is_end) {
  while (!text.empty()) {
    const Decoded first = DecodeFirst(text);
    if (!is_end(first.code_point)) break;
    text.remove_prefix(first.bytes);
  }
  return StripTrailing(text, is_end);
}

bool IsControl(char32_t c) { return c < 0x20 || (c >= 0x7F && c < 0xA0); }

bool IsLineSeparator(char32_t c) { return c == 0x2028 || c == 0x2029; }

bool IsTrimmed(char32_t c) {
  return (IsControl(c) && c != 0) || IsUnicodeSpace(c) || c == 0x200B || c == 0x2060 || c == 0xFEFF;
}

// Unicode's Default_Ignorable_Code_Point.
bool IsIgnorable(char32_t c) {
  struct Range {
    char32_t first, last;
  };
  static constexpr Range kRanges[] = {
      {0xAD, 0xAD},       {0x34F, 0x34F},   {0x61C, 0x61C},     {0x115F, 0x1160},
      {0x17B4, 0x17B5},   {0x180B, 0x180F}, {0x200B, 0x200F},   {0x202A, 0x202E},
      {0x2060, 0x206F},   {0x3164, 0x3164}, {0xFE00, 0xFE0F},   {0xFEFF, 0xFEFF},
      {0xFFA0, 0xFFA0},   {0xFFF0, 0xFFF8}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A},
      {0xE0000, 0xE0FFF},
  };
  return std::ranges::any_of(
      kRanges, [c](const Range& range) { return c >= range.first && c <= range.last; });
}

std::string Shown(std::string_view text, std::string_view kept) {
  std::u32string code_points = DecodeUtf8(text);
  for (char32_t& c : code_points) {
    if (c < 0x20 && kept.find(static_cast<char>(c)) != kept.npos) continue;
    const bool is_control = IsControl(c) || IsLineSeparator(c);
    const bool is_direction = (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
    if (is_control || is_direction || IsEscapedByte(c)) c = 0xFFFD;
  }
  return EncodeUtf8(code_points);
}

}  // namespace

bool IsUtf8(std::string_view text) {
  bool good = true;
  ForEachCharacter(text, [&](char32_t c, std::string_view) { good &= !IsEscapedByte(c); });
  return good;
}

bool HasUtf16Mark(std::string_view text) {
  return text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff");
}

std::string EscapedUtf8(std::string_view text) {
  std::string escaped;
  ForEachCharacter(text, [&](char32_t c, std::string_view bytes) {
    if (IsEscapedByte(c)) {
      absl::StrAppendFormat(&escaped, "\\x%02x", c - kEscapedByte);
    } else {
      escaped.append(bytes);
    }
  });
  return escaped;
}

std::string_view WithoutMark(std::string_view text) {
  constexpr std::string_view kMark = "\xef\xbb\xbf";
  if (text.starts_with(kMark)) text.remove_prefix(kMark.size());
  return text;
}

std::string_view Trim(std::string_view text) { return Strip(text, IsTrimmed); }

bool IsBlank(std::string_view text) {
  bool blank = true;
  ForEachCharacter(text, [&](char32_t c, std::string_view) {
    blank &= IsControl(c) || IsUnicodeSpace(c) || IsIgnorable(c);
  });
  return blank;
}

std::string OneLine(std::string_view text) {
  std::u32string code_points = DecodeUtf8(text);
  for (char32_t& c : code_points) {
    const bool is_end = (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85;
    if (is_end || IsLineSeparator(c)) c = ' ';
  }
  return EncodeUtf8(code_points);
}

std::u32string DecodeUtf8(std::string_view text) {
  std::u32string code_points;
  code_points.reserve(text.size());
  ForEachCharacter(text, [&](char32_t c, std::string_view) { code_points.push_back(c); });
  return code_points;
}

std::string EncodeUtf8(std::u32string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  const auto add = [&](char32_t value) { bytes.push_back(static_cast<char>(value)); };
  for (const char32_t c : text) {
    if (c < 0x80) {
      add(c);
    } else if (IsEscapedByte(c)) {
      add(c - kEscapedByte);
    } else {
      const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;  // bytes behind the first
      add((0xFF00 >> (more + 1) & 0xFF) | c >> 6 * more);
      for (int i = more - 1; i >= 0; --i) add(0x80 | (c >> 6 * i & 0x3F));
    }
  }
  return bytes;
}

std::string ShownText(std::string_view text) { return Shown(text, ""); }

std::string ShownLines(std::string_view text) { return Shown(text, "\n\t"); }

bool IsUnicodeSpace(char32_t c) {
  return c == 0x20 || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F) || c == 0x85 ||
         c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

std::string_view StripTrailingSpace(std::string_view text) {
  return StripTrailing(text, IsUnicodeSpace);
}

std::string_view StripSpace(std::string_view text) { return Strip(text, IsUnicodeSpace); }

std::vector<std::string> SplitOnSpace(std::string_view text) {
  std::vector<std::string> words;
  bool in_word = false;
  ForEachCharacter(text, [&](char32_t c, std::string_view bytes) {
    const bool is_space = IsUnicodeSpace(c);
    if (!is_space && !in_word) words.emplace_back();
    if (!is_space) words.back().append(bytes);
    in_word = !is_space;
  });
  return words;
}

}  // namespace deepnet
