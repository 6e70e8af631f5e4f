// What a rank may use where the ClusterSpec does not say.
#pragma once

#include "proto/plan.pb.h"

namespace deepnet {

// `cluster` with device_memory_gib, if it is 0, set to this host's memory over its ranks
// (devices_per_node, at least 1).
ClusterSpec WithHostMemory(ClusterSpec cluster);

}  // namespace deepnet
