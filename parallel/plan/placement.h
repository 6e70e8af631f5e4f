// Which rank owns which chunk of the model.
//
// Example, 2 ranks with 2 chunks each:
//   MakeLooped(2, 2).rank_of_chunk   // 0 1 0 1
//   MakeV(2, 2).rank_of_chunk        // 0 1 1 0
#pragma once

#include <vector>

namespace deepnet {

struct Placement {
  std::vector<int> rank_of_chunk;  // [chunk], 0 <= rank; chunks count along the chain of layers

  int NumChunks() const { return static_cast<int>(rank_of_chunk.size()); }
  int NumRanks() const;  // one past the highest rank

  // Whether what passes from chunk - 1 to chunk goes from one rank to another; false for chunk 0.
  bool Crosses(int chunk) const {
    return chunk > 0 && rank_of_chunk[chunk - 1] != rank_of_chunk[chunk];
  }

  friend bool operator==(const Placement&, const Placement&) = default;
};

// Chunk c on rank c % ranks (Narayanan et al., 2021, section 2.2): every lap visits the ranks in
// the same direction. Any number of ranks, odd ones too; both arguments > 0.
Placement MakeLooped(int ranks, int chunks_per_rank);

// Laps alternate their direction (Qi et al., 2024, "Pipeline Parallelism with Controllable
// Memory"): where a lap ends the next begins, on the same rank and without a transfer.
Placement MakeV(int ranks, int chunks_per_rank);

}  // namespace deepnet
