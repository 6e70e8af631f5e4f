// Bytes in binary units.
#pragma once

#include <cstdint>
#include <string>

namespace deepnet {

inline constexpr double kMib = 1024.0 * 1024.0;
inline constexpr double kGib = 1024.0 * kMib;

// 1536 -> "1.5 KiB"; no fraction below 1 KiB.
std::string ByteText(int64_t bytes);

}  // namespace deepnet
