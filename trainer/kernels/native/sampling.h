// Chooses the tokens of distributions that continue hypotheses: the k best, one drawn, or a given
// one.
//
// A choice never takes a token of a kind that is forbidden to it, nor one whose log-probability is
// -infinity or not a number.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deepnet::native {

struct TokenScore {
  float log_prob;
  int32_t token;

  friend bool operator==(const TokenScore&, const TokenScore&) = default;
};

// One choice from a row of log-probabilities.
struct TokenChoice {
  int32_t row = 0;
  uint32_t forbidden = 0;  // kinds of tokens, a bit each
  double uniform = 0.0;    // in [0, 1), where a token is drawn
  int32_t given = -1;      // >= 0: this token, of whatever kind; then neither drawn nor the k best
};

// Which tokens may be drawn: the most probable ones. The cuts apply in this order, each to the
// shares of p^(1 / temperature) among the tokens that are left; among equal ones the smaller ids
// count as better. The best token always stays.
struct TokenCuts {
  int top_k = 0;         // > 0: at most the k best
  double top_p = 0.0;    // in (0, 1): the fewest of the best whose shares add up to at least this
  double epsilon = 0.0;  // > 0: those whose share is at least this

  friend bool operator==(const TokenCuts&, const TokenCuts&) = default;
};

// The choices of a step. The arrays but `chosen` are in the memory that their reader reads.
struct TokenChoices {
  int64_t count = 0;
  const TokenChoice* choices = nullptr;  // [count]
  const uint8_t* kinds = nullptr;        // [vocabulary] the kind of each token, a bit
  int k = 1;                             // >= 1; tokens chosen from a row, best first
  double temperature = 0.0;              // > 0: one is drawn instead, and k is 1
  TokenCuts cuts = {};                   // of what is drawn from
  // Out [count, k]: behind the last token that is possible {-infinity, -1}.
  TokenScore* chosen = nullptr;
};

// The tokens that a choice may take: kinds[token] & forbidden is 0.
struct AllowedTokens {
  std::span<const uint8_t> kinds;
  uint32_t forbidden = 0;

  bool operator[](size_t token) const { return (kinds[token] & forbidden) == 0; }
};

// Appends to `best` the k best tokens of a row, best first; fewer if fewer are possible. Equal
// log-probabilities: the smaller id first. k >= 1. Cost: one vectorised comparison per token, and a
// look at each token of about k blocks of 64.
void AppendTopK(std::span<const float> log_probs, const AllowedTokens& allowed, int k,
                std::vector<TokenScore>& best);

// Returns the token at which the running sum of exp(log_prob / temperature) over the allowed
// tokens that `cuts` leave, in order of id, first exceeds `uniform` times the complete sum; -1 if
// no token is possible. temperature > 0, 0 <= uniform < 1. Cost of top_k: AppendTopK; of top_p:
// some passes over the tokens that top_k left.
int32_t DrawToken(std::span<const float> log_probs, const AllowedTokens& allowed,
                  double temperature, const TokenCuts& cuts, double uniform);

// Makes choice number `index` from rows of log-probabilities, [., vocabulary].
void ChooseToken(const float* log_probs, int64_t vocabulary, int64_t stride,
                 const TokenChoices& choices, int64_t index);

}  // namespace deepnet::native
