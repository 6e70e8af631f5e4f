// One optimizer step in five verbs: run the schedule, finish the sums, update, refresh, report.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

#include "parallel/comm/communicator.h"
#include "parallel/plan/schedule.h"
#include "trainer/data/microbatch.h"
#include "trainer/model/transformer.h"
#include "trainer/optim/optimizer.h"
#include "trainer/transformer_stage.h"

namespace deepnet {

struct StepResult {
  double loss = 0.0;  // label-smoothed cross-entropy, nats per target token
  double nll = 0.0;   // nats per target token
  UpdateResult update;
};

// `step` counts batches and keys dropout, `update` >= 1 counts updates (skipped steps are none).
// Collective over `comm`.
absl::StatusOr<StepResult> RunTrainStep(const StepBatch& batch, int64_t step, int64_t update,
                                        const Schedule& schedule, TransformerStage& stage,
                                        Transformer& model, const OptimizerStep& optimizer,
                                        Communicator& comm);

}  // namespace deepnet
