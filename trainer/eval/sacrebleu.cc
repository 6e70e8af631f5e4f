// For BLEU the tokens of a segment pair are numbered, so that an n-gram is four small integers and
// not a string. For chrF2 six code points of 21 bits fit 128 bits, so an n-gram is one number and
// counting is sorting.
#include "trainer/eval/sacrebleu.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "parallel/base/utf8.h"

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
  if (std::ranges::count(counts.correct, 0) == kBleuOrder) return score;

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

constexpr int kChrfOrder = 6;
constexpr int kCodePointBits = 21;

// Counts of all segments.
struct ChrfCounts {
  std::array<int64_t, kChrfOrder> hypothesis{};  // n-grams; none where the reference has none
  std::array<int64_t, kChrfOrder> reference{};   // n-grams
  std::array<int64_t, kChrfOrder> match{};       // n-grams in both
};

std::u32string WithoutSpace(std::string_view text) {
  std::u32string code_points = DecodeUtf8(text);
  std::erase_if(code_points, IsUnicodeSpace);
  return code_points;
}

// All n-grams of `text`, ascending.
std::vector<absl::uint128> SortedNgrams(std::u32string_view text, size_t order) {
  std::vector<absl::uint128> ngrams;
  for (size_t start = 0; start + order <= text.size(); ++start) {
    absl::uint128 ngram = 0;
    for (size_t i = 0; i < order; ++i) {
      ngram = (ngram << kCodePointBits) | static_cast<uint64_t>(text[start + i]);
    }
    ngrams.push_back(ngram);
  }
  std::sort(ngrams.begin(), ngrams.end());
  return ngrams;
}

// Adds the counts of one segment, UTF-8.
void AddCounts(std::string_view hypothesis, std::string_view reference, ChrfCounts* counts) {
  const std::u32string hypothesis_text = WithoutSpace(hypothesis);
  const std::u32string reference_text = WithoutSpace(reference);
  for (int n = 0; n < kChrfOrder; ++n) {
    const std::vector<absl::uint128> of_hypothesis = SortedNgrams(hypothesis_text, n + 1);
    const std::vector<absl::uint128> of_reference = SortedNgrams(reference_text, n + 1);
    counts->reference[n] += std::ssize(of_reference);
    counts->hypothesis[n] += of_reference.empty() ? 0 : std::ssize(of_hypothesis);
    std::vector<absl::uint128> common;
    std::ranges::set_intersection(of_hypothesis, of_reference, std::back_inserter(common));
    counts->match[n] += std::ssize(common);
  }
}

double ScoreChrf(const ChrfCounts& counts) {
  constexpr double kBetaSquared = 4.0;
  double precision = 0.0, recall = 0.0;
  int orders = 0;  // that both sides have
  for (int n = 0; n < kChrfOrder; ++n) {
    if (counts.hypothesis[n] == 0 || counts.reference[n] == 0) continue;
    precision += static_cast<double>(counts.match[n]) / static_cast<double>(counts.hypothesis[n]);
    recall += static_cast<double>(counts.match[n]) / static_cast<double>(counts.reference[n]);
    ++orders;
  }
  if (orders == 0 || precision + recall == 0.0) return 0.0;
  precision /= orders;
  recall /= orders;
  const double numerator = (1 + kBetaSquared) * precision * recall;
  return 100 * (numerator / (kBetaSquared * precision + recall));
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

std::string BleuSignature(const std::string& tokenizer) {
  return absl::StrCat("nrefs:1|case:mixed|eff:no|tok:", tokenizer,
                      "|smooth:exp|version:", kSacreBleuVersion);
}

double CorpusChrf(std::span<const std::string> hypotheses,
                  std::span<const std::string> references) {
  DEEPNET_CHECK_EQ(hypotheses.size(), references.size());
  ChrfCounts counts;
  for (size_t i = 0; i < hypotheses.size(); ++i) AddCounts(hypotheses[i], references[i], &counts);
  return ScoreChrf(counts);
}

std::string ChrfSignature() {
  return absl::StrCat("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:", kSacreBleuVersion);
}

}  // namespace deepnet
