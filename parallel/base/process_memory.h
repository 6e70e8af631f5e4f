// Main memory of this process, as the kernel counts it: pages that are resident, shared libraries
// and mapped files included. What a program reports; a plan's bytes are counted elsewhere.
#pragma once

#include <cstdint>

namespace deepnet {

// Bytes resident now; 0 where the system does not say (no /proc).
int64_t ResidentBytes();

// The most that ever was resident since the process began, or since the one it replaced by exec
// began. Never less than an earlier answer.
int64_t PeakResidentBytes();

}  // namespace deepnet
