#include "trainer/run_parts.h"

#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/exec/watchdog.h"
#include "trainer/data/corpus_batch_source.h"
#include "trainer/initial_weights.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/architecture.h"
#include "trainer/probe/audit.h"
#include "trainer/rank_state.h"
#include "trainer/run_state.h"

namespace deepnet {
namespace {

// Every rank reads what it holds.
absl::Status TakeInitialWeights(const RunStart& start, const std::string& init_from,
                                Communicator& world, FileSystem& fs, Parameters& parameters,
                                Logger& log) {
  const auto rows = TakeWeights(fs, init_from, start.corpus->vocabulary(),
                                start.run.model().architecture(), parameters);
  RETURN_IF_ERROR(AgreeOnStatus(world, rows.status()));
  log.Info(absl::StrCat("weights of ", init_from, ": ", WithCommas(rows->taken),
                        " rows of the vocabulary are known there, ", WithCommas(rows->drawn),
                        " are new"));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RankPart>> MakePart(const RunStart& start,
                                                   const std::string& init_from,
                                                   Communicator& world, FileSystem& fs,
                                                   Logger& log) {
  ASSIGN_OR_RETURN(auto part, MakeRankPart(start.run, start.inventory, start.plan, world));
  if (start.earlier.has_value()) {
    RETURN_IF_ERROR(AgreeOnStatus(
        world, LoadRankState(fs, start.earlier->folder, start.earlier->manifest, *part)));
    log.Info(absl::StrCat("continuing at step ", WithCommas(start.state.step())));
  } else {
    part->model->parameters().Initialize(start.run.seed());
    const AuditReport audit =
        AuditHeldWeights(start.run.model(), start.inventory, part->model->parameters());
    RETURN_IF_ERROR(AgreeOnStatus(world, AuditStatus(audit)));
    if (!init_from.empty()) {
      RETURN_IF_ERROR(
          TakeInitialWeights(start, init_from, world, fs, part->model->parameters(), log));
    }
  }
  part->model->Refresh();
  return part;
}

absl::StatusOr<std::unique_ptr<MetricsWriter>> OpenFolder(const RunStart& start, FileSystem& fs) {
  RETURN_IF_ERROR(SaveVocabulary(fs, start.corpus->folder() + "/" + kTokenizerFile,
                                 start.corpus->vocabulary().languages(), start.folder));
  auto metrics = MetricsWriter::Open(start.folder + "/metrics.jsonl", start.state.step());
  if (!metrics.ok()) return WithExitCode(metrics.status(), ExitCode::kCheckpoint);
  return metrics;
}

// GFLOP/s that all ranks together reach in matrix products; 0: not measured.
absl::StatusOr<double> MeasureCeiling(const ComputeSpec& compute, Communicator& world) {
  double ceiling =
      compute.device() == "cpu" ? MeasureProductCeiling(256, compute.threads_per_rank(), 0.5) : 0.0;
  RETURN_IF_ERROR(world.AllReduceSum(std::span(&ceiling, 1)));
  return ceiling;
}

void Describe(const RunStart& start, int ranks, double ceiling, Logger& log) {
  const RunSpec& run = start.run;
  const ComputeSpec& compute = run.compute();
  log.Info(absl::StrFormat(
      "%s parameters, %s; %s, %s, %s, %d x %d threads; product ceiling %.0f GFLOP/s",
      WithCommas(start.inventory.NumElements()), LayersText(run.model()),
      Residual_Name(run.model().residual()), DataType_Name(compute.dtype()),
      Isa_Name(compute.isa()), ranks, compute.threads_per_rank(), ceiling));
}

}  // namespace

absl::StatusOr<RunParts> MakeRunParts(const RunStart& start, const std::string& init_from,
                                      Communicator& world, FileSystem& fs, Logger& log) {
  RunParts parts;
  ASSIGN_OR_RETURN(parts.part, MakePart(start, init_from, world, fs, log));
  absl::StatusOr<std::unique_ptr<MetricsWriter>> metrics = nullptr;
  if (world.rank() == 0) metrics = OpenFolder(start, fs);
  RETURN_IF_ERROR(AgreeOnStatus(world, metrics.status()));
  parts.metrics = *std::move(metrics);
  ASSIGN_OR_RETURN(auto source,
                   CorpusBatchSource::Make(start.run.data(), start.run.seed(), start.corpus.get(),
                                           start.run.model().architecture()));
  parts.batches = std::make_unique<Prefetcher>(std::move(source));
  ASSIGN_OR_RETURN(
      parts.instruments,
      Instruments::Make(
          start.run, start.inventory, start.plan, *parts.part, *parts.batches,
          {.folder = start.folder,
           .files = &fs,
           .first_step = start.state.step(),
           .message_limit = MakeTimeLimits(start.run.parallel(), /*first_step=*/true).message},
          log));
  ASSIGN_OR_RETURN(const double ceiling, MeasureCeiling(start.run.compute(), world));
  parts.report = std::make_unique<StepReport>(start.run, ceiling);
  Describe(start, world.size(), ceiling, log);
  return parts;
}

}  // namespace deepnet
