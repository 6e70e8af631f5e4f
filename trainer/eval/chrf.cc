// Six code points of 21 bits fit 128 bits, so an n-gram is one number and counting is sorting.
#include "trainer/eval/chrf.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "parallel/base/utf8.h"
#include "trainer/eval/bleu.h"

namespace deepnet {
namespace {

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
  code_points.erase(std::remove_if(code_points.begin(), code_points.end(), IsUnicodeSpace),
                    code_points.end());
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

// Size of the intersection of two sorted multisets.
int64_t CountCommon(std::span<const absl::uint128> a, std::span<const absl::uint128> b) {
  int64_t common = 0;
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (a[i] < b[j]) {
      ++i;
    } else if (b[j] < a[i]) {
      ++j;
    } else {
      ++common, ++i, ++j;
    }
  }
  return common;
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
    counts->match[n] += CountCommon(of_hypothesis, of_reference);
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
