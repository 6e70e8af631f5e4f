// In place of cuda_ops.cc where a build has nothing for GPUs.
#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "trainer/kernels/compute.h"
#include "trainer/kernels/side_copies.h"

namespace deepnet {

std::unique_ptr<Ops> MakeCudaOps(at::Device, at::ScalarType, bool, AttentionKernel, bool) {
  DEEPNET_CHECK(false) << "this build has nothing for GPUs";
  return nullptr;
}

namespace {

absl::Status Nothing() {
  return PreflightError("this build has nothing for GPUs: build the preset `cuda`");
}

}  // namespace

std::unique_ptr<SideCopies> MakeSideCopies(void*) {
  DEEPNET_CHECK(false) << "this build has nothing for GPUs";
  return nullptr;
}

absl::StatusOr<int> CountGpus() { return Nothing(); }
absl::StatusOr<std::string> CheckGpu(int) { return Nothing(); }
std::string CudaVersions() { return ""; }

std::vector<ProductWay> TryProduct(const ProductTask&) {
  DEEPNET_CHECK(false) << "this build has nothing for GPUs";
  return {};
}

}  // namespace deepnet
