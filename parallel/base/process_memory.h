// Main memory of this process, as the kernel counts it: pages that are resident, shared libraries
// and mapped files included. For reports; a plan's bytes are counted elsewhere.
#pragma once

#include <cstdint>

namespace deepnet {

// Returns the most bytes that were resident at once since the process began, or since the one it
// replaced by exec began. Never less than an earlier answer.
int64_t PeakResidentBytes();

}  // namespace deepnet
