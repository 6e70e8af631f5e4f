// From a run that may begin to one that does: what a rank needs to take steps.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "parallel/base/logging.h"
#include "parallel/comm/communicator.h"
#include "trainer/data/microbatch.h"
#include "trainer/metrics.h"
#include "trainer/probe/instruments.h"
#include "trainer/rank_part.h"
#include "trainer/run_start.h"
#include "trainer/step_report.h"

namespace deepnet {

struct RunParts {
  std::unique_ptr<RankPart> part;          // with weights
  std::unique_ptr<BatchSource> batches;    // reads `start.corpus`
  std::unique_ptr<MetricsWriter> metrics;  // rank 0 only
  std::unique_ptr<StepReport> report;
  std::unique_ptr<Instruments> instruments;
};

// Loads or draws the weights, looks whether drawn ones are what theory wants
// (trainer/probe/audit.h; ExitCode::kPreflight where they are not), opens the run folder (rank 0
// writes tokenizer and languages into it), measures what products reach here, and says what the run
// is. Collective over `world`; `start` and `world` outlive the result. A run that goes on does not
// look at `init_from`; a new one takes its weights from there, if it is not empty
// (initial_weights.h).
absl::StatusOr<RunParts> MakeRunParts(const RunStart& start, const std::string& init_from,
                                      Communicator& world, FileSystem& fs, Logger& log);

}  // namespace deepnet
