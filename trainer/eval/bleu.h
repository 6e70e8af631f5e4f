// Corpus BLEU (Papineni et al., 2002) as sacreBLEU 2.x computes it: one reference, orders 1 to 4,
// case kept, exponential smoothing, effective order off. Scores are equal to the last bit of the
// same libm.
//
// Example:
//   ASSIGN_OR_RETURN(const BleuTokenizer tokenizer, MakeTokenizer("13a"));
//   CorpusBleu(hypotheses, references, tokenizer).score;  // 46.78...
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "trainer/eval/tokenizers.h"

namespace deepnet {

inline constexpr int kBleuOrder = 4;

// The sacreBLEU release whose scores tests compare with, and which signatures name.
inline constexpr char kSacreBleuVersion[] = "2.6.0";

// Counts of all segments.
struct BleuCounts {
  std::array<int64_t, kBleuOrder> correct{};  // n-grams of the hypothesis also in the reference
  std::array<int64_t, kBleuOrder> total{};    // n-grams of the hypothesis
  int64_t hypothesis_tokens = 0;
  int64_t reference_tokens = 0;
};

struct BleuScore {
  double score = 0.0;                           // 0 to 100
  std::array<double, kBleuOrder> precisions{};  // percent, smoothed
  double brevity_penalty = 1.0;                 // factor, at most 1
  BleuCounts counts;
};

// Score of `hypotheses` against `references` (as many; checked), both untokenized.
BleuScore CorpusBleu(std::span<const std::string> hypotheses,
                     std::span<const std::string> references, const BleuTokenizer& tokenizer);

// "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
std::string BleuSignature(const BleuTokenizer& tokenizer);

}  // namespace deepnet
