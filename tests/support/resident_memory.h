// Main memory of this process now; parallel/base/host.h has the peak.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace deepnet::testing {

// Returns the resident bytes; 0 where the system does not say (no /proc).
inline int64_t ResidentBytes() {
  int64_t all_pages = 0, resident_pages = 0;
  std::ifstream statm("/proc/self/statm");
  if (!(statm >> all_pages >> resident_pages)) return 0;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

}  // namespace deepnet::testing
