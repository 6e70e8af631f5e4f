// Corpus chrF2 (Popovic, 2015) as sacreBLEU 2.x computes it: one reference, character orders 1 to
// 6, no words, beta 2, case kept, white space skipped, effective order on.
#pragma once

#include <span>
#include <string>

namespace deepnet {

// 0 to 100: `hypotheses` against `references` (as many; checked).
double CorpusChrf(std::span<const std::string> hypotheses, std::span<const std::string> references);

// "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0"
std::string ChrfSignature();

}  // namespace deepnet
