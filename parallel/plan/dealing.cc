#include "parallel/plan/dealing.h"

#include <algorithm>
#include <bit>

namespace deepnet {

MicrobatchRange MicrobatchesOf(int microbatches, int replicas, int replica) {
  const int each = microbatches / replicas, more = microbatches % replicas;
  const int first = replica * each + std::min(replica, more);
  return {first, first + each + (replica < more ? 1 : 0)};
}

int LocalVirtualReplicas(int virtual_replicas, int replicas) {
  return virtual_replicas % replicas == 0 ? std::max(1, virtual_replicas / replicas) : 1;
}

int DefaultVirtualReplicas(int microbatches, int replicas) {
  if (microbatches % replicas == 0) return replicas;
  auto virtual_replicas = static_cast<int>(std::bit_floor(static_cast<unsigned>(replicas)));
  while (microbatches % virtual_replicas != 0) virtual_replicas /= 2;
  return virtual_replicas;
}

}  // namespace deepnet
