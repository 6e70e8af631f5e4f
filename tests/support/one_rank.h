// The optimizer of a single rank that holds a whole model.
#pragma once

#include "tests/support/one_bucket.h"
#include "trainer/optim/optimizer.h"

namespace deepnet::testing {

inline OptimizerStep OneRankOptimizer(const OptimSpec& optim, const Inventory& inventory) {
  return {optim, inventory, MakeShardLayout(inventory, inventory, OneBucket(inventory), {}), {}};
}

}  // namespace deepnet::testing
