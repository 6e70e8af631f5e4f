// Scores of a model in training on the dev set, as `evaluate` gives them.
#pragma once

#include "absl/status/statusor.h"

#include "parallel/base/logging.h"
#include "proto/report.pb.h"
#include "proto/run.pb.h"
#include "trainer/data/corpus.h"
#include "trainer/decode/score.h"
#include "trainer/decode/scorer.h"

namespace deepnet {

// nll, BLEU and chrF of the first train.validate_sentences of every direction of data.directions
// that the dev set has; no directions at all if it has none. Shows its progress and prints one
// line.
absl::StatusOr<EvalRecord> Validate(const RunSpec& run, const Corpus& corpus, Scorer& scorer,
                                    PairScorer& pair_scorer, int64_t step, Logger& log);

}  // namespace deepnet
