#include "launch/commands/load_model.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "launch/commands/decoding.h"
#include "launch/device_group.h"
#include "parallel/base/host.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"

namespace deepnet {
namespace {

// Returns the threads of this rank, a share of the cores that it may use; 0: alone, as it likes.
absl::StatusOr<int> ShareOfCores(Communicator& world) {
  if (world.size() == 1) return 0;
  const std::string cores = UsableCoreList();
  ASSIGN_OR_RETURN(const std::vector<std::string> hosts, AllGatherText(world, HostName()));
  ASSIGN_OR_RETURN(const std::vector<std::string> lists, AllGatherText(world, cores));
  std::vector<std::string> here;
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    if (hosts[rank] == HostName()) here.push_back(lists[rank]);
  }
  return ThreadsPerRank(here, cores);
}

absl::StatusOr<FoundModel> Find(const CommandLine& line, int threads) {
  ASSIGN_OR_RETURN(ComputeSpec compute, ComputeOverrides(line));
  if (compute.threads_per_rank() == 0 && threads > 0) compute.set_threads_per_rank(threads);
  return FindModel(ResolvePath(line, line.flags.Text("checkpoint")), compute);
}

absl::Status CheckSame(Communicator& world, const FoundModel& found, RunSpec run) {
  if (world.size() == 1) return absl::OkStatus();
  ComputeSpec compute = run.compute();
  compute.clear_threads_per_rank();
  run.clear_compute();
  Manifest manifest = found.manifest;
  manifest.clear_run();  // its arithmetic is this host's
  const Fact facts[] = {
      {"the program file", ProgramFingerprint()},
      {"compute", compute.ShortDebugString()},
      {"RunSpec", run.DebugString()},
      {"--checkpoint", absl::StrCat("step ", found.manifest.step(), "\n", manifest.DebugString())}};
  return CheckSameEverywhere(world, facts);
}

}  // namespace

absl::StatusOr<DecodingModel> LoadDecodingModel(
    const CommandLine& line, Communicator& world,
    const std::function<absl::Status(const RunSpec& run)>& check) {
  ASSIGN_OR_RETURN(const int threads, ShareOfCores(world));
  const absl::StatusOr<FoundModel> found = Find(line, threads);
  RETURN_IF_ERROR(AgreeOnStatus(world, found.status()));
  absl::StatusOr<RunSpec> run = DecodingRunSpec(line, found->manifest.run());
  RETURN_IF_ERROR(AgreeOnStatus(world, run.ok() ? check(*run) : run.status()));
  RETURN_IF_ERROR(CheckSame(world, *found, *run));
  if (world.size() > 1 && found->manifest.run().compute().device() == "cuda") {
    RETURN_IF_ERROR(TakeDevice(world).status());
  }
  absl::StatusOr<std::unique_ptr<LoadedModel>> loaded = LoadModel(*found);
  RETURN_IF_ERROR(AgreeOnStatus(world, loaded.status()));
  return DecodingModel{.run = *std::move(run), .loaded = *std::move(loaded)};
}

}  // namespace deepnet
