#include "parallel/plan/partition.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/base/philox.h"

namespace deepnet {
namespace {

using ::testing::ElementsAre;

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

}  // namespace
}  // namespace deepnet
