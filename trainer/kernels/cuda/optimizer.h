// The optimizer's arithmetic (trainer/kernels/native/adam.h) over flat ranges of device memory.
#pragma once

#include <cstdint>

#include "trainer/kernels/cuda/gpu_stream.h"
#include "trainer/kernels/native/adam.h"

namespace deepnet::cuda {

// One update of n weights. One launch. The weights and moments are those of the CPU, bit for bit.
void AdamStep(GpuStream& gpu, const native::AdamArgs& args, int64_t n, float* weights,
              const float* gradient, float* m, float* v);

// sums[b] = sum of x[i]^2 over block b of native::kSumSquaresBlock elements, in double precision:
// the bits of the CPU. `sums` is device memory. One launch.
void SumSquares(GpuStream& gpu, const float* x, int64_t n, double* sums);

}  // namespace deepnet::cuda
