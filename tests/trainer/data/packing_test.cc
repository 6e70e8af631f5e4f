#include "trainer/data/packing.h"

#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace deepnet {
namespace {

std::vector<PairSize> RandomSizes(int count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<PairSize> sizes;
  for (int i = 0; i < count; ++i) {
    const int source = 5 + static_cast<int>(random() % 50);
    sizes.push_back({source, std::max(2, source - 10 + static_cast<int>(random() % 20))});
  }
  return sizes;
}

// Checks capacity and that every pair is in one place; returns used source and target positions.
PairSize CheckedUse(const Packing& packing, const std::vector<PairSize>& sizes,
                    const Capacity& capacity) {
  std::multiset<int> seen(packing.left.begin(), packing.left.end());
  PairSize total;
  for (const std::vector<int>& members : packing.microbatches) {
    PairSize use;
    for (const int i : members) {
      use.source += sizes[i].source;
      use.target += sizes[i].target;
      seen.insert(i);
    }
    EXPECT_LE(use.source, capacity.source);
    EXPECT_LE(use.target, capacity.target);
    EXPECT_LE(static_cast<int>(members.size()), capacity.sentences);
    total.source += use.source;
    total.target += use.target;
  }
  EXPECT_EQ(seen.size(), sizes.size());
  EXPECT_EQ(std::set<int>(seen.begin(), seen.end()).size(), sizes.size());
  return total;
}

TEST(PackBalanced, FillsBothSidesNearlyWhole) {
  const std::vector<PairSize> sizes = RandomSizes(2000, 1);
  PairSize sum;
  for (const PairSize& size : sizes) sum = {sum.source + size.source, sum.target + size.target};
  const Capacity capacity = {sum.source / 49, sum.target / 49, 1000};  // 2 % of slack for 50
  const Packing packing = PackBalanced(sizes, 50, capacity);
  EXPECT_TRUE(packing.left.empty());
  CheckedUse(packing, sizes, capacity);
}

TEST(PackBalanced, BalancesPairsWhoseSidesDiffer) {
  std::vector<PairSize> sizes;
  for (int i = 0; i < 48; ++i) sizes.push_back(i % 2 == 0 ? PairSize{30, 10} : PairSize{10, 30});
  const Packing packing = PackBalanced(sizes, 8, {120, 120, 10});
  EXPECT_TRUE(packing.left.empty());
  EXPECT_EQ(CheckedUse(packing, sizes, {120, 120, 10}), (PairSize{960, 960}));
}

TEST(PackBalanced, LeavesWhatDoesNotFit) {
  const std::vector<PairSize> sizes = RandomSizes(300, 2);
  const Packing packing = PackBalanced(sizes, 4, {200, 200, 5});
  EXPECT_FALSE(packing.left.empty());
  CheckedUse(packing, sizes, {200, 200, 5});
  for (const std::vector<int>& members : packing.microbatches) EXPECT_LE(members.size(), 5u);
}

TEST(PackFirstFit, TakesTheFirstRoomAndReturnsTheRest) {
  const std::vector<PairSize> sizes = {{8, 8}, {5, 5}, {4, 4}, {2, 2}, {9, 9}};
  Packing packing;
  packing.microbatches = {{0}, {1}};
  const std::vector<int> more = {2, 3, 4};
  const std::vector<int> left = PackFirstFit(sizes, more, {10, 10, 3}, &packing);
  EXPECT_EQ(packing.microbatches[0], (std::vector<int>{0, 3}));
  EXPECT_EQ(packing.microbatches[1], (std::vector<int>{1, 2}));
  EXPECT_EQ(left, (std::vector<int>{4}));
}

}  // namespace
}  // namespace deepnet
