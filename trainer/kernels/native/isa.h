// The instruction sets of the CPU kernels, chosen at run time.
//
// Every kernels_<isa>.cc compiles the same *.inc files with its own compiler flags and exports one
// KernelTable. Results are the same for any number of threads, but not across instruction sets: a
// run stores the one it used.
#pragma once

#include <string_view>

#include "trainer/kernels/native/kernel_table.h"

namespace deepnet::native {

// In order: each has everything the ones before it have.
enum class Isa {
  kBaseline = 1,    // what every host of the architecture has
  kAvx2 = 2,        // AVX2 and FMA
  kAvx512 = 3,      // AVX-512 F, BW, DQ, VL
  kAvx512Bf16 = 4,  // kAvx512 and its bfloat16 dot product
};

inline constexpr Isa kAllIsas[] = {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16};

// Returns whether this host (processor and operating system) and this build have `isa`.
bool Supports(Isa isa);

// Returns the last of kAllIsas that is supported.
Isa BestIsa();

// Returns "baseline", "avx2", "avx512" or "avx512_bf16".
std::string_view IsaName(Isa isa);

// Returns the kernels of `isa`, which must be supported, for the life of the process.
const KernelTable& Table(Isa isa);

}  // namespace deepnet::native
