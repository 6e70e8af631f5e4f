// The norm of a gradient that lies on many ranks, the same bits for every layout.
//
// Squares are added over the blocks of the whole model (SumBlockBorders), each by the one rank that
// holds the block's sum, and the blocks in the order of the whole Inventory.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include <ATen/core/Tensor.h>

#include "parallel/plan/shard.h"
#include "trainer/kernels/ops.h"
#include "trainer/optim/groups.h"

namespace deepnet {

class GradientNorm {
 public:
  GradientNorm(const Inventory& whole, const ShardLayout& layout);

  // The square root of the sum of squares of the whole gradient, of which `gradient` holds the
  // layout's extents. Not finite if an element is not. Collective over groups.world, every
  // rank gets the same.
  absl::StatusOr<double> Compute(Ops& ops, const at::Tensor& gradient, const Groups& groups) const;

 private:
  struct Run {
    int64_t gradient = 0, count = 0;  // elements
    size_t block = 0;                 // the first; all but the last are full
  };

  size_t num_blocks_;  // of the whole model
  std::vector<Run> runs_;
};

}  // namespace deepnet
