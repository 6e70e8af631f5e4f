// Kernels that treat every chunk of eight columns by itself. For kernel sources (.cu) only.
//
// Example:
//   struct Negate {
//     MatrixView x;
//     __device__ void operator()(int64_t row, int64_t c, int n) const { ... }
//   };
//   ForRowChunks(gpu, "Negate", rows, cols, Negate{ViewOf(x)});
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "trainer/kernels/cuda/elements.h"
#include "trainer/kernels/cuda/launch.h"

namespace deepnet::cuda {

inline constexpr int kChunkThreads = 128;

// Threads in x have neighbouring chunks of a row; narrow matrices have several rows in a block.
// Blocks lie in one dimension, `across` for each group of rows: a grid's y ends at 65,535, and all
// weights of a rank are one row.
template <typename Body>
__global__ void __launch_bounds__(kChunkThreads)
    RowChunksKernel(int64_t rows, int64_t cols, unsigned across, const Body body) {
  const int64_t row = static_cast<int64_t>(blockIdx.x / across) * blockDim.y + threadIdx.y;
  const int64_t c =
      (static_cast<int64_t>(blockIdx.x % across) * blockDim.x + threadIdx.x) * kChunkColumns;
  if (row >= rows || c >= cols) return;
  const int64_t left = cols - c;
  body(row, c, left < kChunkColumns ? static_cast<int>(left) : kChunkColumns);
}

// body(row, c, n) for columns c..c+n, n <= 8, of every row: c is a multiple of 8, and n is 8 but
// for the last columns. Nothing is launched where there is nothing to do.
template <typename Body>
void ForRowChunks(GpuStream& gpu, const char* name, int64_t rows, int64_t cols, const Body& body) {
  if (rows == 0 || cols == 0) return;
  const int64_t chunks = (cols + kChunkColumns - 1) / kChunkColumns;
  const auto x = static_cast<unsigned>(
      std::min<uint64_t>(kChunkThreads, std::bit_ceil(static_cast<uint64_t>(chunks))));
  const unsigned y = kChunkThreads / x;
  const auto across = static_cast<unsigned>((chunks + x - 1) / x);
  const dim3 grid(static_cast<unsigned>((rows + y - 1) / y) * across);
  Launch(gpu, name, RowChunksKernel<Body>, grid, dim3(x, y), /*shared_bytes=*/0, rows, cols, across,
         body);
}

// Two chunks of each of kThreads threads.
template <int kThreads>
struct PairSums {
  float first[kThreads * kChunkColumns];
  float second[kThreads * kChunkColumns];
};

// Adds the chunks of all groups of threads in order to those of the first, which has threadIdx.y 0.
// All threads of the block call it.
template <int kThreads>
__device__ inline void AddGroups(PairSums<kThreads>& groups, Chunk& first, Chunk& second) {
  const int columns = static_cast<int>(blockDim.x) * kChunkColumns;
  const int own = static_cast<int>(threadIdx.x) * kChunkColumns;
  const int mine = static_cast<int>(threadIdx.y) * columns + own;
#pragma unroll
  for (int j = 0; j < kChunkColumns; ++j) {
    groups.first[mine + j] = first.v[j];
    groups.second[mine + j] = second.v[j];
  }
  __syncthreads();
  if (threadIdx.y > 0) return;
  for (int y = 1; y < static_cast<int>(blockDim.y); ++y) {
#pragma unroll
    for (int j = 0; j < kChunkColumns; ++j) {
      first.v[j] += groups.first[y * columns + own + j];
      second.v[j] += groups.second[y * columns + own + j];
    }
  }
}

template <typename F>
struct NumbersBody {
  MatrixView x, to;
  F f;

  __device__ void operator()(int64_t row, int64_t c, int n) const {
    Chunk values = LoadChunk(x, row, c, n);
#pragma unroll
    for (float& v : values.v) v = f(v);
    StoreChunk(to, row, c, n, values);
  }
};

template <typename F>
struct PairsBody {
  MatrixView x, y, to;
  F f;

  __device__ void operator()(int64_t row, int64_t c, int n) const {
    const Chunk a = LoadChunk(x, row, c, n);
    Chunk values = LoadChunk(y, row, c, n);
#pragma unroll
    for (int j = 0; j < kChunkColumns; ++j) values.v[j] = f(a.v[j], values.v[j]);
    StoreChunk(to, row, c, n, values);
  }
};

// to = f(x) and to = f(x, y), number by number; `to` may be an operand.
template <typename F>
void ForNumbers(GpuStream& gpu, const char* name, const native::ConstMatrix& x,
                const native::Matrix& to, const F& f) {
  ForRowChunks(gpu, name, x.rows, x.cols, NumbersBody<F>{ViewOf(x), ViewOf(to), f});
}
template <typename F>
void ForPairs(GpuStream& gpu, const char* name, const native::ConstMatrix& x,
              const native::ConstMatrix& y, const native::Matrix& to, const F& f) {
  ForRowChunks(gpu, name, x.rows, x.cols, PairsBody<F>{ViewOf(x), ViewOf(y), ViewOf(to), f});
}

}  // namespace deepnet::cuda
