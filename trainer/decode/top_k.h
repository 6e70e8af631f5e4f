// Picks the tokens of a distribution that continue a hypothesis: the k best, or one drawn.
//
// Both read a row of log-probabilities once or twice, in order, and never choose a token that is
// forbidden or whose log-probability is -infinity or not a number.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deepnet {

struct TokenScore {
  float log_prob;
  int32_t token;

  friend bool operator==(const TokenScore&, const TokenScore&) = default;
};

// Appends to `best` the k best tokens of a row, best first; fewer if fewer are possible. Equal
// log-probabilities: the smaller id first. Ids with forbidden[id] != 0 are skipped;
// forbidden.size() == log_probs.size(). k >= 1. Cost: one vectorised comparison per token, and a
// look at each token of about k blocks of 64.
void AppendTopK(std::span<const float> log_probs, std::span<const uint8_t> forbidden, int k,
                std::vector<TokenScore>& best);

// Returns the token at which the running sum of exp(log_prob / temperature) over the allowed
// tokens, in order of id, first exceeds `uniform` times the complete sum; -1 if no token is
// possible. temperature > 0, 0 <= uniform < 1.
int32_t DrawToken(std::span<const float> log_probs, std::span<const uint8_t> forbidden,
                  double temperature, double uniform);

}  // namespace deepnet
