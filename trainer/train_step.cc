#include "trainer/train_step.h"

#include <algorithm>
#include <vector>

#include "parallel/base/status_macros.h"
#include "parallel/plan/shard.h"
#include "trainer/kernels/device_errors.h"
#include "trainer/optim/step_totals.h"

namespace deepnet {
namespace {

MicrobatchRange RangeOf(const StepBatch& batch, const RankContext& context) {
  return MicrobatchesOf(static_cast<int>(batch.microbatches.size()), context.dp_size,
                        context.dp_rank);
}

// Returns the microbatches of this rank's replica. Token counts stay those of the whole step.
StepBatch ReplicaBatch(const StepBatch& batch, const RankContext& context) {
  const MicrobatchRange range = RangeOf(batch, context);
  const auto begin = batch.microbatches.begin();
  return {
      {begin + range.first, begin + range.end}, batch.num_source_tokens, batch.num_target_tokens};
}

absl::StatusOr<LossSums> SumLoss(const StepBatch& batch, const RankContext& context) {
  std::vector<LossSums> losses(batch.microbatches.size());
  const std::vector<LossSums>& own = context.stage->losses();
  std::copy(own.begin(), own.end(), losses.begin() + RangeOf(batch, context).first);
  return TotalLoss(losses, context.groups.all);
}

double ComputeSeconds(const RankTrace& trace) {
  double seconds = 0.0;
  for (const TraceEvent& event : trace.events) {
    if (event.kind == TraceKind::kCompute) seconds += event.end - event.start;
  }
  return seconds;
}

}  // namespace

absl::StatusOr<StepResult> RunTrainStep(const StepBatch& batch, int64_t step, int64_t update,
                                        RankContext& context, const StepOptions& options) {
  RankTrace* const trace = options.executor.trace;
  const StepBatch own = context.dp_size == 1 ? StepBatch() : ReplicaBatch(batch, context);
  const double tokens = static_cast<double>(batch.num_target_tokens);
  StepResult result;
  if (context.loss_scale != nullptr) {
    result.loss_scale = context.loss_scale->scale();
    result.gradient_unit = 1.0 / (result.loss_scale * tokens);
  }
  context.sums->TraceTo(trace);
  context.stage->BeginStep(context.dp_size == 1 ? batch : own, step, result.loss_scale);
  ExecutorOptions traced = options.executor;
  traced.trace = &result.trace;
  traced.guard = [&context](absl::FunctionRef<absl::Status()> work) {
    return CatchErrors(work, context.device_use());
  };
  RETURN_IF_ERROR(
      RunSchedule(context.schedule, context.placement, *context.stage, *context.pipeline, traced));
  if (trace != nullptr) {
    trace->events.insert(trace->events.end(), result.trace.events.begin(),
                         result.trace.events.end());
  }
  if (traced.heartbeat != nullptr) traced.heartbeat->Act("sums over ranks");
  RETURN_IF_ERROR(context.sums->Finish());

  // The norm waits for the device, so the losses are there too.
  TraceSpan norm(trace, {.kind = TraceKind::kNorm});
  ASSIGN_OR_RETURN(const double sum_norm,
                   context.optimizer->Norm(*context.ops, context.model->parameters()));
  ASSIGN_OR_RETURN(const LossSums sums, SumLoss(batch, context));
  result.loss = sums.loss / tokens;
  result.nll = sums.nll / tokens;
  norm.End();
  const double device_seconds = context.ops->session().PassSeconds();
  result.compute_seconds = device_seconds > 0 ? device_seconds : ComputeSeconds(result.trace);
  const double gradient_norm = sum_norm * result.gradient_unit;
  result.withheld = options.wanted && !options.wanted(result.loss, gradient_norm);
  if (options.before_update) options.before_update();
  if (result.withheld) {
    result.update = context.optimizer->Withhold(update, gradient_norm);
    return result;
  }
  const TraceSpan span(trace, {.kind = TraceKind::kUpdate});
  ASSIGN_OR_RETURN(
      result.update,
      context.optimizer->Apply(*context.ops, context.model->parameters(),
                               {update, gradient_norm, result.loss, result.gradient_unit}, trace));
  if (!result.update.skipped) context.model->Refresh();
  return result;
}

absl::StatusOr<TraceFigures> MeasurePipeline(const StepResult& result, RankContext& context) {
  if (context.pipeline->size() == 1) return TraceFigures();
  ASSIGN_OR_RETURN(const auto traces, AllGatherTraces(*context.pipeline, result.trace));
  return Measure(traces);
}

}  // namespace deepnet
