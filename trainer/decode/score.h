// How probable a given translation is: log p(target | source), for pairs of ids and of texts.
#pragma once

#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "trainer/decode/line_chunk_reader.h"
#include "trainer/decode/scorer.h"
#include "trainer/decode/text_codec.h"

namespace deepnet {

// One pair as a model is trained on it: tags and </s> included on both sides, neither side empty.
// Of a model of one stack (trainer/data/one_sided.h) the source is empty, `input` is what the stack
// reads and target[t] < 0 says nothing.
struct IdPair {
  std::vector<int32_t> source;
  std::vector<int32_t> target;
  std::vector<int32_t> input = {};

  friend bool operator==(const IdPair&, const IdPair&) = default;
};

// Log-probabilities of whole targets.
class PairScorer {
 public:
  virtual ~PairScorer() = default;

  // result[i] = sum over t of log p(target[t] | source, </s>, target[0..t-1]) of pairs[i]: natural
  // logarithm, unsmoothed, no dropout, every target id counted. Any number of pairs of any lengths
  // the model takes: cutting them into batches that fit memory is done inside. A result does not
  // depend on the pairs beside it.
  virtual std::vector<double> LogProbabilities(std::span<const IdPair> pairs) = 0;
};

// The slow twin, for any Scorer: feeds the target one token at a time. Sums are left folds in
// double.
class SteppedPairScorer : public PairScorer {
 public:
  // `scorer` must outlive this. At most `max_rows` >= 1 pairs are scored together.
  explicit SteppedPairScorer(Scorer& scorer, int max_rows = 64)
      : scorer_(scorer), max_rows_(max_rows) {}

  std::vector<double> LogProbabilities(std::span<const IdPair> pairs) override;

 private:
  void ScoreBatch(std::span<const IdPair> pairs, double* log_probabilities);

  Scorer& scorer_;
  const int max_rows_;
};

struct TextPair {
  std::string source;
  std::string target;
};

// Pairs of texts from one input with "source <TAB> target" lines, or from two with a side each.
class TextPairReader {
 public:
  // Both must outlive the reader; `targets` null: `sources` has both sides.
  explicit TextPairReader(LineChunkReader& sources, LineChunkReader* targets = nullptr)
      : sources_(sources), targets_(targets) {}

  // The next pairs, at most `max_pairs`, none at the end. INVALID_ARGUMENT with ExitCode::kData
  // names input and line where there is no tab, or which of the two inputs ends first.
  absl::StatusOr<std::vector<TextPair>> ReadChunk(int max_pairs);

 private:
  absl::StatusOr<std::vector<TextPair>> ReadTsv(int max_pairs);
  absl::StatusOr<std::vector<TextPair>> ReadTwo(int max_pairs);

  LineChunkReader& sources_;
  LineChunkReader* const targets_;
};

struct ScoreStreamOptions {
  int chunk_pairs = 1000;  // pairs read, scored and written together; >= 1
  int max_positions = 0;   // ids of a side that the model takes, tags and </s> included; 0: any
};

struct ScoreStreamReport {
  int64_t num_pairs = 0;
  int64_t num_scored = 0;  // the others are longer than the model takes
  int64_t num_tokens = 0;  // target ids of the scored ones
  double log_prob = 0.0;   // their sum
};

// Writes a line per pair, in order, and flushes after each chunk:
//   log-probability, 6 decimals <TAB> number of target ids it is a sum over
// "nan" stands for the log-probability of a pair that is too long for the model.
absl::StatusOr<ScoreStreamReport> ScoreStream(TextPairReader& in, PairScorer& scorer,
                                              const TextCodec& codec, const TagFrame& tags,
                                              const ScoreStreamOptions& options, std::ostream& out);

}  // namespace deepnet
