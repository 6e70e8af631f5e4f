#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <gtest/gtest.h>

#include "tests/support/table_scorer.h"
#include "trainer/decode/search.h"

namespace deepnet {
namespace {

using ::deepnet::testing::TableScorer;

constexpr int32_t kTag = 6;
const std::vector<int32_t> kSource = {kTag, 4, 5, kEos};

SearchOptions SamplingOptions(double temperature, int nbest) {
  return {.min_tokens = 0,
          .max_tokens = 1,
          .nbest = nbest,
          .sampling_temperature = temperature,
          .seed = 17,
          .forbidden = {kTag}};
}

// Returns the share of each token by the definition: p^(1/T) of the allowed ones, of which each cut
// in turn leaves the most probable, renormalised.
std::map<int32_t, double> SharesOf(const std::vector<float>& log_probs,
                                   const SearchOptions& options) {
  std::vector<std::pair<double, int32_t>> left;
  for (int32_t token = 2; token < std::ssize(log_probs); ++token) {  // neither <s> nor <pad>
    if (token == kTag) continue;
    left.emplace_back(
        std::exp(log_probs[static_cast<size_t>(token)] / options.sampling_temperature), token);
  }
  std::sort(left.rbegin(), left.rend());
  const auto renormalise = [&left] {
    double sum = 0.0;
    for (const auto& [share, token] : left) sum += share;
    for (auto& [share, token] : left) share /= sum;
  };
  const native::TokenCuts& cuts = options.sampling_cuts;
  if (cuts.top_k > 0) left.resize(static_cast<size_t>(cuts.top_k));
  renormalise();
  if (cuts.top_p > 0.0) {
    size_t count = 0;
    for (double sum = 0.0; sum < cuts.top_p; ++count) sum += left[count].first;
    left.resize(count);
    renormalise();
  }
  std::erase_if(left, [&](const auto& token) { return token.first < cuts.epsilon; });
  renormalise();
  std::map<int32_t, double> shares;
  for (const auto& [share, token] : left) shares[token] = share;
  return shares;
}

// Compares the first tokens (or </s>) of many samples with their shares: chi-square stays below its
// 0.999 quantile (Wilson and Hilferty's approximation) with probability 0.999; the seed is fixed.
void ExpectFrequenciesOf(double temperature, const native::TokenCuts& cuts, size_t num_left) {
  constexpr int kNumSamples = 20000;
  TableScorer scorer({.vocabulary_size = 40, .seed = 8});
  SearchOptions options = SamplingOptions(temperature, kNumSamples);
  options.sampling_cuts = cuts;
  const auto samples = Search(scorer, {.sources = {kSource}}, options).front();
  ASSERT_EQ(samples.size(), static_cast<size_t>(kNumSamples));
  std::map<int32_t, int> counts;
  for (const Hypothesis& sample : samples) {
    ++counts[sample.tokens.empty() ? kEos : sample.tokens.front()];
  }

  const std::vector<int32_t> start = {kEos};
  const auto shares = SharesOf(scorer.LogProbs(kSource, start), options);
  EXPECT_EQ(shares.size(), num_left);
  for (const auto& [token, count] : counts) EXPECT_TRUE(shares.contains(token)) << token;
  double chi_square = 0.0;
  for (const auto& [token, share] : shares) {
    const double expected = kNumSamples * share;
    chi_square += (counts[token] - expected) * (counts[token] - expected) / expected;
  }
  const double degrees = static_cast<double>(shares.size()) - 1;
  const double spread = 2.0 / (9.0 * degrees);
  EXPECT_LT(chi_square, degrees * std::pow(1.0 - spread + 3.09 * std::sqrt(spread), 3));
}

TEST(Sampling, FrequenciesFollowTheModel) { ExpectFrequenciesOf(1.0, {}, 37); }

TEST(Sampling, TemperatureSharpensAndFlattens) {
  ExpectFrequenciesOf(0.5, {}, 37);
  ExpectFrequenciesOf(2.0, {}, 37);
}

TEST(Sampling, EachCutLeavesTheMostProbableTokensByTheSharesAtTheTemperature) {
  ExpectFrequenciesOf(1.0, {.top_k = 5}, 5);
  ExpectFrequenciesOf(1.0, {.top_p = 0.6}, 9);
  ExpectFrequenciesOf(2.0, {.top_p = 0.6}, 14);
  ExpectFrequenciesOf(1.0, {.epsilon = 0.04}, 8);
  ExpectFrequenciesOf(0.5, {.epsilon = 0.04}, 5);
  ExpectFrequenciesOf(0.7, {.top_k = 12, .top_p = 0.9, .epsilon = 0.05}, 7);
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
  EXPECT_NE(Search(scorer, {.sources = {kSource}, .ordinals = {int64_t{1} << 32}}, options).front(),
            together[0]);
  options.sampling_cuts = {.top_k = 1};
  EXPECT_EQ(Search(scorer, {.sources = {kSource}}, options).front(),
            Search(scorer, {.sources = {kSource}, .ordinals = {7}}, options).front());
  options.sampling_cuts = {};
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
    std::vector<int32_t> history = {kEos};
    std::vector<int32_t> tokens = sample.tokens;
    tokens.push_back(kEos);
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
