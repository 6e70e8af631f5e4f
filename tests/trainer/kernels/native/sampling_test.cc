#include "trainer/kernels/native/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "parallel/base/philox.h"
#include "tests/support/initial_normal.h"

namespace deepnet::native {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<TokenScore> TopK(const std::vector<float>& row, const std::vector<uint8_t>& forbidden,
                             int k) {
  std::vector<TokenScore> best;
  AppendTopK(row, {forbidden, 1}, k, best);
  return best;
}

// Sorts the whole row.
std::vector<TokenScore> SortedTopK(const std::vector<float>& row,
                                   const std::vector<uint8_t>& forbidden, int k) {
  std::vector<TokenScore> all;
  for (size_t token = 0; token < row.size(); ++token) {
    if (forbidden[token] == 0 && row[token] > -kInfinity) {
      all.push_back({row[token], static_cast<int32_t>(token)});
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const TokenScore& a, const TokenScore& b) {
    return a.log_prob > b.log_prob;
  });
  if (all.size() > static_cast<size_t>(k)) all.resize(static_cast<size_t>(k));
  return all;
}

// Few distinct values, so that ties abound; some impossible, some not a number, some forbidden.
std::vector<float> RowWithTies(size_t size, uint64_t seed) {
  std::vector<float> row;
  for (size_t i = 0; i < size; ++i) {
    const uint32_t bits = Philox({static_cast<uint32_t>(seed), 0}, {static_cast<uint32_t>(i)})[0];
    row.push_back(bits % 31 == 0   ? kNan
                  : bits % 29 == 0 ? -kInfinity
                                   : -static_cast<float>(bits % 97));
  }
  return row;
}

std::vector<uint8_t> EveryFifthForbidden(size_t size) {
  std::vector<uint8_t> forbidden(size, 0);
  for (size_t i = 0; i < size; i += 5) forbidden[i] = 1;
  return forbidden;
}

TEST(TopK, EqualsSortingTheWholeRowForAllSizesAroundABlock) {
  for (size_t size = 1; size < 520; ++size) {
    const std::vector<float> row = RowWithTies(size, size);
    const std::vector<uint8_t> forbidden = EveryFifthForbidden(size);
    for (const int k : {1, 2, 10, 400}) {
      ASSERT_EQ(TopK(row, forbidden, k), SortedTopK(row, forbidden, k)) << size << " " << k;
    }
  }
}

TEST(TopK, EqualsSortingTheWholeRowInAscendingAndDescendingOrder) {
  std::vector<float> row(1000);
  for (size_t i = 0; i < row.size(); ++i) row[i] = -1.0f - static_cast<float>(i / 3);
  const std::vector<uint8_t> forbidden = EveryFifthForbidden(row.size());
  EXPECT_EQ(TopK(row, forbidden, 10), SortedTopK(row, forbidden, 10));
  std::reverse(row.begin(), row.end());
  EXPECT_EQ(TopK(row, forbidden, 10), SortedTopK(row, forbidden, 10));
}

TEST(TopK, AppendsBehindWhatIsThere) {
  std::vector<TokenScore> best = {{-9.0f, 7}};
  AppendTopK(std::vector<float>{-2.0f, -1.0f, -3.0f}, {std::vector<uint8_t>(3, 0), 1}, 2, best);
  EXPECT_EQ(best, (std::vector<TokenScore>{{-9.0f, 7}, {-1.0f, 1}, {-2.0f, 0}}));
}

TEST(TopK, ForbiddenTokensThatAreBestEverywhereHideNoOthers) {
  const size_t size = 2000;
  std::vector<float> row = RowWithTies(size, 7);
  std::vector<uint8_t> forbidden(size, 0);
  for (size_t i = 3; i < size; i += 16) {
    row[i] = 1.0f;
    forbidden[i] = 1;
  }
  for (const int k : {1, 3, 10, 40}) {
    EXPECT_EQ(TopK(row, forbidden, k), SortedTopK(row, forbidden, k)) << k;
  }
}

TEST(TopK, FindsNothingWhereNothingIsPossible) {
  EXPECT_TRUE(TopK({-kInfinity, kNan, 0.0f}, {0, 0, 1}, 2).empty());
}

TEST(DrawToken, CutsTheUnitIntervalInOrderOfIds) {
  const std::vector<float> row = {std::log(0.25f), 0.0f, std::log(0.5f), std::log(0.25f)};
  const std::vector<uint8_t> forbidden = {0, 1, 0, 0};
  EXPECT_EQ(DrawToken(row, {forbidden, 1}, 1.0, {}, 0.0), 0);
  EXPECT_EQ(DrawToken(row, {forbidden, 1}, 1.0, {}, 0.24), 0);
  EXPECT_EQ(DrawToken(row, {forbidden, 1}, 1.0, {}, 0.26), 2);
  EXPECT_EQ(DrawToken(row, {forbidden, 1}, 1.0, {}, 0.74), 2);
  EXPECT_EQ(DrawToken(row, {forbidden, 1}, 1.0, {}, 0.76), 3);
  EXPECT_EQ(DrawToken(row, {forbidden, 1}, 1.0, {}, 1.0 - 0x1p-53), 3);
}

TEST(DrawToken, AtATinyTemperatureTakesTheBest) {
  const std::vector<float> row = {-3.0f, -1.0f, -2.0f};
  EXPECT_EQ(DrawToken(row, {std::vector<uint8_t>(3, 0), 1}, 1e-9, {}, 0.999), 1);
}

TEST(DrawToken, NeverTakesWhatIsImpossible) {
  const std::vector<float> row = {kNan, -kInfinity, -5.0f, kNan};
  for (const double uniform : {0.0, 0.5, 0.999}) {
    EXPECT_EQ(DrawToken(row, {std::vector<uint8_t>(4, 0), 1}, 1.0, {}, uniform), 2);
    EXPECT_EQ(DrawToken(row, {std::vector<uint8_t>(4, 1), 1}, 1.0, {}, uniform), -1);
  }
}

// The share of each token by the definition: all are sorted, and each cut renormalises.
std::vector<double> SharesLeft(const std::vector<float>& row, const std::vector<uint8_t>& forbidden,
                               double temperature, const TokenCuts& cuts) {
  std::vector<TokenScore> left = SortedTopK(row, forbidden, static_cast<int>(row.size()));
  const auto shares_of = [&] {
    std::vector<double> shares;
    double sum = 0.0;
    for (const TokenScore& score : left) {
      shares.push_back(std::exp(static_cast<double>(score.log_prob) / temperature));
      sum += shares.back();
    }
    for (double& share : shares) share /= sum;
    return shares;
  };
  if (cuts.top_k > 0) left.resize(std::min(left.size(), static_cast<size_t>(cuts.top_k)));
  if (cuts.top_p > 0.0) {
    const std::vector<double> shares = shares_of();
    size_t count = 0;
    for (double sum = 0.0; count < left.size() && sum < cuts.top_p;) sum += shares[count++];
    left.resize(count);
  }
  if (cuts.epsilon > 0.0) {
    const std::vector<double> shares = shares_of();
    size_t count = 1;
    while (count < left.size() && shares[count] >= cuts.epsilon) ++count;
    left.resize(count);
  }
  const std::vector<double> shares = shares_of();
  std::vector<double> of_tokens(row.size(), 0.0);
  for (size_t i = 0; i < left.size(); ++i) {
    of_tokens[static_cast<size_t>(left[i].token)] = shares[i];
  }
  return of_tokens;
}

// Returns the token at which the running sum of shares exceeds `uniform`.
int32_t DrawByShares(const std::vector<double>& shares, double uniform) {
  double sum = 0.0;
  int32_t last = -1;
  for (size_t token = 0; token < shares.size() && sum <= uniform; ++token) {
    if (shares[token] > 0.0) last = static_cast<int32_t>(token);
    sum += shares[token];
  }
  return last;
}

// Random rows with some equal numbers. The cuts fall nowhere near a sum of equal shares.
TEST(DrawToken, CutsAsTheDefinitionDoes) {
  for (const size_t size : {1, 5, 70, 3000}) {
    std::vector<float> row;
    for (size_t i = 0; i < size; ++i) {
      row.push_back(i % 9 == 4 ? row[i - 2] : static_cast<float>(InitialNormal(3, "row", i)));
      if (i % 13 == 6) row[i] = i % 2 == 0 ? kNan : -kInfinity;
    }
    const std::vector<uint8_t> forbidden =
        size == 1 ? std::vector<uint8_t>(1, 0) : EveryFifthForbidden(size);
    for (const double temperature : {0.3, 1.0, 2.5}) {
      for (const TokenCuts& cuts :
           std::vector<TokenCuts>{{},
                                  {.top_k = 1},
                                  {.top_k = 7},
                                  {.top_k = 100000},
                                  {.top_p = 0.0123},
                                  {.top_p = 0.617},
                                  {.top_p = 0.9871},
                                  {.top_p = 1.0},
                                  {.epsilon = 0.00213},
                                  {.epsilon = 0.0917},
                                  {.epsilon = 0.999},
                                  {.top_k = 40, .top_p = 0.7331, .epsilon = 0.0317}}) {
        const std::vector<double> shares = SharesLeft(row, forbidden, temperature, cuts);
        for (int i = 0; i < 40; ++i) {
          const double uniform = (i + 0.4142) / 40;
          ASSERT_EQ(DrawToken(row, {forbidden, 1}, temperature, cuts, uniform),
                    DrawByShares(shares, uniform))
              << size << " tokens, T = " << temperature << ", top_k = " << cuts.top_k
              << ", top_p = " << cuts.top_p << ", epsilon = " << cuts.epsilon << ", " << uniform;
        }
      }
    }
  }
}

TEST(DrawToken, KeepsTheBestTokenWhateverIsCut) {
  const std::vector<float> row = {-3.0f, -1.0f, -1.0f};
  for (const TokenCuts& cuts :
       std::vector<TokenCuts>{{.top_k = 1}, {.top_p = 1e-300}, {.top_k = 1, .epsilon = 1.0}}) {
    EXPECT_EQ(DrawToken(row, {std::vector<uint8_t>(3, 0), 1}, 1.0, cuts, 0.999), 1);
  }
}

TEST(ChooseToken, TakesTheGivenTokenOfWhateverKindUnlessItIsImpossible) {
  const std::vector<float> row = {-1.0f, -2.0f, kNan, -kInfinity};
  const std::vector<uint8_t> kinds = {1, 2, 4, 8};
  std::vector<TokenChoice> wanted;
  for (const int32_t token : {1, 0, 2, 3}) {
    wanted.push_back({.forbidden = 3, .uniform = 0.5, .given = token});
  }
  const TokenScore none{-kInfinity, -1};
  for (const double temperature : {0.0, 1.0}) {
    const size_t k = temperature > 0.0 ? 1 : 2;
    std::vector<TokenScore> chosen(4 * k), expected(4 * k, none);
    expected[0] = {-2.0f, 1};
    expected[k] = {-1.0f, 0};
    TokenChoices choices{.count = 4,
                         .choices = wanted.data(),
                         .kinds = kinds.data(),
                         .k = static_cast<int>(k),
                         .temperature = temperature,
                         .chosen = chosen.data()};
    for (int64_t i = 0; i < 4; ++i) ChooseToken(row.data(), 4, 4, choices, i);
    EXPECT_EQ(chosen, expected);
  }
}

TEST(ChooseToken, TakesItsRowAndItsKinds) {
  const std::vector<float> rows = {-1.0f, -2.0f, -3.0f, 99.0f,  // a column more than tokens
                                   -3.0f, -1.0f, -2.0f, 99.0f};
  const std::vector<uint8_t> kinds = {1, 2, 4};
  const std::vector<TokenChoice> wanted = {{1, 0}, {0, 1}, {1, 2 | 4}, {1, 7}};
  std::vector<TokenScore> chosen(8);
  TokenChoices choices{
      .count = 4, .choices = wanted.data(), .kinds = kinds.data(), .k = 2, .chosen = chosen.data()};
  for (int64_t i = 0; i < 4; ++i) ChooseToken(rows.data(), 3, 4, choices, i);
  const TokenScore none{-kInfinity, -1};
  EXPECT_EQ(chosen,
            (std::vector<TokenScore>{
                {-1.0f, 1}, {-2.0f, 2}, {-2.0f, 1}, {-3.0f, 2}, {-3.0f, 0}, none, none, none}));
}

TEST(ChooseToken, DrawsByItsOwnNumber) {
  const std::vector<float> row = {std::log(0.5f), std::log(0.5f)};
  const std::vector<uint8_t> kinds = {1, 2};
  const std::vector<TokenChoice> wanted = {{0, 0, 0.4}, {0, 0, 0.6}, {0, 2, 0.9}, {0, 3, 0.9}};
  std::vector<TokenScore> chosen(4);
  TokenChoices choices{.count = 4,
                       .choices = wanted.data(),
                       .kinds = kinds.data(),
                       .temperature = 1.0,
                       .chosen = chosen.data()};
  for (int64_t i = 0; i < 4; ++i) ChooseToken(row.data(), 2, 2, choices, i);
  EXPECT_EQ(chosen,
            (std::vector<TokenScore>{{row[0], 0}, {row[1], 1}, {row[0], 0}, {-kInfinity, -1}}));
}

}  // namespace
}  // namespace deepnet::native
