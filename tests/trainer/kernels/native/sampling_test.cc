#include "trainer/kernels/native/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "parallel/base/philox.h"

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
  EXPECT_EQ(DrawToken(row, {forbidden, 1}, 1.0, 0.0), 0);
  EXPECT_EQ(DrawToken(row, {forbidden, 1}, 1.0, 0.24), 0);
  EXPECT_EQ(DrawToken(row, {forbidden, 1}, 1.0, 0.26), 2);
  EXPECT_EQ(DrawToken(row, {forbidden, 1}, 1.0, 0.74), 2);
  EXPECT_EQ(DrawToken(row, {forbidden, 1}, 1.0, 0.76), 3);
  EXPECT_EQ(DrawToken(row, {forbidden, 1}, 1.0, 1.0 - 0x1p-53), 3);
}

TEST(DrawToken, AtATinyTemperatureTakesTheBest) {
  const std::vector<float> row = {-3.0f, -1.0f, -2.0f};
  EXPECT_EQ(DrawToken(row, {std::vector<uint8_t>(3, 0), 1}, 1e-9, 0.999), 1);
}

TEST(DrawToken, NeverTakesWhatIsImpossible) {
  const std::vector<float> row = {kNan, -kInfinity, -5.0f, kNan};
  for (const double uniform : {0.0, 0.5, 0.999}) {
    EXPECT_EQ(DrawToken(row, {std::vector<uint8_t>(4, 0), 1}, 1.0, uniform), 2);
    EXPECT_EQ(DrawToken(row, {std::vector<uint8_t>(4, 1), 1}, 1.0, uniform), -1);
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
