#include "trainer/data/batcher.h"

#include <fstream>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trainer/data/vocabulary.h"

namespace deepnet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kA = 10, kB = 11, kC = 12, kTagDe = 20, kTagEn = 21;

// [[27,21],[32,35],...]
std::vector<std::pair<int, int>> BenchLengths() {
  std::ifstream file("tests/bench/lengths.json");
  std::vector<std::pair<int, int>> lengths;
  char separator;
  file >> separator;
  for (std::pair<int, int> pair;
       file >> separator >> pair.first >> separator >> pair.second >> separator;) {
    lengths.push_back(pair);
    file >> separator;
  }
  return lengths;
}

TEST(EncodePair, PutsTheTargetTagOnTheSource) {
  const EncodedPair pair = EncodePair({TARGET_TAG_ON_SOURCE, kTagEn, kTagDe},
                                      std::vector<int32_t>{kA, kB}, std::vector<int32_t>{kC});
  EXPECT_THAT(pair.source, ElementsAre(kTagDe, kA, kB, kEos));
  EXPECT_THAT(pair.labels, ElementsAre(kC, kEos));
}

TEST(EncodePair, PutsBothTagsInM2mStyle) {
  const EncodedPair pair =
      EncodePair({M2M, kTagEn, kTagDe}, std::vector<int32_t>{kA, kB}, std::vector<int32_t>{kC});
  EXPECT_THAT(pair.source, ElementsAre(kTagEn, kA, kB, kEos));
  EXPECT_THAT(pair.labels, ElementsAre(kTagDe, kC, kEos));
}

TEST(MicrobatchBuilder, PacksSentencesAndPadsToCapacity) {
  MicrobatchBuilder builder({8, 6, 3});
  builder.Add(4, {{kTagDe, kA, kB, kEos}, {kC, kEos}});
  builder.Add(5, {{kTagEn, kC, kEos}, {kA, kB, kEos}});
  const Microbatch batch = std::move(builder).Build();
  EXPECT_THAT(batch.source.tokens, ElementsAre(kTagDe, kA, kB, kEos, kTagEn, kC, kEos, kPad));
  EXPECT_THAT(batch.source.offsets, ElementsAre(0, 4, 7, 7));
  EXPECT_THAT(batch.source.positions, ElementsAre(0, 1, 2, 3, 0, 1, 2, 0));
  EXPECT_THAT(batch.source_pairs, ElementsAre(4, 4, 4, 4, 5, 5, 5, 0));
  EXPECT_THAT(batch.target.tokens, ElementsAre(kEos, kC, kEos, kA, kB, kPad));
  EXPECT_THAT(batch.target.offsets, ElementsAre(0, 2, 5, 5));
  EXPECT_THAT(batch.target.positions, ElementsAre(0, 1, 0, 1, 2, 0));
  EXPECT_THAT(batch.labels, ElementsAre(kC, kEos, kA, kB, kEos, -1));
  EXPECT_THAT(batch.target_pairs, ElementsAre(4, 4, 5, 5, 5, 0));
  EXPECT_EQ(batch.num_sentences, 2);
  EXPECT_EQ(batch.num_source_tokens, 7);
  EXPECT_EQ(batch.num_target_tokens, 5);
}

TEST(MicrobatchBuilder, HasNoRoomBeyondAnyCapacity) {
  const EncodedPair pair = {{kTagDe, kA, kEos}, {kC, kEos}};
  for (const Capacity& capacity : {Capacity{5, 99, 99}, Capacity{99, 3, 99}, Capacity{99, 99, 1}}) {
    MicrobatchBuilder builder(capacity);
    ASSERT_TRUE(builder.HasRoom(pair));
    builder.Add(0, pair);
    EXPECT_FALSE(builder.HasRoom(pair));
  }
}

TEST(MakeBenchMicrobatches, PacksTheBenchmarkLengthsAlmostFull) {
  const std::vector<std::pair<int, int>> lengths = BenchLengths();
  ASSERT_GT(lengths.size(), 1000u);
  const std::vector<Microbatch> batches =
      MakeBenchMicrobatches(lengths, {2000, 2000, 500}, 8000, 1);
  EXPECT_EQ(batches[0].source.tokens[batches[0].source.offsets[1] - 1], kEos);
  EXPECT_EQ(batches[0].source_pairs[batches[0].source.offsets[1]], 1u);
  double real = 0;
  size_t sentences = 0;
  for (const Microbatch& batch : batches) {
    real += static_cast<double>(batch.num_source_tokens + batch.num_target_tokens);
    sentences += static_cast<size_t>(batch.num_sentences);
    for (const int32_t token : batch.source.tokens) EXPECT_LT(token, 8000);
  }
  EXPECT_EQ(sentences, lengths.size());
  double given = 0;
  for (const auto& [source, target] : lengths) given += source + target;
  EXPECT_EQ(real, given);
  EXPECT_GT(real / (4000.0 * static_cast<double>(batches.size())), 0.9);
}

// As many as a search from one microbatch on finds.
TEST(MakeBenchMicrobatches, MakesAsFewAsHoldAllPairs) {
  std::vector<std::pair<int, int>> lengths = BenchLengths();
  lengths.resize(300);
  std::vector<PairSize> sizes;
  for (const auto& [source, target] : lengths) sizes.push_back({source, target});
  for (const Capacity& capacity :
       {Capacity{2000, 2000, 500}, {300, 2000, 500}, {2000, 250, 500}, {2000, 2000, 7}}) {
    int least = 1;
    while (!PackBalanced(sizes, least, capacity).left.empty()) ++least;
    EXPECT_EQ(MakeBenchMicrobatches(lengths, capacity, 8000, 1).size(), least);
  }
}

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

// The longest first, each where the fullest side is least full after it; runs depend on it.
TEST(PackBalanced, PutsEachPairWhereItBalancesBest) {
  const std::vector<PairSize> sizes = {{1, 9}, {6, 2}, {3, 3}, {9, 1}, {2, 6}, {4, 4}, {8, 8}};
  const Packing packing = PackBalanced(sizes, 2, {15, 15, 3});
  EXPECT_EQ(packing.microbatches, (std::vector<std::vector<int>>{{0, 1, 5}, {3, 4, 2}}));
  EXPECT_EQ(packing.left, std::vector<int>{6});
}

TEST(PackBalanced, LeavesWhatDoesNotFit) {
  const std::vector<PairSize> sizes = RandomSizes(300, 2);
  const Packing packing = PackBalanced(sizes, 4, {200, 200, 5});
  EXPECT_FALSE(packing.left.empty());
  EXPECT_TRUE(std::ranges::is_sorted(packing.left));
  CheckedUse(packing, sizes, {200, 200, 5});
  for (const std::vector<int>& members : packing.microbatches) EXPECT_LE(members.size(), 5u);
}

TEST(PackFirstFit, TakesTheFirstRoomAndLeavesTheRest) {
  const std::vector<PairSize> sizes = {{8, 8}, {5, 5}, {4, 4}, {2, 2}, {9, 9}, {1, 1}, {1, 1}};
  Packing packing;
  packing.microbatches = {{0}, {1}};
  const std::vector<int> more = {2, 3, 4, 5, 6};
  PackFirstFit(sizes, more, {10, 10, 3}, &packing);
  EXPECT_EQ(packing.microbatches[0], (std::vector<int>{0, 3}));
  EXPECT_EQ(packing.microbatches[1], (std::vector<int>{1, 2, 5}));
}

}  // namespace
}  // namespace deepnet
