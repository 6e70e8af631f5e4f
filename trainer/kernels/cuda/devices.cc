#include "trainer/kernels/cuda/devices.h"

#include <cuda_runtime_api.h>

#include <cstdlib>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"

namespace deepnet {
namespace {

constexpr char kArchitectures[] = DEEPNET_CUDA_ARCHITECTURES;

absl::Status StatusOf(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  return PreflightError(call, ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
}

// 13000 -> "13.0".
std::string VersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

std::string DriverText() {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0) return "this host has no NVIDIA driver";
  return absl::StrCat("the driver of this host is for CUDA ", VersionText(driver),
                      ", this build needs ", VersionText(runtime));
}

}  // namespace

absl::StatusOr<int> CountGpus() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) return PreflightError(DriverText());
  if (error != cudaSuccess && error != cudaErrorNoDevice) {
    return StatusOf("cudaGetDeviceCount", error);
  }
  if (error == cudaSuccess && count > 0) return count;
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return PreflightError(visible == nullptr ? "this host has no CUDA device"
                                           : absl::StrCat("CUDA_VISIBLE_DEVICES is \"", visible,
                                                          "\": no CUDA device is visible"));
}

absl::StatusOr<std::string> CheckGpu(int index) {
  cudaDeviceProp properties = {};
  RETURN_IF_ERROR(StatusOf("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, index)));
  const std::string name = absl::StrFormat(
      "%04X:%02X:%02X.0 UUID %s (%s)", properties.pciDomainID, properties.pciBusID,
      properties.pciDeviceID,
      absl::BytesToHexString({properties.uuid.bytes, sizeof(properties.uuid)}), properties.name);
  if (HasKernelsFor(10 * properties.major + properties.minor, kArchitectures)) return name;
  return PreflightError("GPU ", name, " has compute capability ", properties.major, ".",
                        properties.minor, ", this build has kernels for ",
                        absl::StrReplaceAll(kArchitectures, {{",", ", "}}),
                        " (CMAKE_CUDA_ARCHITECTURES)");
}

std::string CudaVersions() {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  return absl::StrCat("driver ", driver == 0 ? "none" : VersionText(driver), ", runtime ",
                      VersionText(runtime));
}

bool HasKernelsFor(int capability, const std::string& architectures) {
  for (const auto& word : absl::StrSplit(architectures, ',')) {
    const std::string architecture(word);
    const int built = std::atoi(architecture.c_str());
    if (built > capability) continue;
    const bool machine_code = !absl::StrContains(architecture, "-virtual");
    const bool virtual_code = !absl::StrContains(architecture, "-real");
    if (virtual_code || (machine_code && built / 10 == capability / 10)) return true;
  }
  return false;
}

}  // namespace deepnet
