// Checks that kernels take the elements of their arguments.
#pragma once

#include "parallel/base/check.h"
#include "trainer/kernels/native/matrix.h"

namespace deepnet::native {

// For kernels on CPUs: float16 is for GPUs. Matrices without data count as well.
template <typename... Matrices>
void CheckElements(const Matrices&... matrices) {
  DEEPNET_CHECK(((matrices.element != Element::kFloat16) && ...))
      << "kernels for CPUs have no float16";
}

// For what kernels read as float32: masters and the residual stream. Matrices without data pass.
template <typename... Matrices>
void CheckFloats(const Matrices&... matrices) {
  DEEPNET_CHECK(((matrices.element == Element::kFloat32) && ...)) << "an argument is not float32";
}

}  // namespace deepnet::native
