// Corpus chrF2 (Popovic, 2015) as sacreBLEU 2.x computes it: one reference, character orders 1 to
// 6, no words, beta 2, case kept, white space skipped, effective order on.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace deepnet {

inline constexpr int kChrfOrder = 6;

// Counts of some segments, sufficient for chrF. Sums of segments' counts are the corpus's counts.
struct ChrfCounts {
  std::array<int64_t, kChrfOrder> hypothesis{};  // n-grams; 0 where the reference has none
  std::array<int64_t, kChrfOrder> reference{};   // n-grams
  std::array<int64_t, kChrfOrder> match{};       // n-grams in both

  ChrfCounts& operator+=(const ChrfCounts& other);
  friend bool operator==(const ChrfCounts&, const ChrfCounts&) = default;
};

// Counts of one segment, UTF-8.
ChrfCounts CountChrf(std::string_view hypothesis, std::string_view reference);

// 0 to 100, of summed counts.
double ScoreChrf(const ChrfCounts& counts);

// 0 to 100: `hypotheses` against `references` (as many; checked).
double CorpusChrf(std::span<const std::string> hypotheses, std::span<const std::string> references);

// "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0"
std::string ChrfSignature();

}  // namespace deepnet
