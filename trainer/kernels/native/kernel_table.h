// All functions that are compiled once per instruction set. Included by the kernels_<isa>.cc files:
// nothing here or below may emit inline functions.
#pragma once

#include "trainer/kernels/native/elementwise_table.h"
#include "trainer/kernels/native/gemm_table.h"

namespace deepnet::native {

struct KernelTable {
  GemmTable gemm;
  ElementwiseTable elementwise;
};

// One per kernels_<isa>.cc; reach them through Table(Isa) of isa.h.
namespace baseline {
const KernelTable& Table();
}
namespace avx2 {
const KernelTable& Table();
}
namespace avx512 {
const KernelTable& Table();
}
namespace avx512_bf16 {
const KernelTable& Table();
}

}  // namespace deepnet::native
