#include "launch/commands/load_model.h"

#include <algorithm>
#include <cstdint>
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
#include "trainer/telemetry/tensor_memory.h"

namespace deepnet {
namespace {

absl::StatusOr<std::vector<FoundModel>> Find(const CommandLine& line, int threads) {
  RETURN_IF_ERROR(line.flags.CheckRequired());
  ASSIGN_OR_RETURN(ComputeSpec compute, ComputeOverrides(line));
  if (compute.threads_per_rank() == 0 && threads > 0) compute.set_threads_per_rank(threads);
  std::vector<FoundModel> all;
  for (const std::string& path : line.flags.List("checkpoint")) {
    ASSIGN_OR_RETURN(FoundModel found, FindModel(ResolvePath(line, path), compute));
    all.push_back(std::move(found));
  }
  return all;
}

absl::Status CheckSame(Communicator& world, std::span<const FoundModel> found, RunSpec run) {
  if (world.size() == 1) return absl::OkStatus();
  ComputeSpec compute = run.compute();
  compute.clear_threads_per_rank();
  run.clear_compute();
  std::string checkpoints;
  for (const FoundModel& one : found) {
    Manifest manifest = one.manifest;
    manifest.clear_run();  // its arithmetic is this host's
    absl::StrAppend(&checkpoints, "step ", manifest.step(), "\n", manifest.DebugString());
  }
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
  ASSIGN_OR_RETURN(const JobHosts hosts, GatherHosts(world));
  const int threads = world.size() == 1 ? 0 : hosts.Threads();  // alone it has as many as it likes
  ASSIGN_OR_RETURN(const std::vector<FoundModel> found, AgreeOn(world, Find(line, threads)));
  const RunSpec& of_first = found.front().manifest.run();
  absl::StatusOr<RunSpec> run = DecodingRunSpec(line, of_first);
  RETURN_IF_ERROR(AgreeOnStatus(world, run.ok() ? check(*run) : run.status()));
  for (const FoundModel& one : found) {  // all must take the sentences
    const int positions = one.manifest.run().model().max_positions();
    ModelSpec& model = *run->mutable_model();
    model.set_max_positions(std::min(model.max_positions(), positions));
  }
  RETURN_IF_ERROR(CheckSame(world, found, *run));
  if (world.size() > 1 && of_first.compute().device() == "cuda") {
    RETURN_IF_ERROR(SetDevice(world).status());
  }
  ASSIGN_OR_RETURN(auto loaded, AgreeOn(world, LoadEnsemble(found)));
  return DecodingModel{.run = *std::move(run), .loaded = std::move(loaded)};
}

absl::StatusOr<BatchLimits> AgreeOnLimits(const DecodingModel& model, Communicator& world) {
  const DecodeSpec& decode = model.run.decode();
  const ComputeSpec& compute = model.loaded->run.compute();
  if (compute.device() != "cuda") {
    return BatchLimits{.batch_tokens = BatchTokens(decode, /*on_gpu=*/false)};
  }
  ASSIGN_OR_RETURN(const std::vector<int64_t> free, AllGatherValue(world, FreeGpuBytes()));
  const int64_t least = *std::ranges::min_element(free);
  std::vector<ModelSpec> models;
  for (const auto& one : model.loaded->models) models.push_back(one->spec());
  models.front() = model.run.model();  // whose max_positions is the least of all
  const int64_t operand_bytes = compute.dtype() == FLOAT32 ? sizeof(float) : sizeof(uint16_t);
  return AgreeOn(world, FitBatches(decode, models, operand_bytes, least));
}

}  // namespace deepnet
