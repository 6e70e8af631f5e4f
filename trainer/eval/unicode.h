// The few facts about Unicode that scoring needs, as Python's str has them, because sacreBLEU is
// written on top of it. UTF-8 in and out.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace deepnet {

// Code points of `text`. A byte that belongs to no valid UTF-8 sequence becomes 0xDC00 + byte,
// alone (Python's "surrogateescape"), so that no input is refused and equal bytes stay equal.
std::u32string DecodeUtf8(std::string_view text);

// The inverse of DecodeUtf8.
std::string EncodeUtf8(std::u32string_view text);

// Whether str.isspace() holds: what str.split() and str.strip() cut at.
bool IsUnicodeSpace(char32_t c);

// str.rstrip() and str.strip().
std::string_view StripTrailingSpace(std::string_view text);
std::string_view StripSpace(std::string_view text);

// str.split(): the runs between white space; none of them is empty.
std::vector<std::string> SplitOnSpace(std::string_view text);

}  // namespace deepnet
