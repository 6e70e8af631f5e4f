// Scores of a model on the dev or test sets of a prepared corpus: translate as `translate` does,
// compare as sacreBLEU does. Knows a model only as a Scorer.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "proto/decode.pb.h"
#include "proto/report.pb.h"
#include "proto/run.pb.h"
#include "trainer/data/corpus.h"
#include "trainer/decode/batch_limits.h"
#include "trainer/decode/scorer.h"

namespace deepnet {

// Several evaluators, one for each replica of a model, may share the sentences of every direction:
// each translates and scores a contiguous part, then the results of all are gathered on all.
struct EvaluateShare {
  int part = 0;  // of num_parts
  int num_parts = 1;
  // Collective over the parts: every part's bytes in order of parts, or everybody's error if a part
  // has one. Not called if num_parts is 1.
  std::function<absl::StatusOr<std::vector<std::string>>(const absl::StatusOr<std::string>& mine)>
      gather = {};
};

// Returns the first sentence of a part and the one behind its last. Successive parts follow each
// other and differ by at most one sentence in length.
std::pair<size_t, size_t> RangeOf(const EvaluateShare& share, size_t num_sentences);

// Gathers the results of all parts on every part. Collective over the parts.
absl::StatusOr<SentenceScores> Gather(const EvaluateShare& share,
                                      const absl::StatusOr<SentenceScores>& mine);

struct EvaluateOptions {
  std::string split = "test";           // or "dev"
  std::vector<std::string> directions;  // "de-en"; empty: every direction the split has text of
  bool any_to_any = false;              // also between languages that share sentences over English
  int sentences = 0;                    // first ones of each direction; 0: all
  int max_positions = 0;                // tokens of a side that the model takes
  std::string spm_file;                 // SentencePiece model of spBLEU; empty: no spBLEU
  int samples = 0;                      // sentences whose translations the record has
  std::string output_folder;            // where <direction>.hyp and .ref go; empty: nowhere
  bool translates = true;               // false: nll alone
  RunSpec run;  // of the model: its architecture, tags and masking, decode with defaults filled in
  BatchLimits limits;
  EvaluateShare share;  // default: this evaluator alone
  // Called with the direction that begins and the fraction of them that are done.
  std::function<void(const std::string& direction, double fraction)> progress = {};
};

// Returns which of `num_sentences` sentences are the samples of direction `index` of
// `num_directions`, ascending: `samples` are spread evenly over the directions, and those of one
// over its sentences.
std::vector<size_t> SampleSentences(int samples, size_t index, size_t num_directions,
                                    size_t num_sentences);

// Evaluates every direction of `options`, in order of name. Pairs longer than max_positions are cut
// for translation and have no nll (too_long counts them). Errors (no such direction or split) carry
// ExitCode::kData. Scores are the same bits whether one evaluator or several share the sentences,
// as far as rows of `scorer` are independent.
absl::StatusOr<EvalRecord> Evaluate(Scorer& scorer, PairScorer& pair_scorer, const Corpus& corpus,
                                    const Vocabulary& vocabulary, const EvaluateOptions& options);

}  // namespace deepnet
