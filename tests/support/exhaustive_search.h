// Slow, obvious twins of the searches of trainer/decode. Not for production: one enumerates every
// output, the other sorts every continuation of every hypothesis.
#pragma once

#include <vector>

#include "tests/support/table_scorer.h"
#include "trainer/decode/search.h"

namespace deepnet::testing {

// Returns every output that `options` allows, best score first.
std::vector<Hypothesis> EnumerateOutputs(const TableScorer& scorer,
                                         const std::vector<int32_t>& source,
                                         const SearchOptions& options);

// Beam search by the rules of docs/design/decoding.md, with a full sort at each step and without
// the stop that only saves time.
std::vector<Hypothesis> ObviousBeamSearch(const TableScorer& scorer,
                                          const std::vector<int32_t>& source,
                                          const SearchOptions& options);

}  // namespace deepnet::testing
