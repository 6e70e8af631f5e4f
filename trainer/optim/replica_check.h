// Checks that ranks which should hold the same weights do so.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include <ATen/core/Tensor.h>

#include "parallel/plan/shard.h"
#include "trainer/optim/groups.h"

namespace deepnet {

class ReplicaCheck {
 public:
  // `layout` says which elements of `whole` this rank holds. Neither is kept.
  ReplicaCheck(const Inventory& whole, const ShardLayout& layout);

  // Compares a CRC-32C of every tensor of `weights` over the replicas, and of every tied tensor
  // over the stages that hold it. Fails with ExitCode::kReplicasDisagree on every rank that sees a
  // difference; the text names the tensor and each rank's (of the world) checksum. Collective over
  // all groups; null groups are left out.
  absl::Status Run(const at::Tensor& weights, const Groups& groups) const;

 private:
  // A tensor that this rank holds, or that other stages may hold too.
  struct Compared {
    std::string name;
    bool here = false;
    bool tied = false;
    int64_t weight = 0, count = 0;  // elements of `weights`, if here
  };
  std::vector<Compared> compared_;  // in the order of the whole model
};

}  // namespace deepnet
