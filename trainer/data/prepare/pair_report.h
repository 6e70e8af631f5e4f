// The lines and pairs of a language pair, as reports count them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "proto/data.pb.h"
#include "trainer/data/prepare/corpus_passes.h"
#include "trainer/data/prepare/parallel_text.h"

namespace deepnet {

// Sets the pieces of both sides, their means by kept pair, and the pieces of the longest side.
void SetLengths(int64_t first, int64_t second, int32_t longest, LanguagePairReport* report);

LanguagePairReport MakePairReport(const LanguagePairTexts& texts, std::string_view split,
                                  const EncodedTotals& totals);

// Returns what a person is told of a text of which more than half of the lines are dropped, with
// the reason of most of them; empty of any other.
std::string DropWarning(const LanguagePairReport& counts);

// Adds the lines and pairs of a block to those of its language pair; means are left out.
void AddCounts(const LanguagePairReport& block, LanguagePairReport* report);

}  // namespace deepnet
