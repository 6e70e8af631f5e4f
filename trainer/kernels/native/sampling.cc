// Two passes. The first takes the maximum of each block of the row, without branches, so that the
// compiler uses vectors. The k-th largest of these maxima is a floor: k tokens reach it, so the k
// best do. The second pass looks token by token at the few blocks that reach the floor, and keeps
// the best in a heap with the worst on top, whose log-probability is the threshold for the next.
// Strict comparison with it gives the tie rule for free, because ids are visited in ascending
// order, and keeps -infinity and NaN out. If forbidden tokens put the floor too high, fewer than k
// are found, and the second pass is repeated without a floor.
#include "trainer/kernels/native/sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "parallel/base/check.h"

namespace deepnet::native {
namespace {

constexpr size_t kBlock = 64;
constexpr size_t kMaxima = 16;  // running maxima of a block, side by side
constexpr float kImpossible = -std::numeric_limits<float>::infinity();

float MaxOfBlock(const float* values) {
  float largest[kMaxima];
  std::fill_n(largest, kMaxima, kImpossible);  // a NaN never replaces it
  for (size_t begin = 0; begin < kBlock; begin += kMaxima) {
    for (size_t i = 0; i < kMaxima; ++i) {
      const float value = values[begin + i];
      largest[i] = value > largest[i] ? value : largest[i];
    }
  }
  return *std::max_element(largest, largest + kMaxima);
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
    if (IsFull()) {
      std::pop_heap(Begin(), best_.end(), IsBetter);
      best_.back() = candidate;
    } else {
      best_.push_back(candidate);
    }
    std::push_heap(Begin(), best_.end(), IsBetter);
    if (IsFull()) threshold_ = Begin()->log_prob;
  }

  bool IsFull() const { return best_.size() - first_ == static_cast<size_t>(k_); }

  void Clear() {
    best_.resize(first_);
    threshold_ = kImpossible;
  }

  void Sort() { std::sort_heap(Begin(), best_.end(), IsBetter); }

 private:
  std::vector<TokenScore>::iterator Begin() { return best_.begin() + first_; }

  std::vector<TokenScore>& best_;
  const std::ptrdiff_t first_;
  const int k_;
  float threshold_ = kImpossible;
};

std::vector<float> BlockMaxima(std::span<const float> values) {
  std::vector<float> maxima;
  maxima.reserve(values.size() / kBlock + 1);
  size_t begin = 0;
  for (; begin + kBlock <= values.size(); begin += kBlock) {
    maxima.push_back(MaxOfBlock(&values[begin]));
  }
  if (begin < values.size()) {
    float largest = kImpossible;
    for (const float value : values.subspan(begin)) largest = value > largest ? value : largest;
    maxima.push_back(largest);
  }
  return maxima;
}

// Returns a value that at least k numbers reach, if no token is forbidden.
float FloorOf(std::vector<float> maxima, int k) {
  if (maxima.size() < static_cast<size_t>(k)) return kImpossible;
  const auto kth = maxima.begin() + (k - 1);
  std::nth_element(maxima.begin(), kth, maxima.end(), std::greater<>());
  return *kth;
}

// Offers every allowed token of the blocks that reach `floor`.
void Scan(std::span<const float> log_probs, const AllowedTokens& allowed,
          std::span<const float> maxima, float floor, BestSoFar& best) {
  for (size_t block = 0; block < maxima.size(); ++block) {
    if (maxima[block] < floor || !(maxima[block] > best.threshold())) continue;
    const size_t end = std::min((block + 1) * kBlock, log_probs.size());
    for (size_t token = block * kBlock; token < end; ++token) {
      const float log_prob = log_probs[token];
      if (log_prob >= floor && log_prob > best.threshold() && allowed[token]) {
        best.Add({log_prob, static_cast<int32_t>(token)});
      }
    }
  }
}

}  // namespace

void AppendTopK(std::span<const float> log_probs, const AllowedTokens& allowed, int k,
                std::vector<TokenScore>& best) {
  DEEPNET_CHECK(k >= 1) << "k = " << k;
  DEEPNET_CHECK_EQ(log_probs.size(), allowed.kinds.size());
  BestSoFar best_so_far(k, best);
  const std::vector<float> maxima = BlockMaxima(log_probs);
  const float floor = FloorOf(maxima, k);
  Scan(log_probs, allowed, maxima, floor, best_so_far);
  if (!best_so_far.IsFull() && floor > kImpossible) {
    best_so_far.Clear();
    Scan(log_probs, allowed, maxima, kImpossible, best_so_far);
  }
  best_so_far.Sort();
}

int32_t DrawToken(std::span<const float> log_probs, const AllowedTokens& allowed,
                  double temperature, double uniform) {
  DEEPNET_CHECK_EQ(log_probs.size(), allowed.kinds.size());
  float highest = kImpossible;
  for (size_t token = 0; token < log_probs.size(); ++token) {
    if (allowed[token] && log_probs[token] > highest) highest = log_probs[token];
  }
  if (highest == kImpossible) return -1;

  const auto weight = [&](size_t token) {  // relative to the highest, so that nothing overflows
    if (!allowed[token] || !(log_probs[token] > kImpossible)) return 0.0;
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

void ChooseToken(const float* log_probs, int64_t vocabulary, int64_t stride,
                 const TokenChoices& choices, int64_t index) {
  const TokenChoice& choice = choices.choices[index];
  const std::span row(log_probs + choice.row * stride, static_cast<size_t>(vocabulary));
  const AllowedTokens allowed{{choices.kinds, row.size()}, choice.forbidden};
  const size_t k = static_cast<size_t>(choices.k);
  std::vector<TokenScore> best;
  if (choices.temperature > 0.0) {
    const int32_t token = DrawToken(row, allowed, choices.temperature, choice.uniform);
    if (token >= 0) best.push_back({row[static_cast<size_t>(token)], token});
  } else {
    AppendTopK(row, allowed, choices.k, best);
  }
  best.resize(k, {kImpossible, -1});
  std::copy(best.begin(), best.end(), choices.chosen + static_cast<size_t>(index) * k);
}

}  // namespace deepnet::native
