// Corpus BLEU (Papineni et al., 2002) and chrF2 (Popovic, 2015) as sacreBLEU 2.x computes them: one
// reference, case kept. BLEU has orders 1 to 4, exponential smoothing, effective order off; chrF2
// has character orders 1 to 6, no words, beta 2, white space skipped, effective order on. Scores
// are equal to the last bit of the same libm.
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

// Returns 0 to 100: `hypotheses` against `references` (as many; checked).
double CorpusChrf(std::span<const std::string> hypotheses, std::span<const std::string> references);

// "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
std::string BleuSignature(const std::string& tokenizer);

// "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0"
std::string ChrfSignature();

}  // namespace deepnet
