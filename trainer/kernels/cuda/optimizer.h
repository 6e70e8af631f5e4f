// The optimizer's arithmetic (trainer/kernels/native/adam.h) over flat ranges of device memory.
#pragma once

#include <cstdint>

#include "trainer/kernels/cuda/gpu_stream.h"
#include "trainer/kernels/native/adam.h"
#include "trainer/kernels/native/matrix.h"

namespace deepnet::cuda {

// One update of n weights, which also writes them, rounded, to `operand` of type `element` unless
// that is null. One launch. The weights and moments are those of the CPU, bit for bit.
void AdamStep(GpuStream& gpu, const native::AdamArgs& args, int64_t n, float* weights,
              const float* gradient, float* m, float* v, void* operand = nullptr,
              native::Element element = native::Element::kBfloat16);

// sums[b] = sum of x[i]^2 over block b of native::kSumSquaresBlock elements, in double precision:
// the bits of the CPU. `sums` is device memory. One launch.
void SumSquares(GpuStream& gpu, const float* x, int64_t n, double* sums);

// *count += the number of elements of x that are infinite or NaN: with float16 operands a step
// whose gradient has any is left out and the loss scale lowered. `count` is device memory. One
// launch.
void CountNonFinite(GpuStream& gpu, const float* x, int64_t n, unsigned long long* count);

}  // namespace deepnet::cuda
