// Cuts a chain of layers into contiguous chunks and says which rank owns which chunk.
//
// Examples:
//   PartitionByCost(std::vector<double>{1, 1, 1, 3}, 2);  // {3, 4}: 1 1 1 | 3
//   // The rank with the 3 gets the shorter chunk, so both ranks have 4: {2, 3, 5, 6}.
//   PartitionForRanks(std::vector<double>{1, 1, 1, 1, 1, 3}, MakeLooped(2, 2));
//   MakeLooped(2, 2).rank_of_chunk;  // {0, 1, 0, 1}
//   MakeV(2, 2).rank_of_chunk;       // {0, 1, 1, 0}
#pragma once

#include <span>
#include <vector>

namespace deepnet {

struct Placement {
  std::vector<int> rank_of_chunk;  // [chunk], 0 <= rank; chunks count along the chain of layers

  int NumChunks() const { return static_cast<int>(rank_of_chunk.size()); }
  int NumRanks() const;  // one past the highest rank

  // Returns true if chunk - 1 and chunk lie on different ranks; false where there are not both.
  bool Crosses(int chunk) const {
    return chunk > 0 && chunk < NumChunks() && rank_of_chunk[chunk - 1] != rank_of_chunk[chunk];
  }

  friend bool operator==(const Placement&, const Placement&) = default;
};

// Chunk c on rank c % ranks (Narayanan et al., 2021, section 2.2): every lap visits the ranks in
// the same direction. Both arguments > 0.
Placement MakeLooped(int ranks, int virtual_pipeline_size);

// Laps alternate their direction (Qi et al., 2024, "Pipeline Parallelism with Controllable
// Memory"): where a lap ends the next begins, on the same rank and without a transfer.
Placement MakeV(int ranks, int virtual_pipeline_size);

// Ends (one past the last item) of `num_parts` non-empty contiguous parts whose most expensive one
// is as cheap as can be. Earlier parts are filled first, so equal inputs give equal cuts
// everywhere. Costs are >= 0; 1 <= num_parts <= costs.size().
std::vector<int> PartitionByCost(std::span<const double> costs, int num_parts);

// Ends of placement.NumChunks() non-empty contiguous chunks whose sums per rank are about equal.
// With one chunk a rank: PartitionByCost. With more, chunks are as equal as the last item allows:
// if that costs more than an even chunk (a loss over many classes), the other chunks of its rank
// shrink. With `refine`, which takes time, single items then move from the fullest rank to others
// as long as it gains. Deterministic; 1 <= NumChunks() <= costs.size(), costs >= 0.
std::vector<int> PartitionForRanks(std::span<const double> costs, const Placement& placement,
                                   bool refine = true);

// Sum of costs of each rank's chunks, [rank].
std::vector<double> CostOfRanks(std::span<const double> costs, std::span<const int> ends,
                                const Placement& placement);

}  // namespace deepnet
