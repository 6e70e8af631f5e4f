// The two readings of the text. First dev and test are copied and their sentences held out, and
// training text is counted, searched for duplicates and sampled for the tokenizer. Then training
// text goes through the filters and the tokenizer into a shard.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "proto/data.pb.h"
#include "proto/prepare.pb.h"
#include "trainer/data/corpus_shard.h"
#include "trainer/data/prepare/cleaning.h"
#include "trainer/data/prepare/parallel_text.h"
#include "trainer/data/prepare/sample_log.h"
#include "trainer/data/sentence_pieces.h"
#include "trainer/data/vocabulary.h"

namespace deepnet {

// Reads the texts of one split of a language pair and calls `visit` with every pair and what the
// filter says of it; `seen`, if any, with every file.
absl::Status JudgeTexts(
    const LanguagePairTexts& texts, std::string_view split, const TextFilter& filter,
    const FileSeenFn& seen,
    const std::function<absl::Status(DropReason, const RawPair&, const PairReader&)>& visit);

struct ScanSpec {
  std::string folder;  // for temporary files; of this process alone
  bool find_duplicates = true;
  SampleLog* sample = nullptr;             // null: no sample is wanted
  int64_t block_lines = int64_t{1} << 15;  // of the smallest block, a multiple of 64
};

struct ScanResult {
  int64_t num_lines = 0;  // of all training texts of the pair
  // Cover the texts, in their order: about 32 a text, of 1 to 8 times ScanSpec.block_lines. A
  // compressed text has 16 at most, because each is read from the text's beginning.
  std::vector<TextBlock> blocks;
  std::vector<uint64_t> duplicate_bits;  // bit TextBlock.bit + i for line i of a block
};

// First reading of the training texts of one language pair.
absl::StatusOr<ScanResult> ScanTraining(const LanguagePairTexts& texts, const TextFilter& filter,
                                        const ScanSpec& spec, const FileSeenFn& seen);

// Reads the training texts of one language pair again, as ScanTraining does, and adds their
// sentences to `sample`, but for the first `num_added`.
absl::Status SampleTraining(const LanguagePairTexts& texts, const TextFilter& filter,
                            int64_t num_added, SentenceSample* sample);

// Reads all training texts again and counts what the filter says of each pair.
absl::StatusOr<DropCounts> CountDrops(std::span<const LanguagePairTexts* const> pairs,
                                      const TextFilter& filter);

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

// Second reading: appends the kept pairs of one block to `shard` in the order of the text; the
// first sides of synthetic text begin with its tag.
// `duplicate_bits` as ScanTraining gives them. Memory: some 10 MiB a thread.
absl::StatusOr<EncodedTotals> EncodeBlock(const LanguagePairTexts& texts, const TextBlock& block,
                                          const EncodeSpec& spec,
                                          const std::vector<uint64_t>& duplicate_bits,
                                          ShardWriter* shard);

}  // namespace deepnet
