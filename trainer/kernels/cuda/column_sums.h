// The second half of sums over rows: kernels leave one row of partial sums for each fixed block of
// rows in scratch memory, and this adds them up in a fixed order. No atomics, the same bits always.
#pragma once

#include <cstdint>

#include "trainer/kernels/cuda/gpu_stream.h"

namespace deepnet::cuda {

struct ColumnSumsArgs {
  const float* partials = nullptr;  // [rows, stride]
  int64_t rows = 0;
  int64_t stride = 0;
  int64_t cols = 0;  // of each of the two
  // [cols], added to: columns 0..cols and cols..2 * cols of the partial sums; null: not wanted.
  float* first = nullptr;
  float* second = nullptr;
};

void AddColumnSums(GpuStream& gpu, const char* name, const ColumnSumsArgs& args);

}  // namespace deepnet::cuda
