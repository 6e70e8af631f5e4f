#include "launch/byte_size.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace deepnet {
namespace {

struct Unit {
  const char* name;
  double bytes;
};

constexpr Unit kUnits[] = {{"B", 1.0},
                           {"KiB", 1024.0},
                           {"MiB", 1024.0 * 1024.0},
                           {"GiB", 1024.0 * 1024.0 * 1024.0},
                           {"TiB", 1024.0 * 1024.0 * 1024.0 * 1024.0},
                           {"kB", 1e3},
                           {"MB", 1e6},
                           {"GB", 1e9},
                           {"TB", 1e12}};
constexpr double kMostBytes = 1e18;

absl::Status Mistake(const std::string& text, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "': ", what, ", such as 256MiB or 1.5GB"));
}

}  // namespace

absl::StatusOr<int64_t> ParseByteSize(const std::string& text) {
  const std::string trimmed(absl::StripAsciiWhitespace(text));
  const size_t digits = std::min(trimmed.find_first_not_of("0123456789.+-"), trimmed.size());
  double number = 0.0;
  if (!absl::SimpleAtod(trimmed.substr(0, digits), &number)) {
    return Mistake(text, "a number and a unit are needed");
  }
  std::string name = trimmed.substr(digits);
  absl::StripAsciiWhitespace(&name);
  if (name.empty()) return Mistake(text, "a unit is needed");
  for (const Unit& unit : kUnits) {
    if (!absl::EqualsIgnoreCase(name, unit.name)) continue;
    const double bytes = std::floor(number * unit.bytes);
    if (bytes >= 1.0 && bytes <= kMostBytes) return static_cast<int64_t>(bytes);
    return Mistake(text, "from 1 B to 1,000,000 TB are allowed");
  }
  return Mistake(text, absl::StrCat("unknown unit '", name,
                                    "'; there are B, KiB, MiB, GiB, TiB, kB, MB, GB, TB"));
}

}  // namespace deepnet
