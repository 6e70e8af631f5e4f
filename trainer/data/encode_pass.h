// The second reading: training text through the filters and the tokenizer into a shard.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "proto/data.pb.h"
#include "trainer/data/cleaning.h"
#include "trainer/data/scan_pass.h"
#include "trainer/data/shard.h"
#include "trainer/data/text_inputs.h"
#include "trainer/data/vocabulary.h"

namespace deepnet {

struct EncodeSpec {
  const TextFilter* filter = nullptr;
  const Vocabulary* vocabulary = nullptr;
  CleaningSpec cleaning;  // with its defaults
  int num_threads = 2;    // > 0; the result does not depend on it
};

// Sums over the pairs that were kept.
struct EncodedTotals {
  DropCounts counts;
  int64_t first_tokens = 0;  // pieces
  int64_t second_tokens = 0;
  int32_t longest = 0;  // pieces of the longest side
};

// Appends the kept pairs of one language pair to `shard` in the order of its texts.
// `duplicate_bits` as ScanTraining gives it. Memory: some 10 MiB a thread.
absl::StatusOr<EncodedTotals> EncodeTraining(const LanguagePairTexts& texts, const EncodeSpec& spec,
                                             const std::vector<uint64_t>& duplicate_bits,
                                             ShardWriter* shard);

}  // namespace deepnet
