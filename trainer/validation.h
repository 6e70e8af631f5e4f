// Scores of a model in training on the dev set, as `evaluate` gives them: every replica's pipeline
// translates its share of the sentences, and the figures are those of one rank, bit for bit.
#pragma once

#include "absl/status/statusor.h"

#include "parallel/base/logging.h"
#include "proto/plan.pb.h"
#include "proto/report.pb.h"
#include "proto/run.pb.h"
#include "trainer/data/corpus.h"
#include "trainer/rank_part.h"
#include "trainer/stoppable_scorer.h"

namespace deepnet {

// nll, BLEU and chrF of the first train.validate_sentences of every direction of data.directions
// that the dev set has; no directions at all if it has none. Shows its progress and prints one
// line.
//
// Collective over part.world: `part` is what MakeRankPart made of `run`, `whole` and `plan`, with
// current working copies (Refresh), and every rank gets the same record.
//
// Nobody waits for ever. In units of four times parallel.step_timeout_seconds, a peer may take one
// to compute rows; replicas wait four for each other's scores, a pipeline five for its driver, and
// everybody six for all to begin or end. Who waited in vain prints an error with rank and action
// and ends every rank (pipeline_link.h, limited_communicator.h).
//
// `is_stopping`: once it is true on any rank, everybody soon gets kCancelled instead of a record; a
// rank that drives no pipeline looks between two directions only.
absl::StatusOr<EvalRecord> Validate(const RunSpec& run, const Inventory& whole, const Plan& plan,
                                    const Corpus& corpus, RankPart& part, int64_t step, Logger& log,
                                    const IsStopping& is_stopping = {});

}  // namespace deepnet
