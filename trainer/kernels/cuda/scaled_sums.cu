#include "parallel/base/check.h"
#include "trainer/kernels/cuda/device_math.h"
#include "trainer/kernels/cuda/elements.h"
#include "trainer/kernels/cuda/kernels.h"
#include "trainer/kernels/cuda/row_chunks.h"
#include "trainer/kernels/kernel_sizes.h"

namespace deepnet::cuda {
namespace {

using native::ConstMatrix;
using native::Matrix;

// A block takes a run of rows, counted from the first one, of 256 columns; a thread has eight
// columns of every eighth row of it. The sums of the eight groups of threads are added in order,
// then those of all runs (AddColumnSums), or one block takes all of a few runs in the same order.
// So rows of zeros behind the others change nothing.
constexpr int kRunRows = native::kBiasRunRows;
constexpr int kGroups = 8;
constexpr int kGroupRows = kRunRows / kGroups;  // of a thread
constexpr int kThreadsOfRow = 32;
constexpr int kColumns = kThreadsOfRow * kChunkColumns;

struct alignas(16) GroupSums {
  float of[kGroups][kColumns];
};

// Returns the sums of the first n columns of `count` rows, which lie the strides apart. With kRelu,
// dy is set to 0 first where `y`, the output, is not positive. kAhead rows are loaded before one is
// stored: a store holds up the loads behind it, which it might change as far as the compiler knows.
// dy goes down row by row: from an index nvcc makes four stores of four bytes in place of one.
template <int kAhead, bool kRelu, typename T>
__device__ __forceinline__ Chunk SumRows(T* dy, int64_t dy_stride, const T* y, int64_t y_stride,
                                         int count, int n, bool wide) {
  Chunk sum = {};
#pragma unroll 1
  for (; count > 0; count -= kAhead) {
    Chunk gradient[kAhead], output[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int row = i < count ? i : 0;  // one that is there
      gradient[i] = LoadChunk(dy + row * dy_stride, n, wide);
      if (kRelu) output[i] = LoadChunk(y + row * y_stride, n, wide);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i, dy += dy_stride) {
      if (i >= count) continue;
#pragma unroll
      for (int j = 0; j < kChunkColumns; ++j) {
        if (kRelu && !(output[i].v[j] > 0.0f)) gradient[i].v[j] = 0.0f;
        sum.v[j] += gradient[i].v[j];
      }
      if (kRelu) StoreChunk(dy, n, wide, gradient[i]);
    }
    y += kAhead * y_stride;
  }
  return sum;
}

template <typename T, bool kRelu>
__global__ void __launch_bounds__(kThreadsOfRow* kGroups, 4)
    BiasGradientKernel(const MatrixView dy, const MatrixView y, int64_t rows, int64_t cols,
                       float* out) {
  BLOCK_SHARED(GroupSums, sums);
  const int own = static_cast<int>(threadIdx.x) * kChunkColumns;
  const int64_t slab = static_cast<int64_t>(blockIdx.y) * kColumns, left = cols - slab - own;
  const int n = left < kChunkColumns ? static_cast<int>(left) : kChunkColumns;
  const bool wide = n == kChunkColumns && dy.wide && y.wide;
  const int column = static_cast<int>(threadIdx.y) * kThreadsOfRow + static_cast<int>(threadIdx.x);
  float total = 0.0f;  // of `column`
  for (int64_t run = blockIdx.x; run * kRunRows < rows; run += gridDim.x) {
    const int64_t first = run * kRunRows + threadIdx.y;
    const int64_t there = (rows - first + kGroups - 1) / kGroups;
    const int count = there < kGroupRows ? static_cast<int>(there) : kGroupRows;
    Chunk sum = {};
    if (n > 0 && count > 0) {
      T* const gradient = static_cast<T*>(dy.data) + first * dy.stride + slab + own;
      const T* const output = static_cast<const T*>(y.data) + first * y.stride + slab + own;
      const int64_t down = kGroups * dy.stride, y_down = kGroups * y.stride;
      sum = wide ? SumRows < kRelu ? 2 : 4,
      kRelu > (gradient, down, output, y_down, count, kChunkColumns, true)
          : SumRows<1, kRelu>(gradient, down, output, y_down, count, n, false);
    }
    StoreChunk(&sums.of[threadIdx.y][own], kChunkColumns, /*wide=*/true, sum);
    __syncthreads();
    float of_run = sums.of[0][column];
#pragma unroll
    for (int group = 1; group < kGroups; ++group) of_run += sums.of[group][column];
    total += of_run;
    __syncthreads();  // before the next run's sums are stored
  }
  if (slab + column >= cols) return;
  if (gridDim.x == 1) {
    out[slab + column] += total;
  } else {
    out[blockIdx.x * cols + slab + column] = total;
  }
}

template <bool kRelu>
void AddSums(GpuStream& gpu, const char* name, ConstMatrix dy, ConstMatrix y, float* dbias) {
  if (dy.rows == 0 || dy.cols == 0) return;
  const bool few = dy.rows <= native::kFewRows;
  const unsigned runs = few ? 1 : BlocksOf(dy.rows, kRunRows);
  float* const out = few ? dbias : gpu.ScratchFloats(runs * dy.cols);
  ForElement(dy.element, [&]<typename T>() {
    Launch(gpu, name, BiasGradientKernel<T, kRelu>, dim3(runs, BlocksOf(dy.cols, kColumns)),
           dim3(kThreadsOfRow, kGroups), /*shared_bytes=*/0, ViewOf(dy), ViewOf(y), dy.rows,
           dy.cols, out);
  });
  if (few) return;
  AddColumnSums(
      gpu, "BiasGradientSums",
      {.partials = out, .rows = runs, .stride = dy.cols, .cols = dy.cols, .first = dbias});
}

struct Times {
  float factor;
  __device__ float operator()(float x) const { return x * factor; }
};

struct PlusTimes {
  const float* factor;
  __device__ float operator()(float x, float y) const { return y + *factor * x; }
};

// Rows whose products a block of DotKernel adds up.
constexpr int kDotRows = 16;
constexpr int kDotThreads = 128;

struct WarpSums {
  float of[kDotThreads / 32];
};

__global__ void __launch_bounds__(kDotThreads)
    DotKernel(const MatrixView a, const MatrixView b, int64_t rows, int64_t cols, float* partials) {
  BLOCK_SHARED(WarpSums, sums);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kDotRows;
  const int64_t end = first + kDotRows < rows ? first + kDotRows : rows;
  float sum = 0.0f;
  for (int64_t row = first; row < end; ++row) {
    for (int64_t c = threadIdx.x * kChunkColumns; c < cols; c += kDotThreads * kChunkColumns) {
      const int n = cols - c < kChunkColumns ? static_cast<int>(cols - c) : kChunkColumns;
      const Chunk x = LoadChunk(a, row, c, n), y = LoadChunk(b, row, c, n);
#pragma unroll
      for (int j = 0; j < kChunkColumns; ++j) sum += x.v[j] * y.v[j];
    }
  }
  sum = SumInRow(sum, sums.of);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

}  // namespace

void AddBiasGradient(GpuStream& gpu, ConstMatrix dy, float* dbias) {
  AddSums<false>(gpu, "BiasGradient", dy, /*y=*/dy, dbias);
}

void ReluBackwardWithBias(GpuStream& gpu, ConstMatrix y, Matrix dx, float* dbias) {
  DEEPNET_CHECK(y.rows == dx.rows && y.cols == dx.cols && y.element == dx.element);
  AddSums<true>(gpu, "ReluBackwardWithBias", dx, y, dbias);
}

void Scale(GpuStream& gpu, float factor, Matrix x) {
  ForNumbers(gpu, "Scale", x, x, Times{factor});
}

void AddScaled(GpuStream& gpu, ConstMatrix x, const float* factor, Matrix y) {
  ForPairs(gpu, "AddScaled", x, y, y, PlusTimes{factor});
}

void AddScaledBackward(GpuStream& gpu, ConstMatrix dy, ConstMatrix x, const float* factor,
                       Matrix dx, float* dfactor) {
  if (dy.rows == 0 || dy.cols == 0) return;
  AddScaled(gpu, dy, factor, dx);
  const unsigned blocks = BlocksOf(dy.rows, kDotRows);
  float* const partials = gpu.ScratchFloats(blocks);
  Launch(gpu, "Dot", DotKernel, blocks, kDotThreads, /*shared_bytes=*/0, ViewOf(dy), ViewOf(x),
         dy.rows, dy.cols, partials);
  AddColumnSums(gpu, "DotSum",
                {.partials = partials, .rows = blocks, .stride = 1, .cols = 1, .first = dfactor});
}

}  // namespace deepnet::cuda
