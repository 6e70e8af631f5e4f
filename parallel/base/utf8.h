// UTF-8: well-formedness, white space, lines, and what a terminal may get of it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace deepnet {

// Returns true if `text` is UTF-8 (RFC 3629): no overlong forms, no surrogates, nothing above
// U+10FFFF. NUL is a character like any other.
bool IsUtf8(std::string_view text);

// Returns true if `text` starts with the byte order mark of UTF-16, which no UTF-8 does.
bool HasUtf16Mark(std::string_view text);

// Returns `text` with every byte that belongs to no UTF-8 as "\xe4": names of files and hosts may
// hold anything.
std::string EscapedUtf8(std::string_view text);

// The rules of a text's beginning, lines and white space are the same for all commands. A line ends
// with "\n" or "\r\n", never with another character of Unicode's.

// Returns `text`, the beginning of a file, without UTF-8's byte order mark.
std::string_view WithoutMark(std::string_view text);

// Returns `text` without white space (IsUnicodeSpace and the spaces without a width, U+200B, U+2060
// and U+FEFF) and control characters but NUL at either end.
std::string_view Trim(std::string_view text);

// Returns true if nothing of `text` can be seen: it has white space, control characters and what
// Unicode calls "default ignorable" (U+00AD, joiners, marks of direction) alone.
bool IsBlank(std::string_view text);

// Returns `text` with a space for each tab and each character at which somebody ends a line
// (Python's str.splitlines() has most).
std::string OneLine(std::string_view text);

// Returns `text`, which somebody else may have made, as a terminal may get it: what is no UTF-8,
// control characters, Unicode's ends of lines and paragraphs, and orders to change the direction of
// writing are U+FFFD.
std::string ShownText(std::string_view text);

// The same where `text` has several lines or a table: ends of lines and tabs stay.
std::string ShownLines(std::string_view text);

// The rest is as Python's str has it, because sacreBLEU is written on top of it.

// Returns the code points of `text`. A byte that belongs to no valid UTF-8 sequence becomes 0xDC00
// + byte, alone (Python's "surrogateescape"), so that no input is refused and equal bytes stay
// equal.
std::u32string DecodeUtf8(std::string_view text);

// The inverse of DecodeUtf8.
std::string EncodeUtf8(std::u32string_view text);

// Returns str.isspace(): true for what str.split() and str.strip() cut at.
bool IsUnicodeSpace(char32_t c);

// str.rstrip() and str.strip().
std::string_view StripTrailingSpace(std::string_view text);
std::string_view StripSpace(std::string_view text);

// str.split(): the runs between white space; none of them is empty.
std::vector<std::string> SplitOnSpace(std::string_view text);

}  // namespace deepnet
