#include "trainer/data/batcher.h"

#include <fstream>
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

TEST(PackInOrder, KeepsTheOrderAndOpensAMicrobatchWhenOneIsFull) {
  const std::vector<EncodedPair> pairs(5, {{kTagDe, kA, kEos}, {kC, kEos}});
  const auto batches = PackInOrder(pairs, {7, 7, 9});
  ASSERT_TRUE(batches.ok()) << batches.status();
  ASSERT_EQ(batches->size(), 3u);
  EXPECT_THAT((*batches)[1].source_pairs, ElementsAre(2, 2, 2, 3, 3, 3, 0));
  EXPECT_EQ((*batches)[2].num_sentences, 1);
  EXPECT_TRUE(PackInOrder({}, {7, 7, 9})->empty());
}

TEST(PackInOrder, RefusesAPairLargerThanAMicrobatch) {
  const std::vector<EncodedPair> pairs = {{{kTagDe, kA, kEos}, {kC, kEos}},
                                          {{kTagDe, kA, kB, kEos}, {kC, kEos}}};
  EXPECT_THAT(std::string(PackInOrder(pairs, {3, 3, 3}).status().message()),
              HasSubstr("pair 1 has 4 source"));
}

TEST(MakeBenchMicrobatches, PacksTheBenchmarkLengthsAlmostFull) {
  const std::vector<std::pair<int, int>> lengths = BenchLengths();
  ASSERT_GT(lengths.size(), 1000u);
  const std::vector<Microbatch> batches =
      MakeBenchMicrobatches(lengths, {2000, 2000, 500}, 8000, 1);
  double real = 0;
  size_t sentences = 0;
  for (const Microbatch& batch : batches) {
    real += static_cast<double>(batch.num_source_tokens + batch.num_target_tokens);
    sentences += static_cast<size_t>(batch.num_sentences);
    for (const int32_t token : batch.source.tokens) EXPECT_LT(token, 8000);
  }
  EXPECT_EQ(sentences, lengths.size());
  EXPECT_GT(real / (4000.0 * static_cast<double>(batches.size())), 0.9);
}

}  // namespace
}  // namespace deepnet
