// Bytes in binary units.
#pragma once

namespace deepnet {

inline constexpr double kMib = 1024.0 * 1024.0;
inline constexpr double kGib = 1024.0 * kMib;

}  // namespace deepnet
