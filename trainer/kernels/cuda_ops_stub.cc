// In place of cuda_ops.cc where a build has nothing for GPUs.
#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "trainer/kernels/compute.h"

namespace deepnet {

std::unique_ptr<Ops> MakeCudaOps(at::Device, at::ScalarType, bool, AttentionKernel) {
  DEEPNET_CHECK(false) << "this build has nothing for GPUs";
  return nullptr;
}

namespace {

absl::Status Nothing() {
  return WithExitCode(
      absl::FailedPreconditionError("this build has nothing for GPUs: build the preset `cuda`"),
      ExitCode::kPreflight);
}

}  // namespace

absl::StatusOr<int> CountGpus() { return Nothing(); }
absl::StatusOr<std::string> CheckGpu(int) { return Nothing(); }

}  // namespace deepnet
