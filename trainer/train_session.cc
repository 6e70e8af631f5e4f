#include "trainer/train_session.h"

#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/heartbeat.h"
#include "trainer/async_checkpointer.h"
#include "trainer/data/corpus_batch_source.h"
#include "trainer/instruments/audit.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/architecture.h"
#include "trainer/model_loader.h"

namespace deepnet {
namespace {

// Overwrites the drawn weights with those of `init_from`; every rank reads what it holds.
absl::Status TakeInitialWeights(const ResolvedRun& resolved, const std::string& init_from,
                                Communicator& world, FileSystem& fs, Parameters& parameters,
                                Logger& log) {
  const auto rows = TakeWeights(fs, init_from, resolved.corpus->vocabulary(),
                                resolved.run.model().architecture(), parameters);
  RETURN_IF_ERROR(AgreeOnStatus(world, rows.status()));
  log.Info(absl::StrCat("weights of ", init_from, ": ", WithCommas(rows->taken),
                        " rows of the vocabulary are known there, ", WithCommas(rows->drawn),
                        " are new"));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RankContext>> MakeContext(const ResolvedRun& resolved,
                                                         const std::string& init_from,
                                                         Communicator& world, FileSystem& fs,
                                                         Logger& log) {
  ASSIGN_OR_RETURN(auto context,
                   MakeRankContext(resolved.run, resolved.inventory, resolved.plan, world));
  if (resolved.earlier.has_value()) {
    RETURN_IF_ERROR(AgreeOnStatus(
        world, LoadRankState(fs, resolved.earlier->folder, resolved.earlier->manifest, *context)));
    log.Info(absl::StrCat("continuing at step ", WithCommas(resolved.state.step())));
  } else {
    context->model->parameters().Initialize(resolved.run.seed());
    const AuditReport audit =
        AuditHeldWeights(resolved.run.model(), resolved.inventory, context->model->parameters());
    RETURN_IF_ERROR(AgreeOnStatus(world, AuditStatus(audit)));
    if (!init_from.empty()) {
      RETURN_IF_ERROR(
          TakeInitialWeights(resolved, init_from, world, fs, context->model->parameters(), log));
    }
  }
  context->model->Refresh();
  return context;
}

absl::StatusOr<std::unique_ptr<MetricsWriter>> OpenFolder(const ResolvedRun& resolved,
                                                          FileSystem& fs) {
  RETURN_IF_ERROR(SaveVocabulary(fs, resolved.corpus->folder() + "/" + kTokenizerFile,
                                 resolved.corpus->vocabulary().languages(), resolved.folder));
  auto metrics = MetricsWriter::Open(resolved.folder + "/metrics.jsonl", resolved.state.step());
  if (!metrics.ok()) return WithExitCode(metrics.status(), ExitCode::kCheckpoint);
  return metrics;
}

// Returns the GFLOP/s that all ranks together reach in matrix products; 0: not measured.
absl::StatusOr<double> MeasureCeiling(const ComputeSpec& compute, Communicator& world) {
  double ceiling =
      compute.device() == "cpu" ? MeasureProductCeiling(256, compute.threads_per_rank(), 0.5) : 0.0;
  RETURN_IF_ERROR(world.AllReduceSum(std::span(&ceiling, 1)));
  return ceiling;
}

void Describe(const ResolvedRun& resolved, int ranks, double ceiling, Logger& log) {
  const RunSpec& run = resolved.run;
  const ComputeSpec& compute = run.compute();
  log.Info(absl::StrFormat(
      "%s parameters, %s; %s, %s, %s, %d x %d threads; product ceiling %.0f GFLOP/s",
      WithCommas(resolved.inventory.NumElements()), LayersText(run.model()),
      Residual_Name(run.model().residual()), DataType_Name(compute.dtype()),
      Isa_Name(compute.isa()), ranks, compute.threads_per_rank(), ceiling));
}

}  // namespace

absl::StatusOr<TrainSession> MakeTrainSession(const ResolvedRun& resolved,
                                              const std::string& init_from, Communicator& world,
                                              FileSystem& fs, Logger& log) {
  TrainSession session;
  ASSIGN_OR_RETURN(session.context, MakeContext(resolved, init_from, world, fs, log));
  absl::StatusOr<std::unique_ptr<MetricsWriter>> metrics = nullptr;
  if (world.rank() == 0) metrics = OpenFolder(resolved, fs);
  RETURN_IF_ERROR(AgreeOnStatus(world, metrics.status()));
  session.metrics = *std::move(metrics);
  ASSIGN_OR_RETURN(auto source, CorpusBatchSource::Make(resolved.run.data(), resolved.run.seed(),
                                                        resolved.corpus.get(),
                                                        resolved.run.model().architecture()));
  session.batches = std::make_unique<Prefetcher>(std::move(source));
  ASSIGN_OR_RETURN(
      session.instruments,
      Instruments::Make(
          resolved.run, resolved.inventory, resolved.plan, *session.context, *session.batches,
          {.folder = resolved.folder,
           .files = &fs,
           .first_step = resolved.state.step(),
           .message_limit = CommTimeout(resolved.run.parallel(), /*first_step=*/true)},
          log));
  ASSIGN_OR_RETURN(const double ceiling, MeasureCeiling(resolved.run.compute(), world));
  session.report = std::make_unique<StepReport>(resolved.run, ceiling);
  Describe(resolved, world.size(), ceiling, log);
  return session;
}

}  // namespace deepnet
