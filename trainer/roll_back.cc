#include "trainer/roll_back.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

#include "parallel/base/messages.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "trainer/async_checkpointer.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/retention.h"

namespace deepnet {
namespace {

// Returns the steps of the run's checkpoints in the order in which they are tried.
absl::StatusOr<std::vector<int64_t>> Candidates(FileSystem& fs, const std::string& run_folder,
                                                int64_t step) {
  std::vector<int64_t> steps;
  ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.List(run_folder));
  for (const std::string& name : names) {
    if (const std::optional<int64_t> of = StepOfCheckpointName(name)) steps.push_back(*of);
  }
  std::sort(steps.begin(), steps.end());
  std::reverse(steps.begin(), std::upper_bound(steps.begin(), steps.end(), step));
  return steps;
}

// Returns the first of `steps` whose checkpoint is intact; none if there is none.
std::optional<Manifest> FindIntact(FileSystem& fs, const std::string& run_folder,
                                   const std::vector<int64_t>& steps, Logger& log) {
  for (const int64_t step : steps) {
    const std::string folder = JoinPath(run_folder, CheckpointName(step));
    absl::StatusOr<Manifest> manifest = ReadManifest(fs, folder);
    absl::Status intact = manifest.status();
    if (intact.ok()) intact = VerifyTensors(fs, folder, *manifest);
    if (intact.ok()) return *std::move(manifest);
    log.Warning(absl::StrCat("cannot go back to step ", step, ": ", intact.message()));
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<std::optional<Manifest>> GoBack(FileSystem& fs, const std::string& run_folder,
                                               int64_t step, RunLock* lock, RankContext& context,
                                               Logger& log) {
  Communicator& world = *context.world;
  const bool leads = world.rank() == 0;
  std::optional<Manifest> found;
  absl::StatusOr<std::vector<int64_t>> steps = std::vector<int64_t>();
  if (leads) steps = Candidates(fs, run_folder, step);
  RETURN_IF_ERROR(AgreeOnStatus(world, steps.status()));
  if (leads) found = FindIntact(fs, run_folder, *steps, log);
  ASSIGN_OR_RETURN(const std::string whole, BroadcastText(world, found ? ToBytes(*found) : "", 0));
  if (whole.empty()) return std::nullopt;
  Manifest manifest;
  RETURN_IF_ERROR(ParseSent(whole, manifest));
  const std::string folder = JoinPath(run_folder, CheckpointName(manifest.step()));
  RETURN_IF_ERROR(AgreeOnStatus(world, LoadRankState(fs, folder, manifest, context)));
  context.model->Refresh();
  absl::Status deleted;
  if (leads && lock != nullptr) deleted = lock->Check();
  if (leads && deleted.ok()) deleted = DeleteNewerCheckpoints(fs, run_folder, manifest);
  RETURN_IF_ERROR(AgreeOnStatus(world, deleted));
  ASSIGN_OR_RETURN(const std::string kept, BroadcastText(world, ToBytes(manifest), 0));
  RETURN_IF_ERROR(ParseSent(kept, manifest));
  manifest.clear_files();
  return manifest;
}

}  // namespace deepnet
