// Counter layout of Philox under the key of RandomPurpose::kDataOrder (docs/design/data.md):
//   Feistel round     {half block, epoch, stream low, stream high with its top byte = round}
//   bounded number    {index, window low, window high, 0xFF000000}
#include "trainer/data/sampling.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "parallel/base/check.h"

namespace deepnet {
namespace {

constexpr double kLn2 = 0.6931471805599453;

// Natural logarithm of x >= 1 by + - * / alone: x = m 2^e, ln m = 2 atanh((m - 1) / (m + 1)).
double PortableLog(double x) {
  const auto bits = std::bit_cast<uint64_t>(x);
  const int exponent = static_cast<int>(bits >> 52) - 1023;
  const double m = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFFULL) | 0x3FF0000000000000ULL);
  const double s = (m - 1.0) / (m + 1.0);
  double sum = 0.0;
  for (int k = 41; k >= 1; k -= 2) sum = sum * s * s + 1.0 / k;
  return 2.0 * s * sum + exponent * kLn2;
}

constexpr uint32_t kNumRounds = 6;
constexpr int kMinHalfBits = 2;

uint64_t Feistel(const PermutationKey& key, int half_bits, uint64_t value) {
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t left = value >> half_bits;
  uint64_t right = value & mask;
  for (uint32_t round = 0; round < kNumRounds; ++round) {
    const auto stream_high = static_cast<uint32_t>(key.stream >> 32) & 0x00FFFFFF;
    const PhiloxBlock bits =
        Philox(key.key, {static_cast<uint32_t>(right), key.epoch, static_cast<uint32_t>(key.stream),
                         stream_high | (round << 24)});
    const uint64_t next = left ^ (bits[0] & mask);
    left = right;
    right = next;
  }
  return left << half_bits | right;
}

}  // namespace

double PortableExp(double x) {
  if (x < -700.0) return 0.0;
  const auto halvings = static_cast<int>(-x / kLn2);
  const double rest = x + halvings * kLn2;
  double sum = 1.0;
  for (int k = 20; k >= 1; --k) sum = 1.0 + sum * rest / k;
  return sum * std::bit_cast<double>(static_cast<uint64_t>(1023 - halvings) << 52);
}

std::vector<int64_t> SamplingWeights(std::span<const int64_t> counts, double temperature,
                                     std::span<const double> factors) {
  DEEPNET_CHECK(temperature >= 1.0) << "temperature " << temperature;
  const double most = factors.empty() ? 1.0 : *std::max_element(factors.begin(), factors.end());
  const bool even =
      std::all_of(factors.begin(), factors.end(), [&](double f) { return f == most; });
  if (temperature == 1.0 && even) return {counts.begin(), counts.end()};
  const double largest = static_cast<double>(*std::max_element(counts.begin(), counts.end()));
  std::vector<int64_t> weights;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) {
      weights.push_back(0);
      continue;
    }
    const double log_ratio = PortableLog(static_cast<double>(counts[i])) - PortableLog(largest);
    const double weight =
        PortableExp(std::min(log_ratio / temperature, 0.0)) * (even ? 1.0 : factors[i] / most);
    // floor(2 x) + 1 halved is x rounded, in integers.
    const int64_t rounded = (static_cast<int64_t>(weight * 0x1p41) + 1) / 2;
    weights.push_back(std::max<int64_t>(1, rounded));
  }
  return weights;
}

SamplingPlan::SamplingPlan(std::span<const int64_t> counts, std::vector<SamplingPhase> phases,
                           int64_t pairs_per_window, std::span<const double> factors)
    : phases_(std::move(phases)), pairs_per_window_(pairs_per_window) {
  DEEPNET_CHECK(!phases_.empty() && phases_[0].first_window == 0) << "the first phase starts at 0";
  DEEPNET_CHECK(pairs_per_window > 0) << "pairs_per_window";
  for (const SamplingPhase& phase : phases_) {
    weights_.push_back(SamplingWeights(counts, phase.temperature, factors));
    weight_sums_.push_back(
        std::accumulate(weights_.back().begin(), weights_.back().end(), int64_t{0}));
    DEEPNET_CHECK(weight_sums_.back() > 0) << "no pairs";
  }
}

int64_t SamplingPlan::NumDrawn(int direction, int64_t window) const {
  // Golden-ratio steps spread the directions evenly over one pair.
  const uint32_t phase = static_cast<uint32_t>(direction) * 0x9E3779B9U;
  int64_t drawn = 0;
  for (size_t k = 0; k < phases_.size() && phases_[k].first_window < window; ++k) {
    const int64_t end =
        k + 1 < phases_.size() ? std::min(window, phases_[k + 1].first_window) : window;
    // floor(draws weight / sum + 2^-32 phase) without overflow.
    const auto draws = static_cast<unsigned __int128>(end - phases_[k].first_window) *
                       static_cast<unsigned __int128>(pairs_per_window_);
    const auto sum = static_cast<unsigned __int128>(weight_sums_[k]);
    const auto weight = static_cast<unsigned __int128>(weights_[k][direction]);
    drawn += static_cast<int64_t>((weight * draws + (sum * phase >> 32)) / sum);
  }
  return drawn;
}

double SamplingPlan::Share(int direction, int phase) const {
  return static_cast<double>(weights_[phase][direction]) / static_cast<double>(weight_sums_[phase]);
}

int64_t Permute(const PermutationKey& key, int64_t size, int64_t position) {
  DEEPNET_CHECK(0 <= position && position < size) << position << " of " << size;
  const int bits = std::bit_width(static_cast<uint64_t>(size - 1));
  const int half_bits = std::max((bits + 1) / 2, kMinHalfBits);
  auto value = static_cast<uint64_t>(position);
  do {
    value = Feistel(key, half_bits, value);
  } while (value >= static_cast<uint64_t>(size));
  return static_cast<int64_t>(value);
}

uint32_t BoundedNumber(PhiloxKey key, uint64_t window, uint32_t index, uint32_t bound) {
  const PhiloxBlock bits = Philox(
      key, {index, static_cast<uint32_t>(window), static_cast<uint32_t>(window >> 32), 0xFF000000});
  return static_cast<uint32_t>(static_cast<uint64_t>(bits[0]) * bound >> 32);
}

}  // namespace deepnet
