// The parts of JSON that are easy to get wrong.
#pragma once

#include <string>
#include <string_view>

namespace deepnet {

// Returns `text` between quotes, with quotes, backslashes, control characters (DEL and those above
// it, U+0080 to U+009F, included) and U+2028 and U+2029 escaped, so that it is one line for every
// reader; every other byte as it is. The caller gives UTF-8, as JSON wants it.
std::string JsonQuoted(std::string_view text);

// Returns `value` with at most `digits` significant digits, or null where it is not finite, which
// JSON cannot say. 17 digits give any double back.
std::string JsonNumber(double value, int digits = 17);

}  // namespace deepnet
