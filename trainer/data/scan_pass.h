// The first reading: dev and test are copied and their sentences held out; training text is
// counted, searched for duplicates and sampled.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "proto/data.pb.h"
#include "trainer/data/cleaning.h"
#include "trainer/data/parallel_text.h"
#include "trainer/data/sentence_sample.h"
#include "trainer/data/text_inputs.h"

namespace deepnet {

// Called for every file that was read to its end.
using FileSeenFn = std::function<void(const LineReader&)>;

// Writes the dev or test text of one language pair to <folder>/<split>.<pair>.<language>, adds its
// sentences to `held_out`. Fails naming file and line at bad UTF-8 or a malformed row; pairs with
// an empty side or a tag in the text are dropped and counted. `files` gets the two files if a pair
// was kept.
absl::StatusOr<DropCounts> CopyHeldOut(const LanguagePairTexts& texts, std::string_view split,
                                       const TextFilter& filter, const std::string& folder,
                                       const FileSeenFn& seen, HeldOutSentences* held_out,
                                       google::protobuf::RepeatedPtrField<CorpusFile>* files);

struct ScanSpec {
  std::string folder;  // for temporary files
  bool find_duplicates = true;
  SentenceSample* sample = nullptr;  // null: no sample is wanted
};

struct ScanResult {
  int64_t num_lines = 0;                 // of all training texts of the pair
  std::vector<uint64_t> duplicate_bits;  // bit (line % 64) of word line / 64, over all texts; may
                                         // be empty: no duplicates
};

// Reads the training texts of one language pair.
absl::StatusOr<ScanResult> ScanTraining(const LanguagePairTexts& texts, const TextFilter& filter,
                                        const ScanSpec& spec, const FileSeenFn& seen);

// What TextFilter has to know of one text.
TextFilter::LanguagePair FilterPair(const LanguagePairTexts& texts, const ParallelFiles& files);

}  // namespace deepnet
