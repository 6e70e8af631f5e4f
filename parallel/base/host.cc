#include "parallel/base/host.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "absl/strings/str_format.h"

#include "parallel/base/crc32c.h"

namespace deepnet {

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown host";
}

std::string ProgramFingerprint() {
  std::ifstream program("/proc/self/exe", std::ios::binary);
  if (!program) return "unknown";
  uint32_t crc = 0;
  std::vector<char> block(1 << 20);
  while (program) {
    program.read(block.data(), static_cast<std::streamsize>(block.size()));
    crc = Crc32c({block.data(), static_cast<size_t>(program.gcount())}, crc);
  }
  return absl::StrFormat("%08x", crc);
}

int UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

int ThreadsPerRank(int ranks_on_host) {
  const int cores = UsableCores();
  const bool bound = cores < sysconf(_SC_NPROCESSORS_ONLN);
  return bound ? cores : std::max(1, cores / ranks_on_host);
}

}  // namespace deepnet
