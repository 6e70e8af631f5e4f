#include "parallel/plan/partition.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/base/philox.h"

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

double Bottleneck(const std::vector<double>& costs, const std::vector<int>& ends) {
  double worst = 0;
  int begin = 0;
  for (const int end : ends) {
    worst = std::max(worst, std::accumulate(costs.begin() + begin, costs.begin() + end, 0.0));
    begin = end;
  }
  return worst;
}

// The best bottleneck of items [first, size) in `parts` non-empty parts, by trying every cut.
double BestBottleneck(const std::vector<double>& costs, int first, int parts) {
  const int size = static_cast<int>(costs.size());
  if (parts == 1) return std::accumulate(costs.begin() + first, costs.end(), 0.0);
  double best = std::numeric_limits<double>::infinity(), sum = 0;
  for (int end = first + 1; end <= size - (parts - 1); ++end) {
    sum += costs[end - 1];
    best = std::min(best, std::max(sum, BestBottleneck(costs, end, parts - 1)));
  }
  return best;
}

TEST(PartitionByCost, CutsBeforeTheExpensiveItem) {
  EXPECT_THAT(PartitionByCost(std::vector<double>{1, 1, 1, 3}, 2), ElementsAre(3, 4));
  EXPECT_THAT(PartitionByCost(std::vector<double>{1, 1, 1, 1, 4}, 1), ElementsAre(5));
}

TEST(PartitionByCost, LeavesNoPartEmpty) {
  EXPECT_THAT(PartitionByCost(std::vector<double>{0, 0, 0}, 3), ElementsAre(1, 2, 3));
  EXPECT_THAT(PartitionByCost(std::vector<double>{9, 0, 0, 0}, 3), ElementsAre(2, 3, 4));
}

TEST(PartitionByCost, IsAsGoodAsTryingEveryCut) {
  const PhiloxKey key = MakeKey(1, RandomPurpose::kSampling);
  for (uint32_t round = 0; round < 60; ++round) {
    std::vector<double> costs;
    for (uint32_t i = 0; i < 3 + round % 7; ++i) {
      costs.push_back(static_cast<double>(Philox(key, {round, i, 0, 0})[0] % 20));
    }
    for (int parts = 1; parts <= static_cast<int>(costs.size()); ++parts) {
      const std::vector<int> ends = PartitionByCost(costs, parts);
      EXPECT_EQ(static_cast<int>(ends.size()), parts);
      EXPECT_EQ(ends.back(), static_cast<int>(costs.size()));
      EXPECT_TRUE(std::is_sorted(ends.begin(), ends.end(), std::less_equal<>()));
      EXPECT_EQ(Bottleneck(costs, ends), BestBottleneck(costs, 0, parts)) << round << " " << parts;
    }
  }
}

// The least that the fullest rank can have, and the ends with it, by trying every cut.
double BestFullestRank(const std::vector<double>& costs, const Placement& placement,
                       std::vector<int> ends = {}) {
  const int chunks = placement.NumChunks(), items = static_cast<int>(costs.size());
  if (static_cast<int>(ends.size()) == chunks - 1) {
    ends.push_back(items);
    const std::vector<double> sums = CostOfRanks(costs, ends, placement);
    return *std::max_element(sums.begin(), sums.end());
  }
  double best = std::numeric_limits<double>::infinity();
  const int left = chunks - 1 - static_cast<int>(ends.size());
  for (int end = ends.empty() ? 1 : ends.back() + 1; end <= items - left; ++end) {
    std::vector<int> longer = ends;
    longer.push_back(end);
    best = std::min(best, BestFullestRank(costs, placement, std::move(longer)));
  }
  return best;
}

double FullestRank(const std::vector<double>& costs, const std::vector<int>& ends,
                   const Placement& placement) {
  const std::vector<double> sums = CostOfRanks(costs, ends, placement);
  return *std::max_element(sums.begin(), sums.end());
}

TEST(PartitionForRanks, TheRankOfALargeLastItemHasSmallOtherChunks) {
  EXPECT_THAT(PartitionForRanks(std::vector<double>{1, 1, 1, 1, 1, 3}, MakeLooped(2, 2)),
              ElementsAre(2, 3, 5, 6));
  EXPECT_THAT(PartitionForRanks(std::vector<double>{1, 1, 1, 1, 1, 1, 1, 1}, MakeLooped(2, 2)),
              ElementsAre(2, 4, 6, 8));
}

TEST(PartitionForRanks, WithOneChunkARankIsPartitionByCost) {
  const std::vector<double> costs = {3, 1, 4, 1, 5, 9, 2, 6};
  EXPECT_EQ(PartitionForRanks(costs, MakeLooped(3, 1)), PartitionByCost(costs, 3));
}

// An encoder, a decoder whose layers cost 4/3 as much, and an output layer: what it is for. Moving
// single items ends where no single one helps, which may be a decoder layer from the best.
TEST(PartitionForRanks, IsWithinOneItemOfTheBestOfEveryCut) {
  for (const int num : {5, 6, 7}) {
    for (const double output : {1.0, 5.0, 11.0}) {
      std::vector<double> costs(num, 3.0);
      costs.insert(costs.end(), num, 4.0);
      costs.push_back(3 * output);
      for (const Placement& placement :
           {MakeLooped(2, 2), MakeLooped(3, 2), MakeLooped(2, 3), MakeV(2, 2), MakeV(3, 2)}) {
        const std::vector<int> ends = PartitionForRanks(costs, placement);
        ASSERT_EQ(static_cast<int>(ends.size()), placement.NumChunks());
        EXPECT_EQ(ends.back(), static_cast<int>(costs.size()));
        EXPECT_TRUE(std::is_sorted(ends.begin(), ends.end(), std::less_equal<>()));
        EXPECT_LE(FullestRank(costs, ends, placement), BestFullestRank(costs, placement) + 4.0)
            << num << " " << output << " " << placement.NumRanks();
      }
    }
  }
}

TEST(PartitionForRanks, RefiningOnlyHelps) {
  std::vector<double> costs(500, 3.0);
  costs.insert(costs.end(), 500, 4.0);
  costs.push_back(123.0);
  const double even = std::accumulate(costs.begin(), costs.end(), 0.0) / 8;
  for (const int chunks : {2, 4, 8}) {
    const Placement placement = MakeLooped(8, chunks);
    const double rough = FullestRank(costs, PartitionForRanks(costs, placement, false), placement);
    const double fine = FullestRank(costs, PartitionForRanks(costs, placement), placement);
    EXPECT_LE(fine, rough);
    EXPECT_LE(fine, even + 4.0) << chunks;  // within one decoder layer of perfect
  }
}

}  // namespace

}  // namespace deepnet
