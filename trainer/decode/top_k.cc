// A threshold scan. `best` holds the k best tokens seen so far as a heap with the worst on top; its
// log-probability is the threshold. A block of the row is compared with the threshold as a whole,
// without branches, so that the compiler uses vectors; only a block that holds something better
// (about k ln(n / k) of them) is looked at token by token. Strict comparison gives the tie rule for
// free, because ids are visited in ascending order, and keeps -infinity and NaN out.
#include "trainer/decode/top_k.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "parallel/base/check.h"

namespace deepnet {
namespace {

constexpr size_t kBlock = 128;
constexpr float kImpossible = -std::numeric_limits<float>::infinity();

bool AnyAbove(const float* values, float threshold) {
  int32_t count = 0;
  for (size_t i = 0; i < kBlock; ++i) count += values[i] > threshold ? 1 : 0;
  return count != 0;
}

bool IsBetter(const TokenScore& a, const TokenScore& b) {
  return a.log_prob != b.log_prob ? a.log_prob > b.log_prob : a.token < b.token;
}

// The k best so far: [first, end of `best`), as a heap whose top is the worst.
class BestSoFar {
 public:
  BestSoFar(int k, std::vector<TokenScore>& best) : best_(best), first_(best.size()), k_(k) {}

  // A token must be above this to enter.
  float threshold() const { return threshold_; }

  void Add(TokenScore candidate) {
    if (best_.size() - first_ == static_cast<size_t>(k_)) {
      std::pop_heap(Begin(), best_.end(), IsBetter);
      best_.back() = candidate;
    } else {
      best_.push_back(candidate);
    }
    std::push_heap(Begin(), best_.end(), IsBetter);
    if (best_.size() - first_ == static_cast<size_t>(k_)) threshold_ = Begin()->log_prob;
  }

  void Sort() { std::sort_heap(Begin(), best_.end(), IsBetter); }

 private:
  std::vector<TokenScore>::iterator Begin() { return best_.begin() + first_; }

  std::vector<TokenScore>& best_;
  const std::ptrdiff_t first_;
  const int k_;
  float threshold_ = kImpossible;
};

}  // namespace

void AppendTopK(std::span<const float> log_probs, std::span<const uint8_t> forbidden, int k,
                std::vector<TokenScore>& best) {
  DEEPNET_CHECK(k >= 1) << "k = " << k;
  DEEPNET_CHECK_EQ(log_probs.size(), forbidden.size());
  BestSoFar best_so_far(k, best);
  for (size_t begin = 0; begin < log_probs.size(); begin += kBlock) {
    const size_t end = std::min(begin + kBlock, log_probs.size());
    if (end - begin == kBlock && !AnyAbove(&log_probs[begin], best_so_far.threshold())) continue;
    for (size_t token = begin; token < end; ++token) {
      if (log_probs[token] > best_so_far.threshold() && forbidden[token] == 0) {
        best_so_far.Add({log_probs[token], static_cast<int32_t>(token)});
      }
    }
  }
  best_so_far.Sort();
}

int32_t DrawToken(std::span<const float> log_probs, std::span<const uint8_t> forbidden,
                  double temperature, double uniform) {
  DEEPNET_CHECK_EQ(log_probs.size(), forbidden.size());
  float highest = kImpossible;
  for (size_t token = 0; token < log_probs.size(); ++token) {
    if (forbidden[token] == 0 && log_probs[token] > highest) highest = log_probs[token];
  }
  if (highest == kImpossible) return -1;

  const auto weight = [&](size_t token) {  // relative to the highest, so that nothing overflows
    if (forbidden[token] != 0 || !(log_probs[token] > kImpossible)) return 0.0;
    return std::exp((static_cast<double>(log_probs[token]) - highest) / temperature);
  };
  double total = 0.0;
  for (size_t token = 0; token < log_probs.size(); ++token) total += weight(token);

  double sum = 0.0;
  int32_t last_possible = -1;
  for (size_t token = 0; token < log_probs.size(); ++token) {
    const double w = weight(token);
    if (w == 0.0) continue;
    sum += w;
    last_possible = static_cast<int32_t>(token);
    if (sum > uniform * total) break;
  }
  return last_possible;
}

}  // namespace deepnet
