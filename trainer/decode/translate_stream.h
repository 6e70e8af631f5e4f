// A Translator between two streams: order kept, memory bounded by a chunk of lines.
#pragma once

#include <cstdint>
#include <ostream>

#include "absl/status/statusor.h"

#include "trainer/decode/line_chunk_reader.h"
#include "trainer/decode/translator.h"

namespace deepnet {

struct TranslateStreamOptions {
  int chunk_lines = 1000;  // lines read, sorted by length, translated and written together; >= 1
  bool scores = false;     // a column with Hypothesis::score, 6 decimals
};

struct TranslateStreamReport {
  int64_t num_lines = 0;
  int64_t num_tokens = 0;       // of the first translation of each line, </s> counted
  int64_t num_cut_sources = 0;  // longer than the model takes
};

// Writes for each line of `in` its translation on one line, in order, and flushes after each chunk:
//   [number of the line, from 1 <TAB>] [score <TAB>] text
// The number is there if options().search.nbest > 1, when a line has several translations. Errors:
// those of LineChunkReader and Translator, and UNAVAILABLE if `out` cannot be written.
absl::StatusOr<TranslateStreamReport> TranslateStream(LineChunkReader& in, Translator& translator,
                                                      const TranslateStreamOptions& options,
                                                      std::ostream& out);

}  // namespace deepnet
