// Two passes. The first takes the maximum of each block of the row, without branches, so that the
// compiler uses vectors. The k-th largest of these maxima is a floor: k tokens reach it, so the k
// best do. The second pass looks token by token at the few blocks that reach the floor, and keeps
// the best in a heap with the worst on top, whose log-probability is the threshold for the next.
// Strict comparison with it gives the tie rule for free, because ids are visited in ascending
// order, and keeps -infinity and NaN out. If forbidden tokens put the floor too high, fewer than k
// are found, and the second pass is repeated without a floor.
//
// What cuts leave of a row to draw from is all that is no worse than one token, of at least some
// weight.
#include "trainer/kernels/native/sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

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

namespace {

// The weights of a row's tokens in a draw, relative to the best one's, so that nothing overflows; 0
// where a token is impossible or cut.
class DrawWeights {
 public:
  DrawWeights(std::span<const float> log_probs, const AllowedTokens& allowed, double temperature)
      : log_probs_(log_probs), allowed_(allowed), weights_(log_probs.size(), 0.0) {
    float highest = kImpossible;
    for (size_t token = 0; token < log_probs.size(); ++token) {
      if (allowed[token] && log_probs[token] > highest) highest = log_probs[token];
    }
    for (size_t token = 0; token < log_probs.size(); ++token) {
      if (!allowed[token] || !(log_probs[token] > kImpossible)) continue;
      weights_[token] = std::exp((static_cast<double>(log_probs[token]) - highest) / temperature);
    }
  }

  double operator[](size_t token) const { return weights_[token]; }
  double Total() const { return std::accumulate(weights_.begin(), weights_.end(), 0.0); }

  // Some token is possible.
  void Cut(const TokenCuts& cuts) {
    if (cuts.top_k > 0) {
      std::vector<TokenScore> best;
      AppendTopK(log_probs_, allowed_, cuts.top_k, best);
      CutBehind(best.back());
    }
    if (cuts.top_p > 0.0 && cuts.top_p < 1.0) CutBehind(EndOfNucleus(cuts.top_p * Total()));
    if (cuts.epsilon > 0.0) {
      const double least = std::min(1.0, cuts.epsilon * Total());  // the best has 1
      for (double& weight : weights_) weight = weight < least ? 0.0 : weight;
    }
  }

 private:
  TokenScore ScoreOf(size_t token) const {
    return {log_probs_[token], static_cast<int32_t>(token)};
  }

  void CutBehind(const TokenScore& last) {
    for (size_t token = 0; token < weights_.size(); ++token) {
      if (weights_[token] > 0.0 && IsBetter(last, ScoreOf(token))) weights_[token] = 0.0;
    }
  }

  // Returns the token at which the weights, best first, add up to `goal`, or the last one. Halves
  // the tokens among which it is: those before `begin` are better than the rest and weigh `sum`.
  TokenScore EndOfNucleus(double goal) const {
    std::vector<TokenScore> left;
    for (size_t token = 0; token < weights_.size(); ++token) {
      if (weights_[token] > 0.0) left.push_back(ScoreOf(token));
    }
    auto begin = left.begin(), end = left.end();
    double sum = 0.0;
    while (end - begin > 1) {
      const auto middle = begin + (end - begin) / 2;
      std::nth_element(begin, middle, end, IsBetter);
      double with_better = sum;
      for (auto score = begin; score != middle; ++score) {
        with_better += weights_[static_cast<size_t>(score->token)];
      }
      if (with_better >= goal) {
        end = middle;
      } else {
        sum = with_better;
        begin = middle;
      }
    }
    return *begin;
  }

  const std::span<const float> log_probs_;
  const AllowedTokens& allowed_;
  std::vector<double> weights_;
};

}  // namespace

int32_t DrawToken(std::span<const float> log_probs, const AllowedTokens& allowed,
                  double temperature, const TokenCuts& cuts, double uniform) {
  DEEPNET_CHECK_EQ(log_probs.size(), allowed.kinds.size());
  DrawWeights weights(log_probs, allowed, temperature);
  if (weights.Total() == 0.0) return -1;
  weights.Cut(cuts);
  const double total = weights.Total();
  double sum = 0.0;
  int32_t last_possible = -1;
  for (size_t token = 0; token < log_probs.size(); ++token) {
    const double w = weights[token];
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
  if (choice.given >= 0) {
    const float log_prob = row[static_cast<size_t>(choice.given)];
    if (log_prob > kImpossible) best.push_back({log_prob, choice.given});
  } else if (choices.temperature > 0.0) {
    const int32_t token =
        DrawToken(row, allowed, choices.temperature, choices.cuts, choice.uniform);
    if (token >= 0) best.push_back({row[static_cast<size_t>(token)], token});
  } else {
    AppendTopK(row, allowed, choices.k, best);
  }
  best.resize(k, {kImpossible, -1});
  std::copy(best.begin(), best.end(), choices.chosen + static_cast<size_t>(index) * k);
}

}  // namespace deepnet::native
