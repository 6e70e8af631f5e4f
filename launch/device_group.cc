#include "launch/device_group.h"

#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include <c10/core/impl/VirtualGuardImpl.h>

#include "parallel/base/exit_code.h"
#include "parallel/base/host.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/backends.h"
#include "trainer/kernels/compute.h"

namespace deepnet {
namespace {

constexpr char kField[] = "compute.device: \"cuda\"";

// Several ranks need queues and kernels from the start, since a receive holds up all that shares
// its queue or waits for an idle device; launches that do not wait; as few blocks as lanes were
// made with; and no sums in NVLink's switch, which have other bits each time.
std::map<std::string, std::string> Variables() {
  constexpr char kNeeded[] =
      "CUDA_DEVICE_MAX_CONNECTIONS=32 CUDA_MODULE_LOADING=EAGER CUDA_LAUNCH_BLOCKING=0 "
      "NCCL_COMM_BLOCKING=1 NCCL_LAUNCH_ORDER_IMPLICIT=0 NCCL_NVLS_ENABLE=0 NCCL_MAX_CTAS= "
      "NCCL_MIN_NRINGS= NCCL_MIN_NCHANNELS= NCCL_MIN_P2P_NCHANNELS= NCCL_NCHANNELS_PER_NET_PEER=";
  return absl::StrSplit(kNeeded, absl::ByAnyChar("= "));
}

absl::Status CheckVariables() {
  for (const auto& [name, value] : Variables()) {
    const char* const given = std::getenv(name.c_str());
    if (given == nullptr || given == value) continue;
    return PreflightError(name, " is \"", given, "\": ranks would hang or differ: unset it");
  }
  return absl::OkStatus();
}

struct OwnGpu {
  int index = 0;
  std::string name;  // whatever other ranks call it and its host
};

// Makes the GPU of this rank of its host current.
absl::StatusOr<OwnGpu> SetGpu(const JobHosts& hosts) {
  SetCudaDefaults();
  ASSIGN_OR_RETURN(const int count, CountGpus());
  const std::optional<c10::DeviceType> type = GpuType();
  if (!type) return PreflightError("LibTorch of this build sees no GPU");
  if (count != 1 && hosts.RanksBefore() >= count) {
    const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
    return PreflightError(
        HostName(), " has ", count, " GPUs for ", hosts.RanksHere(), " ranks",
        visible == nullptr ? "" : absl::StrCat(" (CUDA_VISIBLE_DEVICES is \"", visible, "\")"));
  }
  OwnGpu own{.index = count == 1 ? 0 : hosts.RanksBefore()};
  ASSIGN_OR_RETURN(own.name, CheckGpu(own.index));
  const c10::impl::VirtualGuardImpl guard(*type);
  guard.setDevice({*type, static_cast<c10::DeviceIndex>(own.index)});
  return own;
}

// Two ranks do not share a GPU: each would plan with all of its memory, and NCCL refuses them.
absl::Status CheckNotShared(const std::vector<std::string>& hosts,
                            const std::vector<std::string>& names) {
  for (size_t rank = 0; rank < names.size(); ++rank) {
    for (size_t other = rank + 1; other < names.size(); ++other) {
      if (names[rank] != names[other]) continue;
      return PreflightError("ranks ", rank, " and ", other, " of ", hosts[rank],
                            " would share GPU ", names[rank],
                            ": start as many ranks as a host has GPUs");
    }
  }
  return absl::OkStatus();
}

}  // namespace

void SetCudaDefaults() {
  [[maybe_unused]] static const bool set = [] {
    for (const auto& [name, value] : Variables()) {
      const char* const given = std::getenv(name.c_str());
      if (given == nullptr || *given == '\0') setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
    }
    return true;
  }();
}

bool HasCuda() { return GpuType().has_value(); }

absl::StatusOr<int> SetDevice(Communicator& world) {
  ASSIGN_OR_RETURN(const JobHosts hosts, GatherHosts(world));
  ASSIGN_OR_RETURN(const OwnGpu gpu, AgreeOn(world, WithPrefix(kField, SetGpu(hosts))));
  ASSIGN_OR_RETURN(const std::vector<std::string> names, AllGatherText(world, gpu.name));
  RETURN_IF_ERROR(AgreeOnStatus(world, WithPrefix(kField, CheckNotShared(hosts.names, names))));
  return gpu.index;
}

absl::StatusOr<std::unique_ptr<Communicator>> JoinDevices(const ComputeSpec& compute,
                                                          Communicator& world) {
  if (compute.device() != "cuda") return nullptr;
  ASSIGN_OR_RETURN(const int index, SetDevice(world));
  if (world.size() == 1) return nullptr;
  RETURN_IF_ERROR(AgreeOnStatus(world, WithPrefix(kField, CheckVariables())));
  return MakeNcclCommunicator(world, index);
}

}  // namespace deepnet
