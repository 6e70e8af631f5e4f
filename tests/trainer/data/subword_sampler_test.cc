#include "trainer/data/subword_sampler.h"

#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deepnet {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

Vocabulary Learned(const std::string& type) {
  std::ifstream file("tests/trainer/data/testdata/udhr.tsv");
  std::vector<std::string> sentences;
  for (std::string line; std::getline(file, line);) {
    sentences.push_back(line.substr(line.find('\t') + 1));
  }
  std::string model;
  EXPECT_EQ(TrainSentencePieces({.pieces = 400, .type = type}, sentences, &model), "");
  auto vocabulary = Vocabulary::FromBytes(model, {"de", "en"});
  EXPECT_TRUE(vocabulary.ok()) << vocabulary.status();
  return *std::move(vocabulary);
}

DataSpec Spec(double alpha, int nbest = 64) {
  DataSpec spec;
  spec.set_subword_alpha(alpha);
  spec.set_subword_nbest(nbest);
  return spec;
}

class SubwordSamplerTest : public ::testing::Test {
 protected:
  SubwordSampler Sampler(double alpha, int nbest = 64, uint64_t seed = 3) const {
    return *SubwordSampler::Make(Spec(alpha, nbest), seed, &vocabulary_);
  }
  // Adds all ways to cut the rest of `text`, "▁" for a space, to `all`: the slow way.
  void AddCuts(const std::string& text, Ids& cut, std::set<Ids>& all) const {
    if (text.empty()) all.insert(cut);
    for (int32_t id = kFirstPiece; id < vocabulary_.first_tag(); ++id) {
      const std::string piece = vocabulary_.Piece(id);
      if (piece.empty() || text.compare(0, piece.size(), piece) != 0) continue;
      cut.push_back(id);
      AddCuts(text.substr(piece.size()), cut, all);
      cut.pop_back();
    }
  }

  const Vocabulary vocabulary_ = Learned("unigram");
};

TEST_F(SubwordSamplerTest, TheNBestAreAllWaysToCutAShortTextTheBestFirst) {
  for (const char* word : {"right", "human", "the"}) {
    std::set<Ids> all, listed;
    Ids cut;
    AddCuts(std::string("▁") + word, cut, all);
    const std::vector<Segmentation> found = vocabulary_.NBest(word, 1024);
    for (const Segmentation& segmentation : found) listed.insert(segmentation.ids);
    EXPECT_EQ(listed, all) << word;
    EXPECT_EQ(found.size(), all.size());
    EXPECT_EQ(found[0].ids, vocabulary_.Encode(word));
    EXPECT_LT(found.back().score, found[0].score);
    for (size_t i = 1; i < found.size(); ++i) EXPECT_LE(found[i].score, found[i - 1].score);
  }
}

// The twin: shares in a plain loop with libm, counters as docs/design/random.md has them.
TEST_F(SubwordSamplerTest, DrawsInProportionToPToTheAlpha) {
  const std::string text = "freedom of thought";
  const Ids stored = vocabulary_.Encode(text);
  const uint64_t name = HashName("de-en");
  const PhiloxKey key = MakeKey(3, static_cast<RandomPurpose>(6));
  for (const double alpha : {0.1, 0.5}) {
    const std::vector<Segmentation> all = vocabulary_.NBest(text, 16);
    double sum = 0.0;
    std::vector<double> shares;
    for (const Segmentation& s : all) shares.push_back(std::exp(alpha * s.score));
    for (const double share : shares) sum += share;
    const SubwordSampler sampler = Sampler(alpha, 16);
    std::map<Ids, int> times;
    constexpr int kDraws = 4000;
    for (int64_t draw = 0; draw < kDraws; ++draw) {
      const int side = static_cast<int>(draw % 2);
      const Ids cut = sampler.Cut(stored, 100, {"de-en", draw, side});
      ++times[cut];
      const PhiloxBlock bits = Philox(
          key, {static_cast<uint32_t>(draw), 0, static_cast<uint32_t>(name), uint32_t(name >> 32)});
      double left = (bits[side] + 0.5) / 4294967296.0 * sum;
      size_t i = 0;
      while (i + 1 < all.size() && left >= shares[i]) left -= shares[i++];
      ASSERT_EQ(cut, all[i].ids) << draw;
    }
    EXPECT_EQ(all.size(), 16u);
    for (size_t i = 0; i < all.size(); ++i) {
      const double share = shares[i] / sum;
      const double deviation = std::sqrt(kDraws * share * (1 - share));
      EXPECT_NEAR(times[all[i].ids], kDraws * share, 4.5 * deviation) << i;  // 7e-6 each
    }
  }
}

