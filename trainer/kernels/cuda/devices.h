// The GPUs that this process sees, and whether this build can use them. Errors are
// FailedPrecondition (ExitCode::kPreflight).
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace deepnet {

// Returns how many there are, at least one. An error says why there is none: the build has nothing
// for GPUs, the driver is older than its runtime (both versions), a list that hides all
// (CUDA_VISIBLE_DEVICES), or none in this host.
absl::StatusOr<int> CountGpus();

// Returns what names GPU `index`, whatever other processes call it and their hosts:
// "0000:3B:00.0 UUID 5ee6... (NVIDIA H100)". Fails where this build has no kernels for it.
absl::StatusOr<std::string> CheckGpu(int index);

// Returns the versions that the driver is for and that the runtime has: "driver 13.0, runtime
// 13.0"; empty: a build that has nothing for GPUs.
std::string CudaVersions();

// Returns whether a build for `architectures`, those of CMAKE_CUDA_ARCHITECTURES with commas
// ("80-real,90-real,100-virtual"), has kernels for compute capability `capability` (86 is 8.6):
// machine code runs on later GPUs of its generation, virtual code on all later ones.
bool HasKernelsFor(int capability, const std::string& architectures);

}  // namespace deepnet
