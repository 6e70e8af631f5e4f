#include "parallel/base/process_memory.h"

#include <unistd.h>

#include <fstream>

#include <sys/resource.h>

namespace deepnet {

int64_t ResidentBytes() {
  int64_t all_pages = 0, resident_pages = 0;
  std::ifstream statm("/proc/self/statm");
  if (!(statm >> all_pages >> resident_pages)) return 0;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

int64_t PeakResidentBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * int64_t{1024};  // Linux counts KiB
}

}  // namespace deepnet
