// Which elements kernels for CPUs take.
#pragma once

#include "parallel/base/check.h"
#include "trainer/kernels/native/matrix.h"

namespace deepnet::native {

// All but float16, which is for GPUs. A matrix without data counts as well.
template <typename... Matrices>
void CheckElements(const Matrices&... matrices) {
  DEEPNET_CHECK(((matrices.element != Element::kFloat16) && ...))
      << "kernels for CPUs have no float16";
}

}  // namespace deepnet::native
