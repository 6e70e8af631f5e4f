// The bucket of a rank that does not cut its gradient.
#pragma once

#include <vector>

#include "parallel/plan/shard.h"

namespace deepnet::testing {

inline std::vector<GradientBucket> OneBucket(const Inventory& held) {
  GradientBucket all;
  for (const Layer& layer : held.layers) {
    for (const int p : layer.parameters) all.count += held.parameters[p].NumElements();
  }
  return {all};
}

}  // namespace deepnet::testing