TEST_F(SubwordSamplerTest, AnotherSeedDirectionOrSideDrawsOthers) {
  const std::string text = "Everyone has the right to life, liberty and security of person.";
  const Ids stored = vocabulary_.Encode(text);
  const auto cuts = [&](uint64_t seed, const char* direction, int side) {
    std::vector<Ids> all;
    for (int64_t draw = 0; draw < 8; ++draw) {
      all.push_back(Sampler(0.1, 64, seed).Cut(stored, 300, {direction, draw, side}));
      EXPECT_EQ(vocabulary_.Decode(all.back()), text);
    }
    return all;
  };
  const std::vector<Ids> some = cuts(1, "de-en", 0);
  EXPECT_EQ(cuts(1, "de-en", 0), some);
  EXPECT_NE(cuts(2, "de-en", 0), some);
  EXPECT_NE(cuts(1, "en-de", 0), some);
  EXPECT_NE(cuts(1, "de-en", 1), some);
}

TEST_F(SubwordSamplerTest, TakesNoMoreRoomThanThereIsAndDrawsAmongWhatFits) {
  const Ids stored = vocabulary_.Encode("human rights");
  for (size_t most = stored.size(); most < stored.size() + 4; ++most) {
    std::set<Ids> seen, fit;
    for (const Segmentation& s : vocabulary_.NBest("human rights", 16)) {
      if (s.ids.size() <= most) fit.insert(s.ids);
    }
    for (int64_t draw = 0; draw < 500; ++draw) {
      seen.insert(Sampler(0.1, 16).Cut(stored, most, {"de-en", draw, 0}));
    }
    EXPECT_EQ(seen, fit) << most;
  }
}

TEST_F(SubwordSamplerTest, KeepsTagsInFrontAndSentencesWithUnknownCharacters) {
  Ids tagged = {*vocabulary_.TagId("de")};
  for (const int32_t id : vocabulary_.Encode("human rights")) tagged.push_back(id);
  std::set<Ids> seen;
  for (int64_t draw = 0; draw < 20; ++draw) {
    const Ids cut = Sampler(0.1).Cut(tagged, 100, {"de-en.bt", draw, 0});
    EXPECT_EQ(cut[0], tagged[0]);
    EXPECT_EQ(vocabulary_.Decode(cut), "human rights");
    seen.insert(cut);
    for (const size_t room : {0, 1, 2}) {
      EXPECT_LE(Sampler(0.1).Cut(tagged, tagged.size() + room, {"de-en.bt", draw, 0}).size(),
                tagged.size() + room);
    }
  }
  EXPECT_GT(seen.size(), 5u);
  const Ids unknown = vocabulary_.Encode("human 漢 rights");
  EXPECT_THAT(Sampler(0.1).Cut(unknown, 100, {"de-en", 0, 0}), ElementsAreArray(unknown));
}

TEST(SubwordSampler, RefusesATokenizerOfAnotherKind) {
  const Vocabulary bpe = Learned("bpe");
  EXPECT_THAT(std::string(SubwordSampler::Make(Spec(0.1), 1, &bpe).status().message()),
              HasSubstr("data.subword_alpha: the corpus's tokenizer is not a unigram model"));
}

TEST(SubwordRoom, IsAThirdOfTheLogarithmOfTheListAndNothingWithoutIt) {
  EXPECT_EQ(SubwordRoom(DataSpec()), 0);
  EXPECT_EQ(SubwordRoom(Spec(0.1, 2)), 1);
  EXPECT_EQ(SubwordRoom(Spec(0.1, 8)), 1);
  EXPECT_EQ(SubwordRoom(Spec(0.1, 64)), 2);
  EXPECT_EQ(SubwordRoom(Spec(0.1, 65)), 3);
  EXPECT_EQ(SubwordRoom(Spec(0.1, 512)), 3);
}

}  // namespace
}  // namespace deepnet
