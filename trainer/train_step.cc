#include "trainer/train_step.h"

#include "parallel/base/status_macros.h"
#include "parallel/exec/pipeline_executor.h"

namespace deepnet {

absl::StatusOr<StepResult> RunTrainStep(const StepBatch& batch, int64_t step, int64_t update,
                                        const Schedule& schedule, TransformerStage& stage,
                                        Transformer& model, const OptimizerStep& optimizer,
                                        Communicator& comm) {
  stage.BeginStep(batch, step);
  RETURN_IF_ERROR(RunSchedule(schedule, stage, comm));
  RETURN_IF_ERROR(stage.FinishStep());

  LossSums sums;
  for (const LossSums& of_microbatch : stage.losses()) {
    sums.loss += of_microbatch.loss;
    sums.nll += of_microbatch.nll;
  }
  const double tokens = static_cast<double>(batch.num_target_tokens);
  StepResult result{.loss = sums.loss / tokens, .nll = sums.nll / tokens};
  ASSIGN_OR_RETURN(result.update,
                   optimizer.Apply(model.ops(), model.parameters(), update, result.loss));
  if (!result.update.skipped) model.Refresh();
  return result;
}

}  // namespace deepnet
