// Scores a model in training on the dev set, as `evaluate` does: every replica's pipeline
// translates its share of the sentences, and the figures are those of one rank, bit for bit.
#pragma once

#include <functional>

#include "absl/status/statusor.h"

#include "parallel/base/logging.h"
#include "proto/report.pb.h"
#include "proto/run.pb.h"
#include "trainer/data/corpus.h"
#include "trainer/rank_context.h"

namespace deepnet {

using IsStopping = std::function<bool()>;

// Returns nll, BLEU and chrF of the first train.validate_sentences of every direction of
// data.directions that the dev set has; no directions if it has none. Shows its progress and logs
// one line.
//
// Collective over context.world, and every rank gets the same record. `context` is that of `run`,
// with current working copies (Refresh) and the step that made them (Transformer::set_step).
//
// Nobody waits for ever, but a multiple of four times parallel.comm_timeout_seconds. A rank that
// waited in vain prints an error with rank and action and ends every rank (pipeline_link.h,
// heartbeat.h).
//
// Once `is_stopping` is true on any rank, every rank soon gets kCancelled instead of a record. A
// rank that drives no pipeline looks at it between two directions only.
absl::StatusOr<EvalRecord> Validate(const RunSpec& run, const Corpus& corpus, RankContext& context,
                                    Logger& log, const IsStopping& is_stopping = {});

}  // namespace deepnet
