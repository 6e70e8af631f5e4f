// One optimizer step: run the schedule, finish the sums, update, refresh.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"

#include "parallel/exec/pipeline_executor.h"
#include "parallel/exec/trace.h"
#include "trainer/data/microbatch.h"
#include "trainer/optim/optimizer.h"
#include "trainer/rank_context.h"

namespace deepnet {

struct StepResult {
  double loss = 0.0;  // label-smoothed cross-entropy, nats per target token of the whole step
  double nll = 0.0;   // nats per target token
  UpdateResult update;
  bool withheld = false;         // `wanted` said no; update.skipped is true then
  double loss_scale = 0.0;       // 0: none
  double gradient_unit = 1.0;    // times the summed gradient: that of the loss
  double compute_seconds = 0.0;  // of this rank's passes, without waiting; on a GPU by its clock
  RankTrace trace;               // of this rank's actions
};

// Returns the bubble and the exposed communication of a step, from the traces of its ranks; zeros
// with one stage. Collective over context.pipeline; every rank of it gets the same.
absl::StatusOr<TraceFigures> MeasurePipeline(const StepResult& result, RankContext& context);

// A step calls the functions before its update. Each may be empty.
struct StepOptions {
  ExecutorOptions executor = {};  // its trace also gets what follows the schedule
  // Returns whether the update of a step with this loss and gradient norm is to be made: the same
  // on every rank.
  std::function<bool(double loss, double gradient_norm)> wanted = {};
  // Called after that, before weights and moments change, also where they then do not.
  std::function<void()> before_update = {};
};

// Trains one step. `batch` has all microbatches of the step; a replica computes those that
// MicrobatchesOf (parallel/plan/shard.h) gives it. `step` counts batches and keys dropout; `update`
// >= 1 counts updates, without skipped steps. options.executor.trace outlives `context`.
// Collective over context.world; every rank gets the same result.
absl::StatusOr<StepResult> RunTrainStep(const StepBatch& batch, int64_t step, int64_t update,
                                        RankContext& context, const StepOptions& options = {});

}  // namespace deepnet
