#include "trainer/train_step.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

#include "parallel/base/status_macros.h"
#include "parallel/plan/shard.h"
#include "trainer/optim/loss_total.h"

namespace deepnet {
namespace {

MicrobatchRange RangeOf(const StepBatch& batch, const RankPart& part) {
  return MicrobatchesOf(static_cast<int>(batch.microbatches.size()), part.num_replicas,
                        part.replica);
}

// What this rank's replica computes. Token counts stay those of the whole step.
StepBatch ReplicaPart(const StepBatch& batch, const RankPart& part) {
  const MicrobatchRange range = RangeOf(batch, part);
  const auto begin = batch.microbatches.begin();
  return {
      {begin + range.first, begin + range.end}, batch.num_source_tokens, batch.num_target_tokens};
}

absl::StatusOr<LossSums> SumLoss(const StepBatch& batch, const RankPart& part) {
  std::vector<LossSums> losses(batch.microbatches.size());
  const std::vector<LossSums>& own = part.chunks->losses();
  std::copy(own.begin(), own.end(), losses.begin() + RangeOf(batch, part).first);
  return TotalLoss(losses, part.groups.all);
}

}  // namespace

absl::StatusOr<StepResult> RunTrainStep(const StepBatch& batch, int64_t step, int64_t update,
                                        RankPart& part, const ExecutorOptions& options,
                                        const std::function<void()>& before_update) {
  const StepBatch own = part.num_replicas == 1 ? StepBatch() : ReplicaPart(batch, part);
  part.chunks->BeginStep(part.num_replicas == 1 ? batch : own, step);
  StepResult result;
  ExecutorOptions traced = options;
  if (part.pipeline->size() > 1 && options.trace == nullptr) traced.trace = &result.trace;
  RETURN_IF_ERROR(RunSchedule(part.schedule, part.placement, *part.chunks, *part.pipeline, traced));
  if (options.pulse != nullptr) options.pulse->Act("sums over ranks");
  // What follows waits inside collectives.
  if (options.watchdog != nullptr) {
    options.watchdog->Begin(absl::StrCat("step ", step, ": sums over ranks"),
                            options.limits.message + options.limits.grace);
  }
  RETURN_IF_ERROR(part.chunks->FinishStep());

  ASSIGN_OR_RETURN(const LossSums sums, SumLoss(batch, part));
  const double tokens = static_cast<double>(batch.num_target_tokens);
  result.loss = sums.loss / tokens;
  result.nll = sums.nll / tokens;
  before_update();
  ASSIGN_OR_RETURN(result.update,
                   part.optimizer->Apply(*part.ops, part.model->parameters(), update, result.loss));
  if (!result.update.skipped) part.model->Refresh();
  if (options.watchdog != nullptr) options.watchdog->End();
  return result;
}

absl::StatusOr<TraceFigures> MeasurePipeline(const StepResult& result, RankPart& part) {
  if (part.pipeline->size() == 1) return TraceFigures();
  ASSIGN_OR_RETURN(const auto traces, GatherTraces(*part.pipeline, result.trace));
  return Measure(traces);
}

}  // namespace deepnet
