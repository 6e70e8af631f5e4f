// Which elements kernels for CPUs take.
#pragma once

#include "parallel/base/check.h"
#include "trainer/kernels/native/matrix.h"

namespace deepnet::native {

// All but float16, which is for GPUs.
inline void CheckElement(Element element) {
  DEEPNET_CHECK(element != Element::kFloat16) << "kernels for CPUs have no float16";
}

// A matrix without data counts as well.
template <typename... Matrices>
void CheckElements(const Matrices&... matrices) {
  (CheckElement(matrices.element), ...);
}

}  // namespace deepnet::native
