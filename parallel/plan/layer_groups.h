// Groups of consecutive layers whose gradients are handed over together while earlier layers still
// run backward.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/plan/inventory.h"

namespace deepnet {

// Most float32 gradient of a group, 25 MiB: what DistributedDataParallel found to fill a network
// without holding much back (Li et al., 2020, arXiv:2006.15704, section 4.2).
inline constexpr int64_t kGroupElements = int64_t{25} << 18;
// Smaller models have at least about so many groups, so that they overlap too.
inline constexpr int64_t kLeastGroups = 16;

// Ends of the groups of `whole`, in layers of the chain; the last is their number. A group is
// filled from its first layer on, up to the smaller of kGroupElements and 1 / kLeastGroups of the
// gradient, uses of tied tensors each counted; a larger layer is a group alone. They depend on the
// model alone, never on the layout, which may cut them.
std::vector<int> LayerGroupEnds(const Inventory& whole);

}  // namespace deepnet
