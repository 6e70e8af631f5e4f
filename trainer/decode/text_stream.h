// Translation and scoring from stream to stream: order kept, memory bounded by a chunk of lines.
//
// Ranks that each hold the model share the work: rank 0 reads a chunk for each rank, all of them
// translate or score, and rank 0 writes the bytes that one process would. Only its streams are
// used.
#pragma once

#include <cstdint>
#include <istream>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "parallel/comm/communicator.h"
#include "proto/decode.pb.h"
#include "trainer/decode/scorer.h"
#include "trainer/decode/translator.h"

namespace deepnet {

// Lines of untrusted text, a bounded number of bytes at a time.
class LineChunkReader {
 public:
  static constexpr size_t kMaxLineBytes = size_t{1} << 20;
  static constexpr size_t kMaxChunkBytes = size_t{1} << 23;

  // Both must outlive the reader; `name` is how errors call the input ("standard input").
  LineChunkReader(std::istream& in, std::string name) : in_(in), name_(std::move(name)) {}

  // The next lines, without "\n" or "\r\n" and the byte order mark at the beginning: `max_lines` of
  // them, fewer if they hold more than kMaxChunkBytes together or the input ends, none at its end.
  // A last line without "\n" counts. INVALID_ARGUMENT with ExitCode::kData names input and line of
  // one that is not UTF-8 or is longer than kMaxLineBytes; what StreamError() says of the input,
  // where it says something.
  absl::StatusOr<std::vector<std::string>> ReadChunk(int max_lines);

  const std::string& name() const { return name_; }
  int64_t num_lines() const { return num_lines_; }  // read so far

 private:
  absl::StatusOr<bool> ReadLine(std::string& line);

  std::istream& in_;
  const std::string name_;
  int64_t num_lines_ = 0;
};

struct TranslateStreamOptions {
  int chunk_lines = 1000;  // lines read, sorted by length, translated and written together; >= 1
  bool scores = false;     // a column with Hypothesis::score, 6 decimals
  LineChunkReader* prefixes = nullptr;  // of the translations, a line for each of `in`; null: none
  Communicator* world = nullptr;  // the ranks, each with its BatchShare; null: this process alone
};

struct TranslateStreamReport {
  int64_t num_lines = 0;
  int64_t num_tokens = 0;       // of the first translation of each line, </s> counted
  int64_t num_cut_sources = 0;  // longer than the model takes
};

// Writes for each line of `in` its translation on one line, in order, and flushes after each chunk:
//   [number of the line, from 1 <TAB>] [score <TAB>] text
// The number is there if options().search.nbest > 1, when a line has several translations. Errors:
// those of LineChunkReader and Translator, and StreamError() of `out`.
// Collective over options.world, one thread a rank. Every rank gets the same error (IsAgreed); rank
// 0 gets the report, the others an empty one.
absl::StatusOr<TranslateStreamReport> TranslateStream(LineChunkReader& in, Translator& translator,
                                                      const TranslateStreamOptions& options,
                                                      std::ostream& out);

// Returns the next pairs, at most `max_pairs`, none at the end, from lines "source <TAB> target"
// or, with `targets`, from two inputs with a side each. INVALID_ARGUMENT with ExitCode::kData names
// input and line where there is no tab, or which of the two inputs ends first.
absl::StatusOr<TextBatch> ReadTextPairs(LineChunkReader& sources, LineChunkReader* targets,
                                        int max_pairs);

struct ScoreStreamOptions {
  TagFrame tags = {};                  // of the pairs' direction
  int chunk_pairs = 250;               // pairs read, scored and written together; >= 1
  int max_positions = 0;               // ids of a side, tags and </s> included; 0: any
  LineChunkReader* targets = nullptr;  // null: `in` has both sides
  Communicator* world = nullptr;       // the ranks; null: this process alone
};

struct ScoreStreamReport {
  int64_t num_pairs = 0;
  int64_t num_scored = 0;  // the others are longer than the model takes
  int64_t num_tokens = 0;  // target ids of the scored ones
  double log_prob = 0.0;   // their sum
};

// Writes a line per pair, in order, and flushes after each chunk:
//   log-probability, 6 decimals <TAB> number of target ids it is a sum over
// "nan" stands for the log-probability of a pair that is too long for the model. Collective over
// options.world, as TranslateStream is.
absl::StatusOr<ScoreStreamReport> ScoreStream(LineChunkReader& in, PairScorer& scorer,
                                              const TextCodec& codec,
                                              const ScoreStreamOptions& options, std::ostream& out);

}  // namespace deepnet
