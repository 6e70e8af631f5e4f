#include "parallel/plan/placement.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace deepnet {
namespace {

using ::testing::ElementsAre;

TEST(Placement, LoopedLapsAllRunTheSameWay) {
  EXPECT_THAT(MakeLooped(3, 2).rank_of_chunk, ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(MakeLooped(1, 2).rank_of_chunk, ElementsAre(0, 0));
}

TEST(Placement, VTurnsAtTheEndOfEachLap) {
  EXPECT_THAT(MakeV(3, 3).rank_of_chunk, ElementsAre(0, 1, 2, 2, 1, 0, 0, 1, 2));
  EXPECT_THAT(MakeV(4, 1).rank_of_chunk, ElementsAre(0, 1, 2, 3));
}

TEST(Placement, TurnsOfTheVAreNoTransfers) {
  const Placement placement = MakeV(3, 2);
  std::set<int> crossed;
  for (int c = 0; c < placement.NumChunks(); ++c) {
    if (placement.Crosses(c)) crossed.insert(c);
  }
  EXPECT_THAT(crossed, ElementsAre(1, 2, 4, 5));
  EXPECT_EQ(placement.NumRanks(), 3);
}

TEST(Placement, EveryRankHasItsChunksForAnyNumberOfRanks) {
  for (int ranks = 1; ranks <= 7; ++ranks) {
    for (int chunks = 1; chunks <= 4; ++chunks) {
      for (const Placement& placement : {MakeLooped(ranks, chunks), MakeV(ranks, chunks)}) {
        std::vector<int> owned(ranks, 0);
        for (const int rank : placement.rank_of_chunk) ++owned[rank];
        EXPECT_EQ(owned, std::vector<int>(ranks, chunks));
      }
    }
  }
}

}  // namespace
}  // namespace deepnet
