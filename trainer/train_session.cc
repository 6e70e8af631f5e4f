#include "trainer/train_session.h"

#include <array>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "trainer/checkpoint/format.h"
#include "trainer/data/corpus_batch_source.h"
#include "trainer/instruments/audit.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/architecture.h"
#include "trainer/model/flops.h"
#include "trainer/model_loader.h"
#include "trainer/optim/learning_rate.h"
#include "trainer/rank_snapshot.h"

namespace deepnet {
namespace {

absl::StatusOr<std::unique_ptr<RankContext>> MakeContext(const ResolvedRun& resolved,
                                                         const TrainOptions& options,
                                                         Communicator& world, FileSystem& fs,
                                                         Logger& log) {
  ASSIGN_OR_RETURN(auto context, MakeRankContext(resolved.run, resolved.inventory, resolved.plan,
                                                 world, {.traced = options.trace.from > 0}));
  if (resolved.earlier.has_value()) {
    RETURN_IF_ERROR(AgreeOnStatus(
        world, LoadRankState(fs, resolved.earlier->folder, resolved.earlier->manifest, *context)));
    if (context->loss_scale != nullptr) {
      *context->loss_scale =
          DynamicLossScale(resolved.run.optim(), resolved.run.data().global_microbatches(),
                           resolved.state.loss_scale());
    }
    log.Info(absl::StrCat("continuing at step ", WithCommas(resolved.state.step())));
  } else {
    Parameters& parameters = context->model->parameters();
    parameters.Initialize(resolved.run.seed());
    const AuditReport audit =
        AuditHeldWeights(resolved.run.model(), resolved.inventory, parameters);
    RETURN_IF_ERROR(AgreeOnStatus(world, AuditStatus(audit)));
    if (!options.init_from.empty()) {  // every rank reads what it holds
      ASSIGN_OR_RETURN(
          const InitialRows rows,
          AgreeOn(world, InitializeFrom(fs, options.init_from, resolved.corpus->vocabulary(),
                                        resolved.run.model().architecture(), parameters)));
      log.Info(absl::StrCat("weights of ", options.init_from, ": ", WithCommas(rows.taken),
                            " rows of the vocabulary are known there, ", WithCommas(rows.drawn),
                            " are new"));
    }
    context->optimizer->BeginAverage(parameters);
  }
  context->phases.End("weights");
  context->model->Refresh();
  context->phases.End("working copies");
  return context;
}

absl::StatusOr<std::unique_ptr<MetricsWriter>> OpenFolder(const ResolvedRun& resolved,
                                                          FileSystem& fs) {
  RETURN_IF_ERROR(SaveVocabulary(fs, resolved.corpus->folder() + "/" + kTokenizerFile,
                                 resolved.corpus->vocabulary().languages(), resolved.folder));
  return WithExitCode(
      MetricsWriter::Open(fs, JoinPath(resolved.folder, kMetricsFile), resolved.state.step()),
      ExitCode::kCheckpoint);
}

// Returns the stated peak of all ranks' GPUs together, in operations a second; 0: of one of them it
// is not known, or they are CPUs.
absl::StatusOr<double> StatedPeak(const RunSpec& run, Communicator& world) {
  std::array<double, 2> sums = {0.0, 0.0};  // peaks, ranks whose peak is known
  if (run.compute().device() == "cuda") {
    ASSIGN_OR_RETURN(const std::string gpu, AgreeOn(world, CheckCurrentGpu()));
    sums[0] = StatedPeakFlops(gpu, run.cluster(), run.compute().dtype());
    sums[1] = sums[0] > 0 ? 1.0 : 0.0;
  }
  RETURN_IF_ERROR(world.AllReduceSum(std::span(sums)));
  return sums[1] == world.size() ? sums[0] : 0.0;
}

void LogRun(const ResolvedRun& resolved, int ranks, double ceiling, Logger& log) {
  const RunSpec& run = resolved.run;
  const ComputeSpec& compute = run.compute();
  log.Info(absl::StrFormat(
      "%s parameters, %s; %s, %s, %s, %d x %d threads; product ceiling %.0f GFLOP/s%s%s",
      WithCommas(resolved.inventory.NumElements()), LayersText(run.model()),
      Residual_Name(run.model().residual()), DataType_Name(compute.dtype()),
      Isa_Name(compute.isa()), ranks, compute.threads_per_rank(), ceiling,
      compute.attention() == AUTO
          ? ""
          : absl::StrCat("; attention ", AttentionKernel_Name(compute.attention())),
      compute.cuda_graphs() ? "; CUDA graphs" : ""));
  const std::string scale = BatchScaleText(run.optim(), run.data());
  if (!scale.empty()) log.Info(scale);
}

}  // namespace

absl::StatusOr<TrainSession> MakeTrainSession(const ResolvedRun& resolved,
                                              const TrainOptions& options, Communicator& world,
                                              FileSystem& fs, Logger& log) {
  TrainSession session;
  ASSIGN_OR_RETURN(session.context, MakeContext(resolved, options, world, fs, log));
  ASSIGN_OR_RETURN(session.metrics,
                   AgreeOn(world, world.rank() == 0 ? OpenFolder(resolved, fs) : nullptr));
  if (world.rank() == 0 && resolved.run.train().tensorboard()) {
    session.events = std::make_unique<EventWriter>(JoinPath(resolved.folder, "tensorboard"),
                                                   resolved.state.step());
  }
  ASSIGN_OR_RETURN(auto source,
                   AgreeOn(world, CorpusBatchSource::Make(resolved.run.data(), resolved.run.seed(),
                                                          resolved.corpus.get(),
                                                          resolved.run.model().architecture())));
  session.steps_per_epoch = source->order().steps_per_epoch();
  session.batches = std::make_unique<Prefetcher>(std::move(source));
  session.context->phases.End("data");
  ASSIGN_OR_RETURN(
      session.instruments,
      Instruments::Make(resolved.run, resolved.inventory, *session.context, *session.batches,
                        {.folder = resolved.folder,
                         .files = &fs,
                         .first_step = resolved.state.step(),
                         .message_limit = CommTimeout(resolved.run.parallel(), /*first_step=*/true),
                         .log = &log}));
  session.context->phases.End("instruments");
  const ComputeSpec& compute = resolved.run.compute();
  // GFLOP/s that all ranks together reach in matrix products; 0: not measured.
  double ceiling = compute.device() == "cpu" ? MeasureProductCeiling(compute, 256, 0.5) : 0.0;
  RETURN_IF_ERROR(world.AllReduceSum(std::span(&ceiling, 1)));
  ASSIGN_OR_RETURN(const double peak, StatedPeak(resolved.run, world));
  session.report = std::make_unique<StepReport>(resolved.run, ceiling, peak);
  LogRun(resolved, world.size(), ceiling, log);
  session.context->phases.End("product ceiling");
  return session;
}

}  // namespace deepnet
