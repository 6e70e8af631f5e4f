#include "trainer/data/permutation.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace deepnet {
namespace {

PermutationKey KeyOf(uint64_t seed, uint64_t stream, uint32_t epoch) {
  return {MakeKey(seed, RandomPurpose::kDataOrder), stream, epoch};
}

std::vector<int64_t> Whole(const PermutationKey& key, int64_t size) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < size; ++i) values.push_back(Permute(key, size, i));
  return values;
}

TEST(Permutation, VisitsEveryValueOnceForEverySize) {
  for (int64_t size = 1; size <= 300; ++size) {
    std::vector<int64_t> values = Whole(KeyOf(1, 2, 3), size);
    std::sort(values.begin(), values.end());
    for (int64_t i = 0; i < size; ++i) ASSERT_EQ(values[i], i) << size;
  }
  std::vector<int64_t> values = Whole(KeyOf(1, 2, 3), 65537);
  EXPECT_EQ(std::set<int64_t>(values.begin(), values.end()).size(), 65537u);
}

TEST(Permutation, DiffersBySeedStreamAndEpoch) {
  const std::vector<int64_t> base = Whole(KeyOf(1, 2, 3), 1000);
  EXPECT_NE(base, Whole(KeyOf(2, 2, 3), 1000));
  EXPECT_NE(base, Whole(KeyOf(1, 3, 3), 1000));
  EXPECT_NE(base, Whole(KeyOf(1, 2, 4), 1000));
  EXPECT_EQ(base, Whole(KeyOf(1, 2, 3), 1000));
}

TEST(Permutation, LooksRandom) {
  // Neighbours are uncorrelated: the serial correlation of n values has deviation 1 / sqrt(n).
  const int64_t size = 100000;
  const std::vector<int64_t> values = Whole(KeyOf(5, 6, 7), size);
  const double mean = static_cast<double>(size - 1) / 2.0;
  double covariance = 0.0, variance = 0.0;
  for (int64_t i = 0; i < size; ++i) {
    const double a = static_cast<double>(values[i]) - mean;
    covariance += a * (static_cast<double>(values[(i + 1) % size]) - mean);
    variance += a * a;
  }
  EXPECT_LT(std::fabs(covariance / variance), 4.0 / std::sqrt(static_cast<double>(size)));
}

TEST(Permutation, ServesSizesBeyond32Bits) {
  const int64_t size = 5'000'000'001;
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 1000; ++i) seen.insert(Permute(KeyOf(1, 2, 3), size, size - 1 - i));
  EXPECT_EQ(seen.size(), 1000u);
  EXPECT_GE(*seen.begin(), 0);
  EXPECT_LT(*seen.rbegin(), size);
}

TEST(Permutation, IsFrozen) {
  // Runs on disk depend on these values: they must never change.
  EXPECT_EQ(Whole(KeyOf(0, 0, 0), 8), (std::vector<int64_t>{4, 0, 3, 7, 5, 1, 2, 6}));
  EXPECT_EQ(Permute(KeyOf(42, HashName("de-en"), 1), 1'000'000, 0), 843660);
  EXPECT_EQ(Permute(KeyOf(42, HashName("de-en"), 1), 1'000'000, 999'999), 36767);
  EXPECT_EQ(BoundedNumber(MakeKey(42, RandomPurpose::kDataOrder), 3, 5, 1000), 106u);
}

}  // namespace
}  // namespace deepnet
