// One optimizer step in five verbs: run the schedule, finish the sums, update, refresh, report.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"

#include "parallel/exec/pipeline_executor.h"
#include "parallel/exec/trace.h"
#include "trainer/data/microbatch.h"
#include "trainer/optim/optimizer.h"
#include "trainer/rank_part.h"

namespace deepnet {

struct StepResult {
  double loss = 0.0;  // label-smoothed cross-entropy, nats per target token of the whole step
  double nll = 0.0;   // nats per target token
  UpdateResult update;
  RankTrace trace;  // what this rank's pipeline did; empty with one stage
};

// What a step's pipeline lost, from its ranks' traces of that step. Collective over part.pipeline;
// every rank of it gets the same. Zeros with one stage.
absl::StatusOr<TraceFigures> MeasurePipeline(const StepResult& result, RankPart& part);

// `batch`: all microbatches of the step, of which a replica computes those that MicrobatchesOf
// (parallel/plan/dealing.h) deals it; part.schedule is for as many. `step` counts batches and keys
// dropout, `update` >= 1 counts updates (skipped steps are none). `before_update` is called when
// weights and moments are about to change. Collective over part.world; every rank gets the same
// result.
absl::StatusOr<StepResult> RunTrainStep(
    const StepBatch& batch, int64_t step, int64_t update, RankPart& part,
    const ExecutorOptions& options = {}, const std::function<void()>& before_update = [] {});

}  // namespace deepnet
