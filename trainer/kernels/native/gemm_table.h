// Matrix-product kernels of one instruction set; filled in by gemm.inc, called by linear.cc.
#pragma once

#include <cstdint>

#include "trainer/kernels/native/matrix.h"

namespace deepnet::native {

struct GemmTable {};

}  // namespace deepnet::native
