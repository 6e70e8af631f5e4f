// Cuts a chain of layers into contiguous parts.
//
// Example:
//   PartitionByCost(std::vector<double>{1, 1, 1, 3}, 2);   // {3, 4}: 1 1 1 | 3
#pragma once

#include <span>
#include <vector>

namespace deepnet {

// Ends (one past the last item) of `num_parts` non-empty contiguous parts whose most expensive one
// is as cheap as can be. Earlier parts are filled first, so equal inputs give equal cuts
// everywhere. Costs are >= 0; 1 <= num_parts <= costs.size().
std::vector<int> PartitionByCost(std::span<const double> costs, int num_parts);

}  // namespace deepnet
