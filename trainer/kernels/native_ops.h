// Ops on this host's processor by the project's own kernels (trainer/kernels/native).
#pragma once

#include <memory>

#include "proto/plan.pb.h"
#include "trainer/kernels/ops.h"

namespace deepnet {

// `compute` is resolved: dtype, isa and threads_per_rank say what to use; the isa must be supported
// here (see CheckCompute). Bits depend on dtype and isa, never on the number of threads.
std::unique_ptr<Ops> MakeNativeOps(const ComputeSpec& compute);

}  // namespace deepnet
