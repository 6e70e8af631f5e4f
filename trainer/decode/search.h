// Finds the best target ids for source ids: beam search, greedy search (a beam of 1) and sampling
// over a Scorer, for many sentences at once. The rules and their reasons: docs/design/decoding.md.
//
// Example:
//   const auto results = Search(scorer, {.sources = {{tag, 17, 42, kEos}}}, {.beam_size = 5});
//   results[0][0].tokens;   // the best translation of the first source
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "proto/run.pb.h"
#include "trainer/decode/scorer.h"

namespace deepnet {

inline constexpr int kMaxHypotheses = 1000;      // of a sentence: beam_size, nbest
inline constexpr int kMaxBatchTokens = 1 << 20;  // of the sources that are decoded together

struct SearchOptions {
  int beam_size = 5;            // hypotheses kept, >= 1; 1 = greedy
  double length_penalty = 1.0;  // score = log p / length^length_penalty; 0 = log p itself
  int min_tokens = 1;           // output tokens at least, </s> not counted
  int max_tokens = 200;         // output tokens at most, </s> not counted; >= 1 and min_tokens
  double max_ratio = 0.0;       // > 0: also at most max_ratio * source ids + 10
  int nbest = 1;                // hypotheses returned, <= beam_size; sampling: samples drawn
  double sampling_temperature = 0.0;     // > 0: draw from p^(1 / temperature) instead of searching
  native::TokenCuts sampling_cuts = {};  // of what is drawn from
  uint64_t seed = 0;                     // of the samples
  std::vector<int32_t> forbidden;        // ids never emitted besides <s> and <pad>: language tags

  friend bool operator==(const SearchOptions&, const SearchOptions&) = default;
};

// Returns the options of `spec`, whose defaults are filled in. INVALID_ARGUMENT with
// ExitCode::kBadConfig lists every field that is out of range, a line each.
absl::StatusOr<SearchOptions> MakeSearchOptions(const DecodeSpec& spec,
                                                std::span<const int32_t> forbidden);

struct SearchBatch {
  std::vector<std::vector<int32_t>> sources;   // as for Scorer::Start
  std::vector<std::vector<int32_t>> tags;      // fed before the tokens of each; empty: none at all
  std::vector<std::vector<int32_t>> prefixes;  // forced first tokens of each; empty: none at all
  std::vector<int64_t> ordinals;  // identity of each sentence, for sampling; empty: 0, 1, 2, ...
};

// One translation. Its prefix is part of tokens, length and probability; its tags are not.
struct Hypothesis {
  std::vector<int32_t> tokens;  // without </s>
  double log_prob = 0.0;        // sum over tokens and </s>, natural logarithm
  double score = 0.0;           // log_prob / (tokens.size() + 1)^length_penalty

  friend bool operator==(const Hypothesis&, const Hypothesis&) = default;
};

// Searches all sentences of `batch` together. result[i] holds the nbest of source i: a search's
// best score first, samples in the order of their number. It holds fewer if the beam finished
// fewer, and none if the model gave every allowed token a log-probability of -infinity or NaN.
// The result of a sentence depends on it and the options alone, not on the sentences beside it, as
// far as the rows of `scorer` are independent. CHECK-fails on options out of range.
std::vector<std::vector<Hypothesis>> Search(Scorer& scorer, const SearchBatch& batch,
                                            const SearchOptions& options);

}  // namespace deepnet
