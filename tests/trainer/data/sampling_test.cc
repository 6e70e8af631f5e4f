#include "trainer/data/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace deepnet {
namespace {

TEST(SamplingWeights, FollowThePowerOfTheCounts) {
  const std::vector<int64_t> counts = {1, 10, 1000, 1'000'000, 3'000'000'000};
  for (const double temperature : {1.0, 1.5, 5.0, 100.0}) {
    const std::vector<int64_t> weights = SamplingWeights(counts, temperature);
    for (size_t i = 0; i < counts.size(); ++i) {
      const double expected = std::pow(static_cast<double>(counts[i]) / 3e9, 1.0 / temperature);
      EXPECT_NEAR(static_cast<double>(weights[i]) / static_cast<double>(weights.back()), expected,
                  1e-11)
          << temperature;
    }
  }
}

TEST(SamplingWeights, AreTheCountsAtTemperatureOne) {
  EXPECT_EQ(SamplingWeights(std::vector<int64_t>{3, 0, 7}, 1.0), (std::vector<int64_t>{3, 0, 7}));
}

TEST(SamplingWeights, AreFrozen) {
  // Runs on disk depend on these values: they must never change.
  EXPECT_EQ(SamplingWeights(std::vector<int64_t>{100, 0, 12345, 1'000'000}, 5.0),
            (std::vector<int64_t>{174260849389, 0, 456560195401, 1099511627776}));
}

TEST(SamplingWeights, AreMultipliedByTheFactors) {
  const std::vector<int64_t> counts = {100, 0, 12345, 1'000'000};
  const std::vector<double> factors = {0.5, 3.0, 2.0, 1.0};
  for (const double temperature : {1.0, 5.0}) {
    const std::vector<int64_t> plain = SamplingWeights(counts, temperature);
    const std::vector<int64_t> weights = SamplingWeights(counts, temperature, factors);
    for (size_t i = 0; i < counts.size(); ++i) {
      const double expected = static_cast<double>(plain[i]) / static_cast<double>(plain[3]);
      EXPECT_NEAR(static_cast<double>(weights[i]) / static_cast<double>(weights[3]),
                  factors[i] * expected, 1e-11)
          << temperature;
    }
    EXPECT_EQ(SamplingWeights(counts, temperature, std::vector<double>(4, 3.0)), plain);
  }
  // However small, it is drawn at times.
  EXPECT_EQ(SamplingWeights(counts, 1.0, std::vector<double>{1e-12, 0.0, 1.0, 1.0})[0], 1);
}

TEST(SamplingPlan, GivesEachPairOnceByTheEndOfAnEpochAtTemperatureOne) {
  const std::vector<int64_t> counts = {17, 1000, 333, 50};
  const SamplingPlan plan(counts, {{0, 1.0}}, 70);  // 1400 = 20 windows
  for (int direction = 0; direction < 4; ++direction) {
    EXPECT_EQ(plan.NumDrawn(direction, 20), counts[direction]);
    EXPECT_EQ(plan.NumDrawn(direction, 60), 3 * counts[direction]);
  }
}

TEST(SamplingPlan, DrawsSteadilyAndTheSameNumberInEveryWindow) {
  const std::vector<int64_t> counts = {200, 1000, 40, 50, 60, 70, 80, 90};
  const SamplingPlan plan(counts, {{0, 5.0}}, 100);
  for (int64_t window = 0; window < 500; ++window) {
    int64_t sum = 0;
    for (int direction = 0; direction < 8; ++direction) {
      const int64_t drawn = plan.NumDrawn(direction, window + 1) - plan.NumDrawn(direction, window);
      EXPECT_NEAR(static_cast<double>(drawn), 100.0 * plan.Share(direction, 0), 1.0);
      sum += drawn;
    }
    EXPECT_NEAR(static_cast<double>(sum), 100.0, 4.0);
  }
}

TEST(SamplingPlan, ChangesTemperatureWithoutSkippingOrRepeating) {
  const std::vector<int64_t> counts = {900, 100};
  const SamplingPlan plan(counts, {{0, 1.0}, {10, 1000.0}, {20, 1.0}}, 100);
  EXPECT_EQ(plan.NumDrawn(0, 10), 900);
  EXPECT_NEAR(static_cast<double>(plan.NumDrawn(0, 20) - plan.NumDrawn(0, 10)), 500.0, 2.0);
  EXPECT_EQ(plan.NumDrawn(0, 30) - plan.NumDrawn(0, 20), 900);
  for (int64_t window = 0; window < 40; ++window) {
    EXPECT_LE(plan.NumDrawn(1, window), plan.NumDrawn(1, window + 1));
  }
}

TEST(SamplingPlan, CountsBeyond32Bits) {
  const std::vector<int64_t> counts = {10'000'000'000, 1};
  const SamplingPlan plan(counts, {{0, 1.0}}, 1'000'000);
  const int64_t windows = 123'456'789'012;
  const double expected = 1e6 * static_cast<double>(windows) * plan.Share(0, 0);
  EXPECT_NEAR(static_cast<double>(plan.NumDrawn(0, windows)) / expected, 1.0, 1e-12);
}

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
