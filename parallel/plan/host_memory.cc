#include "parallel/plan/host_memory.h"

#include <unistd.h>

#include <algorithm>

namespace deepnet {

ClusterSpec WithHostMemory(ClusterSpec cluster) {
  if (cluster.device_memory_gib() > 0) return cluster;
  const double bytes =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  cluster.set_device_memory_gib(bytes / (1 << 30) / std::max(1, cluster.devices_per_node()));
  return cluster;
}

}  // namespace deepnet
