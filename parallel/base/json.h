// The one part of JSON that is easy to get wrong.
#pragma once

#include <string>
#include <string_view>

namespace deepnet {

// `text` between quotes, with quotes, backslashes and control characters escaped; every other byte
// as it is (JSON wants UTF-8: the caller's business).
std::string JsonQuoted(std::string_view text);

}  // namespace deepnet
