// Tokens of a segment pair are numbered, so that an n-gram is four small integers and not a string.
#include "trainer/eval/bleu.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/check.h"

namespace deepnet {
namespace {

constexpr int32_t kNone = -1;  // fills an n-gram below order 4

using Ngram = std::array<int32_t, kBleuOrder>;

struct NgramHash {
  size_t operator()(const Ngram& ngram) const {
    uint64_t hash = 0;
    for (const int32_t token : ngram) {
      hash = (hash ^ static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

using NgramCounts = std::unordered_map<Ngram, int64_t, NgramHash>;
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

}  // namespace

BleuCounts& BleuCounts::operator+=(const BleuCounts& other) {
  for (int n = 0; n < kBleuOrder; ++n) {
    correct[n] += other.correct[n];
    total[n] += other.total[n];
  }
  hypothesis_tokens += other.hypothesis_tokens;
  reference_tokens += other.reference_tokens;
  return *this;
}

BleuCounts CountBleu(std::span<const std::string> hypothesis,
                     std::span<const std::string> reference) {
  BleuCounts counts;
  counts.hypothesis_tokens = static_cast<int64_t>(hypothesis.size());
  counts.reference_tokens = static_cast<int64_t>(reference.size());
  Numbering numbering;
  const std::vector<int32_t> hypothesis_tokens = Number(hypothesis, numbering);
  const std::vector<int32_t> reference_tokens = Number(reference, numbering);
  for (int n = 0; n < kBleuOrder; ++n) {
    const NgramCounts in_reference = CountNgrams(reference_tokens, n + 1);
    for (const auto& [ngram, count] : CountNgrams(hypothesis_tokens, n + 1)) {
      counts.total[n] += count;
      const auto match = in_reference.find(ngram);
      if (match != in_reference.end()) counts.correct[n] += std::min(count, match->second);
    }
  }
  return counts;
}

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

BleuScore CorpusBleu(std::span<const std::string> hypotheses,
                     std::span<const std::string> references, const BleuTokenizer& tokenizer) {
  DEEPNET_CHECK_EQ(hypotheses.size(), references.size());
  BleuCounts counts;
  for (size_t i = 0; i < hypotheses.size(); ++i) {
    counts += CountBleu(tokenizer.tokenize(hypotheses[i]), tokenizer.tokenize(references[i]));
  }
  return ScoreBleu(counts);
}

std::string BleuSignature(const BleuTokenizer& tokenizer) {
  return absl::StrCat("nrefs:1|case:mixed|eff:no|tok:", tokenizer.name,
                      "|smooth:exp|version:", kSacreBleuVersion);
}

std::string ToString(const BleuScore& score) {
  const BleuCounts& counts = score.counts;
  const double ratio = counts.reference_tokens == 0
                           ? 0.0
                           : static_cast<double>(counts.hypothesis_tokens) /
                                 static_cast<double>(counts.reference_tokens);
  return absl::StrFormat(
      "%.2f %.1f/%.1f/%.1f/%.1f (BP = %.3f ratio = %.3f hyp_len = %d ref_len = %d)", score.score,
      score.precisions[0], score.precisions[1], score.precisions[2], score.precisions[3],
      score.brevity_penalty, ratio, counts.hypothesis_tokens, counts.reference_tokens);
}

}  // namespace deepnet
