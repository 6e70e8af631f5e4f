#include <array>
#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "tests/support/table_scorer.h"
#include "trainer/decode/search.h"

namespace deepnet {
namespace {

using ::deepnet::testing::TableScorer;

constexpr int32_t kTag = 6;
const std::vector<int32_t> kSource = {kTag, 4, 5, SpecialId::kEnd};

SearchOptions SamplingOptions(double temperature, int nbest) {
  return {.min_tokens = 0,
          .max_tokens = 1,
          .nbest = nbest,
          .sampling_temperature = temperature,
          .seed = 17,
          .forbidden = {kTag}};
}

// First tokens (or </s>) of many samples against p^(1/T) over what is allowed: chi-square with 3
// degrees of freedom stays below 16.27 with probability 0.999; the seed is fixed.
void ExpectFrequenciesOf(double temperature) {
  constexpr int kNumSamples = 20000;
  constexpr std::array<int32_t, 4> kAllowed = {SpecialId::kEnd, SpecialId::kUnknown, 4, 5};
  TableScorer scorer({.vocabulary_size = 7, .seed = 8});
  const auto samples =
      Search(scorer, {.sources = {kSource}}, SamplingOptions(temperature, kNumSamples)).front();
  ASSERT_EQ(samples.size(), static_cast<size_t>(kNumSamples));
  std::map<int32_t, int> counts;
  for (const Hypothesis& sample : samples) {
    ++counts[sample.tokens.empty() ? SpecialId::kEnd : sample.tokens.front()];
  }

  const std::vector<int32_t> start = {SpecialId::kEnd};
  const std::vector<float> log_probs = scorer.LogProbs(kSource, start);
  double total = 0.0;
  for (const int32_t token : kAllowed) {
    total += std::exp(log_probs[static_cast<size_t>(token)] / temperature);
  }
  double chi_square = 0.0;
  for (const int32_t token : kAllowed) {
    const double expected =
        kNumSamples * std::exp(log_probs[static_cast<size_t>(token)] / temperature) / total;
    chi_square += (counts[token] - expected) * (counts[token] - expected) / expected;
  }
  EXPECT_LT(chi_square, 16.27) << "temperature " << temperature;
}

TEST(Sampling, FrequenciesFollowTheModel) { ExpectFrequenciesOf(1.0); }

TEST(Sampling, TemperatureSharpensAndFlattens) {
  ExpectFrequenciesOf(0.5);
  ExpectFrequenciesOf(2.0);
}

TEST(Sampling, DependsOnSeedAndOrdinalButNotOnTheBatch) {
  TableScorer scorer({.vocabulary_size = 7, .seed = 8});
  SearchOptions options = SamplingOptions(1.0, 3);
  options.max_tokens = 20;
  const std::vector<std::vector<int32_t>> sources(10, kSource);
  const auto together = Search(scorer, {.sources = sources}, options);
  for (size_t i = 0; i < sources.size(); ++i) {
    const auto alone =
        Search(scorer, {.sources = {kSource}, .ordinals = {static_cast<int64_t>(i)}}, options);
    EXPECT_EQ(together[i], alone.front()) << i;
  }
  EXPECT_NE(together[0], together[1]);
  options.seed = 18;
  EXPECT_NE(Search(scorer, {.sources = sources}, options), together);
}

TEST(Sampling, MoreSamplesKeepTheFirstOnes) {
  TableScorer scorer({.vocabulary_size = 7, .seed = 8});
  SearchOptions options = SamplingOptions(1.0, 3);
  options.max_tokens = 20;
  const auto few = Search(scorer, {.sources = {kSource}}, options).front();
  options.nbest = 8;
  const auto many = Search(scorer, {.sources = {kSource}}, options).front();
  ASSERT_EQ(many.size(), 8u);
  for (size_t i = 0; i < few.size(); ++i) EXPECT_EQ(many[i], few[i]) << i;
}

TEST(Sampling, ReportsTheModelsOwnProbabilityWhateverTheTemperature) {
  TableScorer scorer({.vocabulary_size = 7, .seed = 8});
  SearchOptions options = SamplingOptions(3.0, 4);
  options.max_tokens = 6;
  const auto samples = Search(scorer, {.sources = {kSource}}, options).front();
  for (const Hypothesis& sample : samples) {
    std::vector<int32_t> history = {SpecialId::kEnd};
    std::vector<int32_t> tokens = sample.tokens;
    tokens.push_back(SpecialId::kEnd);
    double log_prob = 0.0;
    for (const int32_t token : tokens) {
      log_prob += scorer.LogProbs(kSource, history)[static_cast<size_t>(token)];
      history.push_back(token);
    }
    EXPECT_DOUBLE_EQ(sample.log_prob, log_prob);
    EXPECT_LE(sample.tokens.size(), 6u);
  }
}

}  // namespace
}  // namespace deepnet
