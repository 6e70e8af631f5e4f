#include "parallel/base/process_memory.h"

#include <sys/resource.h>

namespace deepnet {

int64_t PeakResidentBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * int64_t{1024};  // Linux counts KiB
}

}  // namespace deepnet
