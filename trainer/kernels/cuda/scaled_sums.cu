#include "parallel/base/check.h"
#include "trainer/kernels/cuda/column_sums.h"
#include "trainer/kernels/cuda/device_math.h"
#include "trainer/kernels/cuda/row_chunks.h"
#include "trainer/kernels/cuda/scaled_sums.h"

namespace deepnet::cuda {
namespace {

using native::ConstMatrix;
using native::Matrix;

// A block sums 32 neighbouring columns: each of 16 groups of threads takes every sixteenth row, so
// that rows of zeros behind the others change nothing.
constexpr int kColumns = 32;
constexpr int kGroups = 16;

struct GroupSums {
  float of[kGroups][kColumns];
};

// With kRelu, dy is set to 0 first where `y`, the output, is not positive.
template <bool kRelu>
__global__ void __launch_bounds__(kColumns* kGroups)
    BiasGradientKernel(const MatrixView dy, const MatrixView y, int64_t rows, int64_t cols,
                       float* dbias) {
  BLOCK_SHARED(GroupSums, sums);
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  float sum = 0.0f;
  if (c < cols) {
    WithElement(dy.element, [&]<typename T>() {
      T* const column = static_cast<T*>(dy.data) + c;
      const T* const output = static_cast<const T*>(y.data) + c;
#pragma unroll 8
      for (int64_t r = threadIdx.y; r < rows; r += kGroups) {
        float value = ToFloat(column[r * dy.stride]);
        if (kRelu && !(ToFloat(output[r * y.stride]) > 0.0f)) {
          value = 0.0f;
          column[r * dy.stride] = FromFloat<T>(0.0f);
        }
        sum += value;
      }
    });
  }
  sums.of[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || c >= cols) return;
  for (int i = 1; i < kGroups; ++i) sum += sums.of[i][threadIdx.x];
  dbias[c] += sum;
}

struct ScaleBody {
  MatrixView x;
  float factor;

  __device__ void operator()(int64_t row, int64_t c, int n) const {
    Chunk values = LoadChunk(x, row, c, n);
#pragma unroll
    for (float& v : values.v) v *= factor;
    StoreChunk(x, row, c, n, values);
  }
};

struct AddScaledBody {
  MatrixView x, y;
  const float* factor;

  __device__ void operator()(int64_t row, int64_t c, int n) const {
    const Chunk values = LoadChunk(x, row, c, n);
    Chunk sum = LoadChunk(y, row, c, n);
    const float by = *factor;
#pragma unroll
    for (int j = 0; j < kChunkColumns; ++j) sum.v[j] += by * values.v[j];
    StoreChunk(y, row, c, n, sum);
  }
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
  if (dy.rows == 0 || dy.cols == 0) return;
  const dim3 grid(static_cast<unsigned>((dy.cols + kColumns - 1) / kColumns));
  Launch(gpu, "BiasGradient", BiasGradientKernel<false>, grid, dim3(kColumns, kGroups),
         /*shared_bytes=*/0, ViewOf(dy), MatrixView(), dy.rows, dy.cols, dbias);
}

void ReluBackwardWithBias(GpuStream& gpu, ConstMatrix y, Matrix dx, float* dbias) {
  DEEPNET_CHECK(y.rows == dx.rows && y.cols == dx.cols && y.element == dx.element);
  if (dx.rows == 0 || dx.cols == 0) return;
  const dim3 grid(static_cast<unsigned>((dx.cols + kColumns - 1) / kColumns));
  Launch(gpu, "ReluBackwardWithBias", BiasGradientKernel<true>, grid, dim3(kColumns, kGroups),
         /*shared_bytes=*/0, ViewOf(dx), ViewOf(y), dx.rows, dx.cols, dbias);
}

void Scale(GpuStream& gpu, float factor, Matrix x) {
  ForRowChunks(gpu, "Scale", x.rows, x.cols, ScaleBody{ViewOf(x), factor});
}

void AddScaled(GpuStream& gpu, ConstMatrix x, const float* factor, Matrix y) {
  ForRowChunks(gpu, "AddScaled", x.rows, x.cols, AddScaledBody{ViewOf(x), ViewOf(y), factor});
}

void AddScaledBackward(GpuStream& gpu, ConstMatrix dy, ConstMatrix x, const float* factor,
                       Matrix dx, float* dfactor) {
  if (dy.rows == 0 || dy.cols == 0) return;
  AddScaled(gpu, dy, factor, dx);
  const int64_t blocks = (dy.rows + kDotRows - 1) / kDotRows;
  auto* const partials =
      static_cast<float*>(gpu.Scratch(blocks * static_cast<int64_t>(sizeof(float))));
  Launch(gpu, "Dot", DotKernel, dim3(static_cast<unsigned>(blocks)), dim3(kDotThreads),
         /*shared_bytes=*/0, ViewOf(dy), ViewOf(x), dy.rows, dy.cols, partials);
  AddColumnSums(gpu, "DotSum",
                {.partials = partials, .rows = blocks, .stride = 1, .cols = 1, .first = dfactor});
}

}  // namespace deepnet::cuda
