// A PairIndex of any size whose lengths are a function: for tests and benchmarks of the data order.
// Header-only.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trainer/data/pair_index.h"

namespace deepnet::testing {

// Both directions of en-aa, en-ab, ... with `counts[i]` pairs. Lengths spread like those of real
// text: the source from a skew distribution of mean 26 and deviation 17 between 1 and 240 pieces,
// the target 0.8 to 1.3 times the source.
class SyntheticIndex : public PairIndex {
 public:
  explicit SyntheticIndex(const std::vector<int64_t>& counts) {
    for (size_t i = 0; i < counts.size(); ++i) {
      const std::string language = {static_cast<char>('a' + i / 26),
                                    static_cast<char>('a' + i % 26)};
      directions_.push_back({language, "en", counts[i]});
      directions_.push_back({"en", language, counts[i]});
    }
    std::sort(directions_.begin(), directions_.end(),
              [](const Direction& a, const Direction& b) { return a.Name() < b.Name(); });
    SampleMoments();
  }

  const std::vector<Direction>& directions() const override { return directions_; }

  PairLengths Lengths(int direction, int64_t pair) const override {
    uint64_t bits = (static_cast<uint64_t>(pair) + 1) * 0x9E3779B97F4A7C15ULL;
    bits ^= bits >> 29;
    bits *= 0xBF58476D1CE4E5B9ULL;
    bits ^= bits >> 32;
    const double u = static_cast<double>(bits & 0xFFFFFF) / 0x1000000;
    const double v = static_cast<double>(bits >> 40) / 0x1000000;
    const double first = std::clamp(8.0 - 18.0 * std::log(1.0 - u), 1.0, 180.0);
    const int a = static_cast<int>(first);
    const int b = std::max(1, static_cast<int>(first * (0.8 + 0.5 * v)));
    const bool from_english = directions_[direction].source == "en";
    return from_english ? PairLengths{a, b} : PairLengths{b, a};
  }

  LengthMoments Moments(int direction, int32_t max_tokens) const override {
    LengthMoments moments = max_tokens >= 240 ? all_ : Measure(max_tokens);
    moments.num_pairs = static_cast<int64_t>(
        share_kept_(max_tokens) * static_cast<double>(directions_[direction].num_pairs) + 0.5);
    if (directions_[direction].source != "en") {
      std::swap(moments.source, moments.target);
    }
    return moments;
  }

 private:
  static constexpr int64_t kSample = 100000;

  double share_kept_(int32_t max_tokens) const {
    return max_tokens >= 240 ? 1.0 : static_cast<double>(Measure(max_tokens).num_pairs) / kSample;
  }

  // Moments of the English-to-other direction, from the first pairs.
  LengthMoments Measure(int32_t max_tokens) const {
    int direction = 0;
    while (directions_[direction].source != "en") ++direction;
    double n = 0, s = 0, t = 0, ss = 0, tt = 0;
    for (int64_t i = 0; i < kSample; ++i) {
      const PairLengths lengths = Lengths(direction, i);
      if (std::max(lengths.source, lengths.target) > max_tokens) continue;
      n += 1;
      s += lengths.source;
      t += lengths.target;
      ss += static_cast<double>(lengths.source) * lengths.source;
      tt += static_cast<double>(lengths.target) * lengths.target;
    }
    return {
        static_cast<int64_t>(n), {s / n, ss / n - s / n * s / n}, {t / n, tt / n - t / n * t / n}};
  }

  void SampleMoments() { all_ = Measure(1000); }

  std::vector<Direction> directions_;
  LengthMoments all_;
};

}  // namespace deepnet::testing
