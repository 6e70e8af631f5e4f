// A TrainSession holds what a rank takes steps with; it is made of a run that ResolveRun settled.
#pragma once

#include <memory>

#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "parallel/base/logging.h"
#include "parallel/comm/communicator.h"
#include "trainer/data/microbatch.h"
#include "trainer/instruments/instruments.h"
#include "trainer/rank_context.h"
#include "trainer/resolve_run.h"
#include "trainer/telemetry/event_file.h"
#include "trainer/telemetry/metrics.h"
#include "trainer/telemetry/report.h"

namespace deepnet {

struct TrainSession {
  std::unique_ptr<RankContext> context;    // with weights
  std::unique_ptr<BatchSource> batches;    // reads `resolved.corpus`
  double steps_per_epoch = 0.0;            // of `batches`
  std::unique_ptr<MetricsWriter> metrics;  // rank 0 only
  std::unique_ptr<EventWriter> events;     // rank 0 only, with train.tensorboard
  std::unique_ptr<StepReport> report;
  std::unique_ptr<Instruments> instruments;
};

// Loads or draws the weights, checks that drawn ones agree with the theory
// (trainer/instruments/audit.h; if not, ExitCode::kPreflight), opens the run folder, measures the
// product ceiling of this host, and logs what the run is. A resumed run ignores `init_from`.
// Collective over `world`. `resolved` and `world` outlive the result.
absl::StatusOr<TrainSession> MakeTrainSession(const ResolvedRun& resolved,
                                              const TrainOptions& options, Communicator& world,
                                              FileSystem& fs, Logger& log);

}  // namespace deepnet
