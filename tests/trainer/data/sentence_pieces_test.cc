#include "trainer/data/sentence_pieces.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace deepnet {
namespace {

// The sample of `counts[i]` distinct sentences of language i ("l0: 17").
std::vector<std::string> Sample(const SentenceSampleSpec& spec, const std::vector<int>& counts) {
  SentenceSample sample(spec);
  for (size_t i = 0; i < counts.size(); ++i) {
    const std::string language = "l" + std::to_string(i);
    for (int n = 0; n < counts[i]; ++n) sample.Add(language, language + ": " + std::to_string(n));
  }
  return sample.Take();
}

int CountOf(const std::vector<std::string>& sample, const std::string& language) {
  return static_cast<int>(std::count_if(sample.begin(), sample.end(), [&](const std::string& s) {
    return s.substr(0, language.size()) == language;
  }));
}

TEST(SentenceSample, TakesEverythingThatFitsOnce) {
  SentenceSample sample({.max_sentences = 100});
  for (int round = 0; round < 3; ++round) {
    for (int n = 0; n < 30; ++n) sample.Add("de", std::to_string(n));
  }
  const std::vector<std::string> taken = sample.Take();
  EXPECT_EQ(taken.size(), 30u);
  EXPECT_EQ(std::set<std::string>(taken.begin(), taken.end()).size(), 30u);
}

TEST(SentenceSample, LetsNoLanguageDominate) {
  const std::vector<std::string> sample =
      Sample({.max_sentences = 3000, .temperature = 5.0}, {160000, 10000, 5000});
  // 160000^0.2 : 10000^0.2 : 5000^0.2 = 10.99 : 6.31 : 5.49
  EXPECT_NEAR(CountOf(sample, "l0"), 1447, 150);
  EXPECT_NEAR(CountOf(sample, "l1"), 831, 150);
  EXPECT_NEAR(CountOf(sample, "l2"), 723, 150);
  EXPECT_LE(sample.size(), 3000u);
}

TEST(SentenceSample, IsTheSameForTheSameSeedAndAnotherForAnother) {
  const std::vector<int> counts = {5000, 5000};
  EXPECT_EQ(Sample({.max_sentences = 500, .seed = 1}, counts),
            Sample({.max_sentences = 500, .seed = 1}, counts));
  EXPECT_NE(Sample({.max_sentences = 500, .seed = 1}, counts),
            Sample({.max_sentences = 500, .seed = 2}, counts));
}

// Corpora on disk were learned from it: it must never change.
TEST(SentenceSample, IsFrozen) {
  SentenceSample sample({.max_sentences = 8, .max_bytes = 900, .temperature = 2.0, .seed = 3});
  EXPECT_EQ(sample.Threshold("none"), UINT64_MAX);
  for (int n = 0; n < 60; ++n) {
    const std::string language = n % 4 == 0 ? "en" : "de", text = std::to_string(n);
    const bool below = sample.Priority(language, text) < sample.Threshold(language);
    EXPECT_EQ(sample.Add(language, text), below) << n;
  }
  EXPECT_LT(sample.Threshold("de"), UINT64_MAX);
  sample.Skip("en", 1000);
  EXPECT_EQ(sample.Take(), (std::vector<std::string>{"33", "36", "56", "24", "44"}));
}

TEST(SentenceSample, StaysBelowItsBytes) {
  SentenceSample sample({.max_sentences = 1000000, .max_bytes = 100000});
  for (int n = 0; n < 20000; ++n) sample.Add("de", std::string(100, 'x') + std::to_string(n));
  const std::vector<std::string> taken = sample.Take();
  EXPECT_LT(taken.size(), 1000u);
  EXPECT_GT(taken.size(), 300u);
}

}  // namespace
}  // namespace deepnet
