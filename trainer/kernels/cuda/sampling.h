// The best tokens of distributions, for beam search on a GPU.
#pragma once

#include <cstdint>

#include "trainer/kernels/cuda/gpu_stream.h"

namespace deepnet::cuda {

inline constexpr int kMaxTopK = 64;

// The same choice as AppendTopK (trainer/decode/top_k.h): of each row the k largest numbers,
// largest first, equal ones by their column. Columns that are forbidden, -infinity or not a number
// are never chosen. All pointers are device memory.
struct TopKArgs {
  int64_t rows = 0;
  int64_t cols = 0;
  const float* x = nullptr;            // [rows, cols]
  int64_t stride = 0;                  // >= cols
  const uint8_t* forbidden = nullptr;  // [cols], not 0: never chosen; null: none
  int k = 1;                           // 1..kMaxTopK
  float* values = nullptr;             // [rows, k]; past the last that is possible -infinity
  int32_t* indices = nullptr;          // [rows, k]; past the last that is possible -1
};

// One launch.
void TopK(GpuStream& gpu, const TopKArgs& args);

}  // namespace deepnet::cuda
