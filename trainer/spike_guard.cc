#include "trainer/spike_guard.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/retention.h"
#include "trainer/rank_snapshot.h"
#include "trainer/telemetry/spikes.h"

namespace deepnet {
namespace {

constexpr int kMaxConsecutiveSkips = 10;

// Returns the manifest of the newest intact checkpoint with at most `step` steps, or else of the
// oldest with more; none if no checkpoint is intact.
absl::StatusOr<std::optional<Manifest>> FindIntact(FileSystem& fs, const std::string& run_folder,
                                                   int64_t step, Logger& log) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(run_folder));
  std::vector<int64_t> steps = CheckpointSteps(names);
  std::reverse(steps.begin(), std::upper_bound(steps.begin(), steps.end(), step));
  for (const int64_t candidate : steps) {
    const std::string folder = JoinPath(run_folder, CheckpointName(candidate));
    absl::StatusOr<Manifest> manifest = ReadManifest(fs, folder);
    absl::Status intact = manifest.status();
    if (intact.ok()) intact = VerifyTensors(fs, folder, *manifest);
    if (intact.ok()) return *std::move(manifest);
    log.Warning(absl::StrCat("cannot go back to step ", candidate, ": ", intact.message()));
  }
  return std::nullopt;
}

}  // namespace

SpikeGuard::SpikeGuard(FileSystem& fs, ResolvedRun& resolved, RankContext& context,
                       CheckpointPolicy& checkpoints, RunRecorder& recorder, Logger& log)
    : fs_(fs),
      resolved_(resolved),
      context_(context),
      checkpoints_(checkpoints),
      recorder_(recorder),
      log_(log),
      spec_(resolved.run.train().spike()),
      state_(resolved.state) {
  if (spec_.deviations() == 0) state_.clear_spike_window();
}

bool SpikeGuard::Count(const StepResult& result) {
  const bool skipped = result.update.skipped, not_finite = skipped && !result.withheld;
  state_.set_optimizer_steps(state_.optimizer_steps() + (skipped ? 0 : 1));
  state_.set_skipped_steps(state_.skipped_steps() + (skipped ? 1 : 0));
  state_.set_consecutive_skips(skipped ? state_.consecutive_skips() + 1 : 0);
  bool unusual = not_finite;
  if (DynamicLossScale* const scale = context_.loss_scale.get()) {
    least_scale_ = scale->Update(not_finite);
    *state_.mutable_loss_scale() = scale->state();
    unusual = not_finite && !std::isfinite(result.loss);
    if (not_finite) {
      log_.Info(absl::StrCat("step ", state_.step(), ": gradient overflow; skipped, loss scale ",
                             scale->scale()));
    }
  } else if (not_finite) {
    log_.Warning(absl::StrCat("step ", state_.step(), ": loss or gradient is not finite; skipped"));
  }
  const bool is_first = std::exchange(was_finite_, !unusual);
  return (unusual && is_first) || (not_finite && !least_scale_.ok());
}

absl::Status SpikeGuard::CheckDivergence() {
  absl::Status status = least_scale_;
  if (context_.loss_scale == nullptr && state_.consecutive_skips() >= kMaxConsecutiveSkips) {
    status = DivergedError(
        "diverged: ", kMaxConsecutiveSkips,
        spec_.action() == SpikeSpec::SKIP ? " non-finite steps or spikes" : " non-finite steps",
        " in a row at step ", state_.step());
  }
  if (status.ok()) return status;
  RETURN_IF_ERROR(checkpoints_.Finish());
  return AgreeOnStatus(*context_.world, status);
}

bool SpikeGuard::UpdateWanted(double loss, double gradient_norm) {
  if (spec_.deviations() == 0) return true;
  spike_ = FindSpike(spec_, state_.spike_window(), state_.step() + 1, loss, gradient_norm);
  RememberStep(spec_, loss, gradient_norm, *state_.mutable_spike_window());
  return !spike_ || spec_.action() == SpikeSpec::WARN;
}

