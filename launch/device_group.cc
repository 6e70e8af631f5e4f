#include "launch/device_group.h"

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <c10/core/impl/VirtualGuardImpl.h>

#include "parallel/base/exit_code.h"
#include "parallel/base/host.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/backends.h"
#include "trainer/kernels/compute.h"

namespace deepnet {
namespace {

absl::Status Preflight(const std::string& message) {
  return PreflightError("compute.device: \"cuda\": ", message);
}

struct OwnGpu {
  int index = 0;
  std::string name;  // in this host, whatever other ranks call it
};

// Makes the GPU of the `rank_on_host`-th of `ranks_on_host` ranks current.
absl::StatusOr<OwnGpu> SetGpu(int rank_on_host, int ranks_on_host) {
  SetCudaDefaults();
  const absl::StatusOr<int> count = CountGpus();
  RETURN_IF_ERROR(WithPrefix("compute.device: \"cuda\"", count.status()));
  const std::optional<c10::DeviceType> type = GpuType();
  if (!type) return Preflight("LibTorch of this build sees no GPU");
  if (*count != 1 && rank_on_host >= *count) {
    const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
    return Preflight(absl::StrCat(
        HostName(), " has ", *count, " GPUs for ", ranks_on_host, " ranks",
        visible == nullptr ? "" : absl::StrCat(" (CUDA_VISIBLE_DEVICES is \"", visible, "\")")));
  }
  OwnGpu own{.index = *count == 1 ? 0 : rank_on_host};
  absl::StatusOr<std::string> name = CheckGpu(own.index);
  RETURN_IF_ERROR(WithPrefix("compute.device: \"cuda\"", name.status()));
  own.name = *std::move(name);
  const c10::impl::VirtualGuardImpl guard(*type);
  guard.setDevice({*type, static_cast<c10::DeviceIndex>(own.index)});
  return own;
}

// Two ranks do not share a GPU: each would plan with all of its memory, and NCCL refuses them.
absl::Status CheckNotShared(const std::vector<std::string>& hosts,
                            const std::vector<std::string>& names) {
  for (size_t rank = 0; rank < names.size(); ++rank) {
    for (size_t other = rank + 1; other < names.size(); ++other) {
      if (hosts[rank] != hosts[other] || names[rank] != names[other]) continue;
      return Preflight(absl::StrCat("ranks ", rank, " and ", other, " of ", hosts[rank],
                                    " would share GPU ", names[rank],
                                    ": start as many ranks as a host has GPUs"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

// Streams get a hardware queue each, and kernels are loaded at the start: a receive that has been
// launched holds up what shares its queue, and what waits for the device to be idle.
void SetCudaDefaults() {
  static const bool set = [] {
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
    setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
    return true;
  }();
  static_cast<void>(set);
}

bool HasCuda() { return GpuType().has_value(); }

absl::StatusOr<int> SetDevice(Communicator& world) {
  ASSIGN_OR_RETURN(const JobHosts hosts, GatherHosts(world));
  ASSIGN_OR_RETURN(const OwnGpu gpu,
                   AgreeOn(world, SetGpu(hosts.RanksBefore(), hosts.RanksHere())));
  ASSIGN_OR_RETURN(const std::vector<std::string> names, AllGatherText(world, gpu.name));
  RETURN_IF_ERROR(AgreeOnStatus(world, CheckNotShared(hosts.names, names)));
  return gpu.index;
}

absl::StatusOr<std::unique_ptr<Communicator>> JoinDevices(const ComputeSpec& compute,
                                                          Communicator& world) {
  if (compute.device() != "cuda") return nullptr;
  ASSIGN_OR_RETURN(const int index, SetDevice(world));
  if (world.size() == 1) return nullptr;
  return MakeNcclCommunicator(world, index);
}

}  // namespace deepnet
