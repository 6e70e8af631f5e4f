// One thread for each chunk of eight columns. The backward pass of ScaleShift alone also sums: a
// block leaves a row of partial sums of its 256 columns over 64 rows, and a second kernel has a
// block for each group of columns.
#include "parallel/base/check.h"
#include "trainer/kernels/cuda/device_math.h"
#include "trainer/kernels/cuda/dropout_bits.h"
#include "trainer/kernels/cuda/kernels.h"
#include "trainer/kernels/cuda/row_chunks.h"
#include "trainer/kernels/native/check_elements.h"

namespace deepnet::cuda {
namespace {

using native::ConstMatrix;
using native::Matrix;

void CheckSameShape(const ConstMatrix& a, const ConstMatrix& b) {
  DEEPNET_CHECK_EQ(a.rows, b.rows);
  DEEPNET_CHECK_EQ(a.cols, b.cols);
}

// A range of numbers is seen as rows of this many.
constexpr int64_t kRangeColumns = kChunkThreads * kChunkColumns;

struct AddRange {
  const float* x;
  float* y;
  int64_t n;
  bool wide;

  __device__ void operator()(int64_t row, int64_t c, int) const {
    const int64_t i = row * kRangeColumns + c;
    if (i >= n) return;
    const int count = n - i < kChunkColumns ? static_cast<int>(n - i) : kChunkColumns;
    Chunk sum = LoadChunk(y + i, count, wide);
    const Chunk more = LoadChunk(x + i, count, wide);
#pragma unroll
    for (int j = 0; j < kChunkColumns; ++j) sum.v[j] += more.v[j];
    StoreChunk(y + i, count, wide, sum);
  }
};

struct Gelu {
  __device__ float operator()(float x) const {
    float density;
    return x * NormalCumulative(x, &density);
  }
};

struct GeluSlope {
  __device__ float operator()(float x, float dy) const {
    float density;
    const float cumulative = NormalCumulative(x, &density);
    return dy * fmaf(x, density, cumulative);
  }
};

struct Relu {
  __device__ float operator()(float x) const { return x < 0.0f ? 0.0f : x; }
};

struct ReluSlope {
  __device__ float operator()(float y, float dy) const { return y > 0.0f ? dy : 0.0f; }
};

struct Identity {
  __device__ float operator()(float x) const { return x; }
};

// Between equal elements, in columns of two bytes: neighbouring threads have neighbouring 16 bytes,
// also of float32, so that all accesses are whole.
struct CopyBits {
  const uint16_t* from;
  uint16_t* to;
  int64_t from_stride, to_stride;

  __device__ void operator()(int64_t row, int64_t c, int n) const {
    const uint16_t* const x = from + row * from_stride + c;
    uint16_t* const y = to + row * to_stride + c;
    if (n == kChunkColumns) {
      *reinterpret_cast<uint4*>(y) = *reinterpret_cast<const uint4*>(x);
      return;
    }
    for (int i = 0; i < n; ++i) y[i] = x[i];
  }
};

// --- ScaleShift ---

// The factors of columns c..c+n; 1 past them.
__device__ inline Chunk FactorsOf(const float* scale, int64_t group_columns, int64_t c, int n) {
  Chunk factors;
  int64_t group = c / group_columns, left = (group + 1) * group_columns - c;
#pragma unroll
  for (int j = 0; j < kChunkColumns; ++j) {
    factors.v[j] = scale != nullptr && j < n ? scale[group] : 1.0f;
    if (--left > 0) continue;
    ++group;
    left = group_columns;
  }
  return factors;
}

struct ScaleAndShift {
  MatrixView x, y;
  const float* scale;
  const float* shift;
  int64_t group_columns;

