// Amounts of memory as people type them.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace deepnet {

// "256MiB", "1.5 GiB", "64MB": a number and a unit, B, KiB, MiB, GiB or TiB (powers of 1,024) or
// kB, MB, GB or TB (of 1,000), in any case, blanks between them allowed. Bytes, rounded down.
// INVALID_ARGUMENT says what is wrong: no number, no or an unknown unit, nothing or too much.
absl::StatusOr<int64_t> ParseByteSize(const std::string& text);

}  // namespace deepnet
