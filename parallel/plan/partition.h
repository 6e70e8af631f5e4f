// Cuts a chain of layers into contiguous parts.
//
// Example:
//   PartitionByCost(std::vector<double>{1, 1, 1, 3}, 2);                        // {3, 4}: 1 1 1 |
//   3 PartitionForRanks(std::vector<double>{1, 1, 1, 1, 1, 3}, MakeLooped(2, 2)); // {2, 3, 5, 6}:
//   the
//       rank with the 3 gets the short chunk, so that both ranks have 4
#pragma once

#include <span>
#include <vector>

#include "parallel/plan/placement.h"

namespace deepnet {

// Ends (one past the last item) of `num_parts` non-empty contiguous parts whose most expensive one
// is as cheap as can be. Earlier parts are filled first, so equal inputs give equal cuts
// everywhere. Costs are >= 0; 1 <= num_parts <= costs.size().
std::vector<int> PartitionByCost(std::span<const double> costs, int num_parts);

// Ends of placement.NumChunks() non-empty contiguous chunks whose sums per rank are about equal.
// With one chunk a rank: PartitionByCost. With more, chunks are as equal as the last item allows:
// if that costs more than an even chunk (an output layer over a large vocabulary), the other chunks
// of its rank shrink. Then single items move from the fullest rank to others as long as the fullest
// rank gains (`refine`; else the cut is only roughly even, but takes no time).
// Deterministic; 1 <= NumChunks() <= costs.size(), costs >= 0.
std::vector<int> PartitionForRanks(std::span<const double> costs, const Placement& placement,
                                   bool refine = true);

// Sum of costs of each rank's chunks, [rank].
std::vector<double> CostOfRanks(std::span<const double> costs, std::span<const int> ends,
                                const Placement& placement);

}  // namespace deepnet
