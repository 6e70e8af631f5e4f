// Schedules that fit themselves to costs: a step is simulated, and whenever a rank is free it takes
// the best action that can be taken then.
#pragma once

#include <span>

#include "parallel/plan/placement.h"
#include "parallel/plan/schedule.h"
#include "parallel/plan/simulator.h"

namespace deepnet {

struct GreedyOptions {
  int num_microbatches = 1;
  int max_alive = 1;  // chunks' microbatches between F and W on a rank; >= chunks of that rank
  // A rank waits for a gradient that is on its way rather than begin a W of which less than this
  // part (0..1) would be done when it comes. 0: never waits.
  double patience = 0;
};

// The rule is that of zero-bubble schedules (Qi et al., 2023, section 3.1): gradients of inputs
// first, since other ranks wait for them; then forwards, of the chunk nearest to the loss first, as
// far as memory goes; weight gradients when there is nothing else to do, or when memory is full.
// Linear in the number of actions but for a logarithm.
Schedule MakeGreedy(const Placement& placement, std::span<const ChunkCost> costs,
                    const GreedyOptions& options);

}  // namespace deepnet
