#include "launch/device_group.h"

#include <algorithm>
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
#include "parallel/comm/nccl_communicator.h"
#include "trainer/kernels/compute.h"

namespace deepnet {
namespace {

// Settings of CUDA that a run needs, unless the user has others; before CUDA's first call. Streams
// get a hardware queue each, and kernels are loaded at the start: a receive that has been launched
// holds up what shares its queue, and what waits for the device to be idle.
void SetCudaDefaults() {
  static const bool set = [] {
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
    setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
    return true;
  }();
  static_cast<void>(set);
}

// Makes the device current. Its index.
absl::StatusOr<int> TakeDevice(int rank_on_host) {
  const auto preflight = [](const std::string& message) {
    return WithExitCode(absl::FailedPreconditionError(message), ExitCode::kPreflight);
  };
  SetCudaDefaults();
  const std::optional<c10::DeviceType> type = GpuType();
  if (!type) {
    return preflight("compute.device: \"cuda\": this build or host has no CUDA device");
  }
  const c10::impl::VirtualGuardImpl guard(*type);
  const int count = guard.deviceCount();
  if (count != 1 && rank_on_host >= count) {
    return preflight(absl::StrCat("compute.device: \"cuda\": ", HostName(), " has ", count,
                                  " GPUs, and more ranks"));
  }
  const int index = count == 1 ? 0 : rank_on_host;
  guard.setDevice({*type, static_cast<c10::DeviceIndex>(index)});
  return index;
}

}  // namespace

bool HasCuda() {
  SetCudaDefaults();
  return GpuType().has_value();
}

absl::StatusOr<std::unique_ptr<Communicator>> JoinDevices(const ComputeSpec& compute,
                                                          Communicator& world) {
  if (compute.device() != "cuda") return nullptr;
  ASSIGN_OR_RETURN(const std::vector<std::string> hosts, AllGatherText(world, HostName()));
  const auto mine = hosts.begin() + world.rank();
  const auto rank_on_host = static_cast<int>(std::count(hosts.begin(), mine, *mine));
  const absl::StatusOr<int> device = TakeDevice(rank_on_host);
  RETURN_IF_ERROR(AgreeOnStatus(world, device.status()));
  if (world.size() == 1) return nullptr;
  return MakeNcclCommunicator(world, *device);
}

}  // namespace deepnet
