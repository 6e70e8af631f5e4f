#include "trainer/data/encoded_pair.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trainer/data/batcher.h"
#include "trainer/data/vocabulary.h"

namespace deepnet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int32_t kTagDe = 1000, kTagEn = 1001;
constexpr MaskingRule kRule = {.share = 0.15, .end_piece = 1000};
constexpr double kSigmas = 5;  // of a count of independent draws

DirectionTags Tags(TagStyle style) { return {style, kTagDe, kTagEn}; }

// Ids that say where they stand.
std::vector<int32_t> Pieces(int count) {
  std::vector<int32_t> pieces;
  for (int i = 0; i < count; ++i) pieces.push_back(kFirstPiece + i % 900);
  return pieces;
}

EncodedPair Hidden(const std::vector<int32_t>& pieces, const MaskingKey& key,
                   const MaskingRule& rule = kRule) {
  return EncodeSourceSide(Tags(TARGET_TAG_ON_SOURCE), pieces, rule, key);
}

TEST(FrameIds, CutsTheLastPiecesOffAndNeverTagsAndEnd) {
  const std::vector<int32_t> tags = {kTagDe}, pieces = {10, 11, 12};
  EXPECT_THAT(FrameIds(tags, pieces), ElementsAre(kTagDe, 10, 11, 12, kEos));
  EXPECT_THAT(FrameIds(tags, pieces, 5), ElementsAre(kTagDe, 10, 11, 12, kEos));
  EXPECT_THAT(FrameIds(tags, pieces, 4), ElementsAre(kTagDe, 10, 11, kEos));
  EXPECT_THAT(FrameIds(tags, pieces, 3), ElementsAre(kTagDe, 10, kEos));
}

// Runs on disk depend on these values: they must never change.
TEST(OneSided, WhatIsMaskedIsFrozen) {
  const EncodedPair pair = Hidden(
      Pieces(24), {.seed = 7, .direction = "de-en", .pair = (int64_t{5} << 32) + 3, .step = 9},
      {.share = 0.5, .end_piece = 1000});
  EXPECT_EQ(pair.input,
            (std::vector<int32_t>{1000, 4,  3,  3,  961, 3,  3, 10, 11, 3,  3,   3, 673,
                                  16,   17, 18, 19, 20,  21, 3, 23, 3,  25, 713, 3, 2}));
  EXPECT_EQ(pair.labels,
            (std::vector<int32_t>{-1, -1, 5,  6,  7,  8,  9,  -1, -1, 12, 13, 14, 15,
                                  -1, 17, -1, 19, -1, -1, 22, -1, 24, -1, 26, 27, -1}));
}

TEST(OneSided, ACausalModelReadsTheTagInPlaceOfTheEnd) {
  const EncodedPair pair =
      EncodeTargetSide(Tags(TARGET_TAG_ON_SOURCE), std::vector<int32_t>{10, 11});
  EXPECT_THAT(pair.source, IsEmpty());
  EXPECT_THAT(pair.input, ElementsAre(kTagEn, 10, 11));
  EXPECT_THAT(pair.labels, ElementsAre(10, 11, kEos));
}

TEST(OneSided, ACausalModelInM2mStyleLearnsTheTag) {
  const EncodedPair pair = EncodeTargetSide(Tags(M2M), std::vector<int32_t>{10, 11});
  EXPECT_THAT(pair.input, ElementsAre(kEos, kTagEn, 10, 11));
  EXPECT_THAT(pair.labels, ElementsAre(kTagEn, 10, 11, kEos));
}

TEST(NoTags, AreOnNoSideOfAnyModel) {
  const std::vector<int32_t> pieces = {10, 11};
  const EncodedPair both = EncodePair(Tags(NO_TAGS), pieces, pieces);
  EXPECT_THAT(both.source, ElementsAre(10, 11, kEos));
  EXPECT_THAT(both.labels, ElementsAre(10, 11, kEos));
  const EncodedPair causal = EncodeTargetSide(Tags(NO_TAGS), pieces);
  EXPECT_THAT(causal.input, ElementsAre(kEos, 10, 11));
  const EncodedPair masked = EncodeSourceSide(
      Tags(NO_TAGS), pieces, kRule, {.seed = 7, .direction = "de-en", .pair = 3, .step = 9});
  EXPECT_EQ(masked.input.size(), 3);
  EXPECT_EQ(masked.input.back(), kEos);
  EXPECT_EQ(masked.labels.back(), -1);
}

TEST(OneSided, AMaskedModelHasLabelsWhereItsInputMayDifferAndNowhereElse) {
  const std::vector<int32_t> pieces = Pieces(200);
  const EncodedPair pair = Hidden(pieces, {.seed = 7, .direction = "de-en", .pair = 3, .step = 9});
  EXPECT_THAT(pair.source, IsEmpty());
  ASSERT_EQ(pair.input.size(), pieces.size() + 2);
  ASSERT_EQ(pair.labels.size(), pair.input.size());
  EXPECT_EQ(pair.input.front(), kTagDe);  // the source's own language
  EXPECT_EQ(pair.input.back(), kEos);
  EXPECT_EQ(pair.labels.front(), -1);
  EXPECT_EQ(pair.labels.back(), -1);
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pair.labels[i + 1] < 0) {
      EXPECT_EQ(pair.input[i + 1], pieces[i]);
    } else {
      EXPECT_EQ(pair.labels[i + 1], pieces[i]);
    }
  }
}

