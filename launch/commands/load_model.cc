#include "launch/commands/load_model.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>
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

absl::StatusOr<std::vector<FoundModel>> Find(const CommandLine& line, int threads) {
  ASSIGN_OR_RETURN(ComputeSpec compute, ComputeOverrides(line));
  if (compute.threads_per_rank() == 0 && threads > 0) compute.set_threads_per_rank(threads);
  std::vector<FoundModel> all;
  for (const std::string& path : line.flags.List("checkpoint")) {
    ASSIGN_OR_RETURN(FoundModel found, FindModel(ResolvePath(line, path), compute));
    all.push_back(std::move(found));
  }
  return all;
}

// Returns what a checkpoint is, whatever the host.
std::string Identity(const FoundModel& found) {
  Manifest manifest = found.manifest;
  manifest.clear_run();  // its arithmetic is this host's
  return absl::StrCat("step ", manifest.step(), "\n", manifest.DebugString());
}

absl::Status CheckSame(Communicator& world, std::span<const FoundModel> found, RunSpec run) {
  if (world.size() == 1) return absl::OkStatus();
  ComputeSpec compute = run.compute();
  compute.clear_threads_per_rank();
  run.clear_compute();
  std::string checkpoints;
  for (const FoundModel& one : found) checkpoints += Identity(one);
  const Fact facts[] = {{"the program file", ProgramFingerprint()},
                        {"compute", compute.ShortDebugString()},
                        {"RunSpec", run.DebugString()},
                        {"--checkpoint", checkpoints}};
  return CheckSameEverywhere(world, facts);
}

}  // namespace

absl::StatusOr<DecodingModel> LoadDecodingModel(
    const CommandLine& line, Communicator& world,
    const std::function<absl::Status(const RunSpec& run)>& check) {
  ASSIGN_OR_RETURN(const int threads, ShareOfCores(world));
  const absl::StatusOr<std::vector<FoundModel>> found = Find(line, threads);
  RETURN_IF_ERROR(AgreeOnStatus(world, found.status()));
  const RunSpec& of_first = found->front().manifest.run();
  absl::StatusOr<RunSpec> run = DecodingRunSpec(line, of_first);
  RETURN_IF_ERROR(AgreeOnStatus(world, run.ok() ? check(*run) : run.status()));
  for (const FoundModel& one : *found) {  // all must take the sentences
    const int positions = one.manifest.run().model().max_positions();
    ModelSpec& model = *run->mutable_model();
    model.set_max_positions(std::min(model.max_positions(), positions));
  }
  RETURN_IF_ERROR(CheckSame(world, *found, *run));
  if (world.size() > 1 && of_first.compute().device() == "cuda") {
    RETURN_IF_ERROR(TakeDevice(world).status());
  }
  absl::StatusOr<std::unique_ptr<LoadedModel>> loaded = LoadEnsemble(*found);
  RETURN_IF_ERROR(AgreeOnStatus(world, loaded.status()));
  return DecodingModel{.run = *std::move(run), .loaded = *std::move(loaded)};
}

}  // namespace deepnet
