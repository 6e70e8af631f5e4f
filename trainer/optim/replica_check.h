// Ranks that should hold the same weights: do they?
#pragma once

#include "absl/status/status.h"
#include <ATen/core/Tensor.h>

#include "parallel/plan/shard.h"
#include "trainer/optim/groups.h"

namespace deepnet {

// Compares a CRC-32C of every tensor of `weights` over the replicas, and of every tied tensor over
// the stages that hold it. Fails with ExitCode::kReplicasDisagree on every rank that sees a
// difference; the text has the tensor and which ranks (of the world) hold what. Collective over all
// groups; nothing to do where they are null.
absl::Status CheckReplicas(const Inventory& whole, const ShardLayout& layout,
                           const at::Tensor& weights, const Groups& groups);

}  // namespace deepnet