TEST(OneSided, ASentenceOfWhichNothingWasChosenGetsOneLabel) {
  const MaskingRule rarely = {.share = 1e-9, .end_piece = 1000};
  std::vector<int> chosen(5, 0);
  for (int64_t n = 0; n < 1000; ++n) {
    const EncodedPair pair = Hidden(Pieces(5), {.direction = "de-en", .pair = n}, rarely);
    int labels = 0;
    for (size_t i = 0; i < 5; ++i) {
      labels += pair.labels[i + 1] >= 0 ? 1 : 0;
      chosen[i] += pair.labels[i + 1] >= 0 ? 1 : 0;
    }
    EXPECT_EQ(labels, 1);
  }
  for (const int count : chosen) EXPECT_NEAR(count, 200, kSigmas * std::sqrt(1000 * 0.2 * 0.8));
  EXPECT_THAT(Hidden({}, {}).labels, ElementsAre(-1, -1));
}

TEST(OneSided, SharesAreThoseOfBert) {
  const std::vector<int32_t> pieces = Pieces(100);
  int64_t all = 0, chosen = 0, unknown = 0, same = 0;
  int64_t first = 0, last = 0;  // of the sentences
  for (int64_t n = 0; n < 1000; ++n) {
    const EncodedPair pair = Hidden(pieces, {.seed = 1, .direction = "de-en", .pair = n});
    for (size_t i = 0; i < pieces.size(); ++i, ++all) {
      if (pair.labels[i + 1] < 0) continue;
      ++chosen;
      first += i == 0 ? 1 : 0;
      last += i + 1 == pieces.size() ? 1 : 0;
      unknown += pair.input[i + 1] == kUnk ? 1 : 0;
      same += pair.input[i + 1] == pieces[i] ? 1 : 0;
      EXPECT_LT(pair.input[i + 1], kRule.end_piece);
      EXPECT_GE(pair.input[i + 1], kUnk);
    }
    EXPECT_EQ(pair.input.back(), kEos);
    EXPECT_EQ(pair.labels.back(), -1);
  }
  const auto n = static_cast<double>(chosen);
  EXPECT_NEAR(n / all, 0.15, kSigmas * std::sqrt(0.15 * 0.85 / all));
  for (const int64_t count : {first, last}) {
    EXPECT_NEAR(count, 150, kSigmas * std::sqrt(1000 * 0.15 * 0.85));
  }
  EXPECT_NEAR(unknown / n, 0.8, kSigmas * std::sqrt(0.8 * 0.2 / n));
  EXPECT_NEAR(same / n, 0.1 + 0.1 / 996, kSigmas * std::sqrt(0.1 * 0.9 / n));
}

TEST(OneSided, WhatIsHiddenIsAFunctionOfSeedDirectionPairAndStep) {
  const std::vector<int32_t> pieces = Pieces(100);
  const MaskingKey key = {.seed = 7, .direction = "de-en", .pair = 3, .step = 9};
  const EncodedPair once = Hidden(pieces, key), again = Hidden(pieces, key);
  EXPECT_EQ(once.input, again.input);
  EXPECT_EQ(once.labels, again.labels);
  std::vector<MaskingKey> others(4, key);
  others[0].seed = 8;
  others[1].direction = "de-fr";
  others[2].pair = 4;
  others[3].step = 10;
  for (const MaskingKey& other : others) EXPECT_NE(Hidden(pieces, other).labels, once.labels);
  // The pieces behind a piece do not matter.
  const EncodedPair shorter = Hidden(Pieces(60), key);
  EXPECT_TRUE(std::equal(shorter.labels.begin(), shorter.labels.begin() + 61, once.labels.begin()));
}

TEST(OneSided, AMicrobatchOfItHasNoSourceAndCountsLabels) {
  MicrobatchBuilder builder({0, 12, 3});
  const EncodedPair first = {{}, {-1, 10, -1, -1}, {kTagDe, kUnk, 11, kEos}};
  ASSERT_TRUE(builder.HasRoom(first));
  builder.Add(4, first);
  builder.Add(5, EncodeTargetSide(Tags(TARGET_TAG_ON_SOURCE), std::vector<int32_t>{12}));
  const Microbatch batch = std::move(builder).Build();
  EXPECT_THAT(batch.source.tokens, IsEmpty());
  EXPECT_THAT(batch.source.offsets, ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(batch.target.offsets, ElementsAre(0, 4, 6, 6));
  EXPECT_THAT(std::vector<int32_t>(batch.target.tokens.begin(), batch.target.tokens.begin() + 7),
              ElementsAre(kTagDe, kUnk, 11, kEos, kTagEn, 12, kPad));
  EXPECT_EQ(batch.num_sentences, 2);
  EXPECT_EQ(batch.num_source_tokens, 0);
  EXPECT_EQ(batch.num_target_tokens, 3);
}

}  // namespace
}  // namespace deepnet
