// Faults of learning: steps whose loss or gradient is not finite, and spikes (telemetry/spikes.h).
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "parallel/base/file_system.h"
#include "parallel/base/logging.h"
#include "proto/checkpoint.pb.h"
#include "proto/report.pb.h"
#include "proto/run.pb.h"
#include "trainer/checkpoint_policy.h"
#include "trainer/rank_context.h"
#include "trainer/resolve_run.h"
#include "trainer/telemetry/run_recorder.h"
#include "trainer/train_step.h"

namespace deepnet {

// Counts the steps of a run that change nothing, ends the run after too many, and does what
// SpikeSpec says about spikes: warns, leaves an update out, or goes back to an earlier checkpoint
// of the run without a new start.
class SpikeGuard {
 public:
  // All arguments outlive this. The run keeps `resolved.state` current.
  SpikeGuard(FileSystem& fs, ResolvedRun& resolved, RankContext& context,
             CheckpointPolicy& checkpoints, RunRecorder& recorder, Logger& log);

  // Counts a step, which the state's step includes already. Returns whether it is to be computed
  // once more, to find where it was not finite: the first of several in a row. With a loss scale a
  // gradient that overflows is nothing unusual, unless it ends the run.
  bool Count(const StepResult& result);

  // Fails (kDiverged) once the run is to end, with the last good checkpoint kept. Collective.
  absl::Status CheckDivergence();

  // Looks for a spike in the step under way, whose figures are the same on all ranks. Returns
  // whether its update is to be made.
  bool UpdateWanted(double loss, double gradient_norm);

  // Returns whether the last step was a spike that Answer has not been called for.
  bool found() const { return spike_.has_value(); }

  // Returns whether the run may go back, for which it needs a checkpoint from its beginning on.
  bool may_go_back() const { return spec_.action() == SpikeSpec::ROLL_BACK; }

  // Records the spike of the step that was just counted, also in the ledger of the run's state.
  // Returns whether the run went back: weights, moments and state, but for what has really passed,
  // are then those of the newest intact checkpoint from before the steps that are left out, or else
  // of the oldest, and all newer ones are deleted. A run without an intact checkpoint goes on.
  // Fails (kDiverged) where it has gone back too often. Collective.
  absl::StatusOr<bool> Answer();

 private:
  absl::StatusOr<bool> RollBack(SpikeRecord& spike);
  absl::StatusOr<std::optional<Manifest>> LoadEarlier(int64_t step);
  void GoOnFrom(Manifest earlier);

  FileSystem& fs_;
  ResolvedRun& resolved_;
  RankContext& context_;
  CheckpointPolicy& checkpoints_;
  RunRecorder& recorder_;
  Logger& log_;
  const SpikeSpec& spec_;
  Manifest& state_;
  absl::Status least_scale_;          // of the last step, with a loss scale
  bool was_finite_ = true;            // the last step
  std::optional<SpikeRecord> spike_;  // of the last step
};

}  // namespace deepnet