absl::StatusOr<bool> SpikeGuard::Answer() {
  SpikeRecord spike = *std::exchange(spike_, std::nullopt);
  bool went_back = false;
  if (may_go_back()) {
    ASSIGN_OR_RETURN(went_back, RollBack(spike));
  }
  recorder_.Record(spike);
  *state_.add_spikes() = std::move(spike);
  if (went_back) RETURN_IF_ERROR(checkpoints_.SaveAfterGoingBack());
  return went_back;
}

// Goes back to before the steps that `spike` then says are left out. Returns false if there is no
// checkpoint.
absl::StatusOr<bool> SpikeGuard::RollBack(SpikeRecord& spike) {
  RETURN_IF_ERROR(checkpoints_.Finish());
  if (NumRollBacks(state_) >= spec_.max_roll_backs()) {
    return AgreeOnStatus(
        *context_.world,
        DivergedError("diverged: ", SpikeFigures(spike), ", after ", NumRollBacks(state_),
                      " roll-backs, as many as train.spike.max_roll_backs allows"));
  }
  SpikeRecord left_out = spike;
  LeaveOutAround(spec_, left_out);
  ASSIGN_OR_RETURN(std::optional<Manifest> earlier, LoadEarlier(left_out.first_left_out() - 1));
  if (!earlier) return false;
  spike = std::move(left_out);
  spike.set_step(earlier->step());
  spike.set_first_left_out(std::max(spike.first_left_out(), earlier->step() + 1));
  GoOnFrom(*std::move(earlier));
  return true;
}

// Loads the state of FindIntact's checkpoint for `step` and deletes all newer ones, since a run
// that is resumed takes the newest. Returns its manifest, without files and without best scores
// whose checkpoints are gone; none, with nothing changed, if no checkpoint is intact.
absl::StatusOr<std::optional<Manifest>> SpikeGuard::LoadEarlier(int64_t step) {
  Communicator& world = *context_.world;
  const bool leads = world.rank() == 0;
  absl::StatusOr<std::optional<Manifest>> found = std::nullopt;
  if (leads) found = FindIntact(fs_, resolved_.folder, step, log_);
  RETURN_IF_ERROR(AgreeOnStatus(world, found.status()));
  Manifest manifest = found->value_or(Manifest());
  RETURN_IF_ERROR(BroadcastMessage(world, manifest, 0));
  if (manifest.format_version() == 0) return std::nullopt;  // none was found
  const std::string folder = JoinPath(resolved_.folder, CheckpointName(manifest.step()));
  RETURN_IF_ERROR(AgreeOnStatus(world, LoadRankState(fs_, folder, manifest, context_)));
  context_.model->Refresh();
  absl::Status deleted;
  if (resolved_.lock != nullptr) deleted = resolved_.lock->Check();
  if (leads && deleted.ok()) deleted = DeleteNewerCheckpoints(fs_, resolved_.folder, manifest);
  RETURN_IF_ERROR(AgreeOnStatus(world, deleted));
  RETURN_IF_ERROR(BroadcastMessage(world, manifest, 0));
  manifest.clear_files();
  return manifest;
}

// Makes the state that of an earlier step, but for what has really passed, and the ledger of the
// steps that are left out.
void SpikeGuard::GoOnFrom(Manifest earlier) {
  const Manifest before = std::exchange(state_, std::move(earlier));
  *state_.mutable_run() = before.run();
  state_.set_train_seconds(before.train_seconds());
  state_.set_failed_saves(before.failed_saves());
  state_.set_validation_due(false);
  state_.clear_spikes();
  for (const SpikeRecord& spike : before.spikes()) {
    const bool stays = spike.last_left_out() > 0 || spike.step() <= state_.step();
    if (stays) *state_.add_spikes() = spike;
  }
  if (context_.loss_scale != nullptr) {
    const RunSpec& run = resolved_.run;
    *context_.loss_scale =
        DynamicLossScale(run.optim(), run.data().global_microbatches(), state_.loss_scale());
  }
  recorder_.GoBack(state_.step());
}

}  // namespace deepnet
