// The optimizer of a single rank that holds a whole model.
#pragma once

#include "parallel/plan/shard.h"
#include "trainer/optim/optimizer.h"

namespace deepnet::testing {

inline OptimizerStep OneRankOptimizer(const OptimSpec& optim, const Inventory& inventory) {
  return {optim, inventory, MakeShardLayout(inventory, inventory, OneBucket(inventory), {}), {}};
}

}  // namespace deepnet::testing
