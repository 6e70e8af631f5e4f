// The first reading of the training text, shared between ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "trainer/data/prepare/context.h"
#include "trainer/data/prepare/parallel_text.h"

namespace deepnet {

// Returns about how many bytes of training text each language pair has that has some.
std::vector<int64_t> TrainingBytes(const std::vector<LanguagePairTexts>& texts);

// Returns about how many training pairs `texts` have: counted where a text is short, else by its
// first 1,000 pairs.
double TrainingPairs(const std::vector<LanguagePairTexts>& texts);

// Fills context.scans: ranks scan the language pairs that are dealt to them, or find them scanned.
// Each has its blocks, a file of duplicate bits and, where a tokenizer is to be learned, a log of
// the sample. Collective.
absl::Status ScanTexts(PrepareContext& context);

}  // namespace deepnet
