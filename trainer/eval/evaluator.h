// Scores of a model on the dev or test sets of a prepared corpus: translate as `translate` does,
// compare as sacreBLEU does. Knows a model only as a Scorer.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "proto/report.pb.h"
#include "proto/run.pb.h"
#include "trainer/data/corpus.h"
#include "trainer/decode/score.h"
#include "trainer/decode/scorer.h"
#include "trainer/eval/evaluate_share.h"

namespace deepnet {

struct EvaluateOptions {
  std::string split = "test";           // or "dev"
  std::vector<std::string> directions;  // "de-en"; empty: every direction the split has text of
  bool any_to_any = false;              // also between languages that share sentences over English
  int sentences = 0;                    // first ones of each direction; 0: all
  int max_positions = 0;                // tokens of a side that the model takes
  std::string spm_file;                 // SentencePiece model of spBLEU; empty: no spBLEU
  std::string output_folder;            // where <direction>.hyp and .ref go; empty: nowhere
  bool translates = true;               // false: nll alone, scores of translations stay 0
  TagStyle tags = TARGET_TAG_ON_SOURCE;
  Architecture architecture = ENCODER_DECODER;  // others do not translate
  double masked_share = 0.0;                    // ENCODER_ONLY: data.masked_share
  DecodeSpec decode;                            // its defaults filled in
  EvaluateShare share;                          // who else scores the same; default: nobody
};

// Called with what is being done and the share of directions that are.
using EvaluateProgress = std::function<void(const std::string& direction, double fraction)>;

// Pairs longer than max_positions are cut for translation and left out of nll. Directions come out
// in order of name. Errors (no such direction or split) carry ExitCode::kData. Scores are the same
// bits whether one evaluator or several share the sentences, as far as rows of `scorer` are
// independent.
absl::StatusOr<EvalRecord> Evaluate(Scorer& scorer, PairScorer& pair_scorer, const Corpus& corpus,
                                    const Vocabulary& vocabulary, const EvaluateOptions& options,
                                    const EvaluateProgress& progress);

}  // namespace deepnet
