#include "parallel/plan/placement.h"

#include <algorithm>

#include "parallel/base/check.h"

namespace deepnet {

int Placement::NumRanks() const {
  if (rank_of_chunk.empty()) return 0;
  return 1 + *std::max_element(rank_of_chunk.begin(), rank_of_chunk.end());
}

Placement MakeLooped(int ranks, int chunks_per_rank) {
  DEEPNET_CHECK(ranks > 0 && chunks_per_rank > 0);
  Placement placement;
  for (int c = 0; c < ranks * chunks_per_rank; ++c) placement.rank_of_chunk.push_back(c % ranks);
  return placement;
}

Placement MakeV(int ranks, int chunks_per_rank) {
  DEEPNET_CHECK(ranks > 0 && chunks_per_rank > 0);
  Placement placement;
  for (int c = 0; c < ranks * chunks_per_rank; ++c) {
    const int step = c % ranks, lap = c / ranks;
    placement.rank_of_chunk.push_back(lap % 2 == 0 ? step : ranks - 1 - step);
  }
  return placement;
}

}  // namespace deepnet
