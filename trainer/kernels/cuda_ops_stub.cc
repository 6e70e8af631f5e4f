// In place of cuda_ops.cc where a build has nothing for GPUs.
#include "parallel/base/check.h"
#include "trainer/kernels/compute.h"

namespace deepnet {

std::unique_ptr<Ops> MakeCudaOps(at::Device, at::ScalarType, bool, AttentionKernel) {
  DEEPNET_CHECK(false) << "this build has nothing for GPUs";
  return nullptr;
}

}  // namespace deepnet
