// The optimizer's arithmetic (trainer/kernels/native/adam.h) over flat ranges of device memory.
#pragma once

#include <cstdint>
#include <span>

#include "trainer/kernels/cuda/gpu_stream.h"
#include "trainer/kernels/native/adam.h"

namespace deepnet::cuda {

// One launch. The weights and moments are those of the CPU, bit for bit.
void AdamStep(GpuStream& gpu, const native::AdamRule& rule, const native::AdamRange& range);

// Numbers whose squares are summed.
struct FloatRange {
  const float* x;
  int64_t n;
};

// The sums of x[i]^2 over blocks of native::kSumSquaresBlock elements, the last one of a range the
// rest, in double precision: the bits of the CPU. Those of a range stand behind those of the range
// before. `sums` is device memory. One launch for kMaxRanges ranges.
inline constexpr int kMaxRanges = 128;
void SumSquares(GpuStream& gpu, std::span<const FloatRange> ranges, double* sums);

}  // namespace deepnet::cuda
