// Tokens of a segment pair are numbered, so that an n-gram is four small integers and not a string.
#include "trainer/eval/bleu.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"

namespace deepnet {
namespace {

constexpr int32_t kNone = -1;  // fills an n-gram below order 4

using Ngram = std::array<int32_t, kBleuOrder>;

using NgramCounts = absl::flat_hash_map<Ngram, int64_t>;
using Numbering = std::unordered_map<std::string, int32_t>;

std::vector<int32_t> Number(std::span<const std::string> tokens, Numbering& numbering) {
  std::vector<int32_t> numbers;
  numbers.reserve(tokens.size());
  for (const std::string& token : tokens) {
    numbers.push_back(
        numbering.emplace(token, static_cast<int32_t>(numbering.size())).first->second);
  }
  return numbers;
}

NgramCounts CountNgrams(std::span<const int32_t> tokens, size_t order) {
  NgramCounts counts;
  for (size_t start = 0; start + order <= tokens.size(); ++start) {
    Ngram ngram;
    ngram.fill(kNone);
    std::copy_n(tokens.begin() + start, order, ngram.begin());
    ++counts[ngram];
  }
  return counts;
}

double BrevityPenalty(const BleuCounts& counts) {
  if (counts.hypothesis_tokens >= counts.reference_tokens) return 1.0;
  if (counts.hypothesis_tokens == 0) return 0.0;
  return std::exp(1 - static_cast<double>(counts.reference_tokens) /
                          static_cast<double>(counts.hypothesis_tokens));
}

// Adds the counts of one segment.
void AddCounts(std::span<const std::string> hypothesis, std::span<const std::string> reference,
               BleuCounts* counts) {
  counts->hypothesis_tokens += std::ssize(hypothesis);
  counts->reference_tokens += std::ssize(reference);
  Numbering numbering;
  const std::vector<int32_t> hypothesis_tokens = Number(hypothesis, numbering);
  const std::vector<int32_t> reference_tokens = Number(reference, numbering);
  for (int n = 0; n < kBleuOrder; ++n) {
    const NgramCounts in_reference = CountNgrams(reference_tokens, n + 1);
    for (const auto& [ngram, count] : CountNgrams(hypothesis_tokens, n + 1)) {
      counts->total[n] += count;
      const auto match = in_reference.find(ngram);
      if (match != in_reference.end()) counts->correct[n] += std::min(count, match->second);
    }
  }
}

// Returns the score of summed counts.
BleuScore ScoreBleu(const BleuCounts& counts) {
  BleuScore score;
  score.counts = counts;
  score.brevity_penalty = BrevityPenalty(counts);
  const bool any_match = std::any_of(counts.correct.begin(), counts.correct.end(),
                                     [](int64_t correct) { return correct > 0; });
  if (!any_match) return score;

  double smoothing = 1.0;  // halves the imagined match of each further order without one
  for (int n = 0; n < kBleuOrder && counts.total[n] > 0; ++n) {
    const double total = static_cast<double>(counts.total[n]);
    if (counts.correct[n] == 0) {
      smoothing *= 2;
      score.precisions[n] = 100.0 / (smoothing * total);
    } else {
      score.precisions[n] = 100.0 * static_cast<double>(counts.correct[n]) / total;
    }
  }
  double sum = 0.0;
  for (const double precision : score.precisions) {
    sum += precision == 0.0 ? -9999999999.0 : std::log(precision);  // sacreBLEU's log of 0
  }
  score.score = score.brevity_penalty * std::exp(sum / kBleuOrder);
  return score;
}

}  // namespace

BleuScore CorpusBleu(std::span<const std::string> hypotheses,
                     std::span<const std::string> references, const BleuTokenizer& tokenizer) {
  DEEPNET_CHECK_EQ(hypotheses.size(), references.size());
  BleuCounts counts;
  for (size_t i = 0; i < hypotheses.size(); ++i) {
    AddCounts(tokenizer.tokenize(hypotheses[i]), tokenizer.tokenize(references[i]), &counts);
  }
  return ScoreBleu(counts);
}

std::string BleuSignature(const BleuTokenizer& tokenizer) {
  return absl::StrCat("nrefs:1|case:mixed|eff:no|tok:", tokenizer.name,
                      "|smooth:exp|version:", kSacreBleuVersion);
}

}  // namespace deepnet