  __device__ void operator()(int64_t row, int64_t c, int n) const {
    const float by = shift != nullptr ? *shift : 0.0f;
    const Chunk factors = FactorsOf(scale, group_columns, c, n);
    Chunk values = LoadChunk(x, row, c, n);
#pragma unroll
    for (int j = 0; j < kChunkColumns; ++j) values.v[j] = (values.v[j] - by) * factors.v[j];
    StoreChunk(y, row, c, n, values);
  }
};

constexpr int kSumThreads = 32;  // of a row
constexpr int kSumRows = 4;      // at a time
constexpr int kRunRows = 64;     // of one partial sum
constexpr int kSumColumns = kSumThreads * kChunkColumns;

struct ScaleShiftSums {
  native::ScaleShiftGradArgs args;
  MatrixView dy, x, dx;
  int64_t group_columns;
  float* partials;  // [runs][scale, shift][cols]
};

__global__ void __launch_bounds__(kSumThreads* kSumRows)
    ScaleShiftBackwardKernel(const ScaleShiftSums k) {
  BLOCK_SHARED(PairSums<kSumThreads * kSumRows>, sums);
  const int64_t cols = k.args.dy_RD.cols, rows = k.args.rows;
  const int64_t c = static_cast<int64_t>(blockIdx.y) * kSumColumns + threadIdx.x * kChunkColumns;
  const int n = cols - c >= kChunkColumns ? kChunkColumns
                : cols > c                ? static_cast<int>(cols - c)
                                          : 0;
  const float by = k.args.shift_1 != nullptr ? *k.args.shift_1 : 0.0f;
  Chunk d_scale = {}, d_shift = {};
  if (n > 0) {
    const Chunk factors =
        FactorsOf(static_cast<const float*>(k.args.scale_G.data), k.group_columns, c, n);
    const int64_t first = static_cast<int64_t>(blockIdx.x) * kRunRows;
    const int64_t end = first + kRunRows < rows ? first + kRunRows : rows;
    for (int64_t row = first + threadIdx.y; row < end; row += kSumRows) {
      Chunk gradient = LoadChunk(k.dy, row, c, n);
      if (k.x.data != nullptr) {
        const Chunk x = LoadChunk(k.x, row, c, n);
#pragma unroll
        for (int j = 0; j < kChunkColumns; ++j) {
          d_scale.v[j] = fmaf(gradient.v[j], x.v[j] - by, d_scale.v[j]);
        }
      }
#pragma unroll
      for (int j = 0; j < kChunkColumns; ++j) {
        gradient.v[j] *= factors.v[j];
        d_shift.v[j] += gradient.v[j];
      }
      StoreChunk(k.dx, row, c, n, gradient);
    }
  }
  if (k.partials == nullptr) return;
  AddGroups(sums, d_scale, d_shift);
  if (threadIdx.y > 0) return;
  float* const to = k.partials + 2 * blockIdx.x * cols + c;
  StoreChunk(to, n, false, d_scale);
  StoreChunk(to + cols, n, false, d_shift);
}

// Returns how many columns share a factor.
int64_t GroupColumns(const ConstMatrix& scale_G, int64_t cols) {
  if (scale_G.data == nullptr) return cols;
  native::CheckFloats(scale_G);
  DEEPNET_CHECK(scale_G.cols >= 1 && cols % scale_G.cols == 0)
      << cols << " columns, " << scale_G.cols << " groups";
  return cols / scale_G.cols;
}

constexpr int kGroupThreads = 256;

struct WarpSums {
  float of[kGroupThreads / 32];
};

// Block g < groups adds the partial sums of its columns to d_scale, the last block all of shift's.
__global__ void __launch_bounds__(kGroupThreads)
    ScaleShiftGroupsKernel(const ScaleShiftSums k, int64_t runs) {
  BLOCK_SHARED(WarpSums, sums);
  const int64_t cols = k.args.dy_RD.cols, group = blockIdx.x;
  const bool is_shift = group == gridDim.x - 1;
  float* const out = is_shift ? k.args.dshift_1 : k.args.dscale_G;
  if (out == nullptr) return;  // the whole block
  const int64_t columns = is_shift ? cols : k.group_columns;
  const float* const from = k.partials + (is_shift ? cols : group * columns);
  float sum = 0.0f;
  for (int64_t c = threadIdx.x; c < columns; c += kGroupThreads) {
#pragma unroll 8
    for (int64_t run = 0; run < runs; ++run) sum += from[2 * run * cols + c];
  }
  sum = SumInRow(sum, sums.of);
  if (threadIdx.x > 0) return;
  if (is_shift) {
    *out -= sum;
  } else {
    out[group] += sum;
  }
}

}  // namespace

void Add(GpuStream& gpu, const float* x, float* y, int64_t n) {
  ForRowChunks(gpu, "Add", (n + kRangeColumns - 1) / kRangeColumns, kRangeColumns,
               AddRange{x, y, n, AllWide(4, x, y)});
}

void GeluForward(GpuStream& gpu, ConstMatrix x, Matrix y) {
  CheckSameShape(x, y);
  ForNumbers(gpu, "GeluForward", x, y, Gelu());
}

void GeluBackward(GpuStream& gpu, ConstMatrix x, ConstMatrix dy, Matrix dx) {
  CheckSameShape(x, dy);
  CheckSameShape(x, dx);
  ForPairs(gpu, "GeluBackward", x, dy, dx, GeluSlope());
}

void ReluForward(GpuStream& gpu, Matrix x) { ForNumbers(gpu, "ReluForward", x, x, Relu()); }

void ReluBackward(GpuStream& gpu, ConstMatrix y, Matrix dx) {
  CheckSameShape(y, dx);
  ForPairs(gpu, "ReluBackward", y, dx, dx, ReluSlope());
}

void Cast(GpuStream& gpu, ConstMatrix from, Matrix to) {
  CheckSameShape(from, to);
  const MatrixView x = ViewOf(from), y = ViewOf(to);
  if (x.element != y.element || !x.wide || !y.wide) {
    return ForNumbers(gpu, "Cast", from, to, Identity());
  }
  const int64_t units = from.element == native::Element::kFloat32 ? 2 : 1;
  ForRowChunks(gpu, "Cast", from.rows, units * from.cols,
               CopyBits{static_cast<const uint16_t*>(x.data), static_cast<uint16_t*>(y.data),
                        units * x.stride, units * y.stride});
}

void AddBranchBackward(GpuStream& gpu, ConstMatrix dx, double rate, const uint8_t* mask,
                       Matrix d_branch) {
  if (rate == 0.0) return Cast(gpu, dx, d_branch);
  CheckSameShape(dx, d_branch);
  ForRowChunks(gpu, "AddBranchBackward", dx.rows, dx.cols,
               ApplyMask{ViewOf(dx), ViewOf(d_branch), mask, native::MaskBytes(dx.cols),
                         native::KeepScale(rate)});
}

void ScaleShiftForward(GpuStream& gpu, const native::ScaleShiftArgs& args) {
  DEEPNET_CHECK_EQ(args.x_RD.cols, args.y_RD.cols);
  ForRowChunks(gpu, "ScaleShiftForward", args.rows, args.x_RD.cols,
               ScaleAndShift{ViewOf(args.x_RD), ViewOf(args.y_RD),
                             static_cast<const float*>(args.scale_G.data), args.shift_1,
                             GroupColumns(args.scale_G, args.x_RD.cols)});
}

void ScaleShiftBackward(GpuStream& gpu, const native::ScaleShiftGradArgs& args) {
  DEEPNET_CHECK_EQ(args.dy_RD.cols, args.dx_RD.cols);
  const int64_t rows = args.rows, cols = args.dy_RD.cols;
  ScaleShiftSums k = {args,
                      ViewOf(args.dy_RD),
                      args.scale_G.data != nullptr ? ViewOf(args.x_RD) : MatrixView{},
                      ViewOf(args.dx_RD),
                      GroupColumns(args.scale_G, cols),
                      nullptr};
  if (rows == 0 || cols == 0) return;
  const int64_t runs = (rows + kRunRows - 1) / kRunRows;
  const bool sums_wanted = args.dscale_G != nullptr || args.dshift_1 != nullptr;
  if (sums_wanted) {
    k.partials = gpu.ScratchFloats(2 * runs * cols);
  }
  const dim3 grid(static_cast<unsigned>(runs), BlocksOf(cols, kSumColumns));
  Launch(gpu, "ScaleShiftBackward", ScaleShiftBackwardKernel, grid, dim3(kSumThreads, kSumRows),
         /*shared_bytes=*/0, k);
  if (!sums_wanted) return;
  Launch(gpu, "ScaleShiftBackwardSums", ScaleShiftGroupsKernel,
         static_cast<unsigned>(cols / k.group_columns + 1), kGroupThreads, /*shared_bytes=*/0, k,
         runs);
}

}  // namespace deepnet::cuda
