// Well-formedness of UTF-8, and trimming.
#pragma once

#include <string_view>

namespace deepnet {

// Whether `text` is UTF-8 (RFC 3629): no overlong forms, no surrogates, nothing above U+10FFFF.
// NUL is a character like any other.
bool IsUtf8(std::string_view text);

// `text` without spaces and control characters (bytes 0x01 to 0x20) at either end.
std::string_view Trim(std::string_view text);

}  // namespace deepnet
