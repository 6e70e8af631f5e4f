// The parts of JSON that are easy to get wrong.
#pragma once

#include <string>
#include <string_view>

namespace deepnet {

// `text` between quotes, with quotes, backslashes and control characters escaped; every other byte
// as it is (JSON wants UTF-8: the caller's business).
std::string JsonQuoted(std::string_view text);

// `value` with at most so many significant digits; null where it is not finite: JSON has no word
// for that. 17 digits give any double back.
std::string JsonNumber(double value, int digits = 17);

}  // namespace deepnet
