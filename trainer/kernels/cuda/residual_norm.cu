// A row belongs to a group of threads, each of which has one to four chunks of eight columns in
// registers, so that every number is read from memory once. Groups are powers of two; narrow rows
// share a block. Backward, a block takes a run of rows and keeps the sums for gain and bias of its
// columns in registers on the way; they become one row of partial sums.
#include <algorithm>
#include <bit>

#include "parallel/base/check.h"
#include "trainer/kernels/cuda/device_math.h"
#include "trainer/kernels/cuda/dropout_bits.h"
#include "trainer/kernels/cuda/kernels.h"
#include "trainer/kernels/cuda/row_chunks.h"
#include "trainer/kernels/kernel_sizes.h"
#include "trainer/kernels/native/check_elements.h"

namespace deepnet::cuda {
namespace {

using native::ResidualNormArgs;
using native::ResidualNormGradArgs;

constexpr int kMaxThreads = 512;
constexpr int MaxThreadsOf(int chunks) { return chunks == 1 ? 256 : kMaxThreads; }
// Blocks that fit a multiprocessor: with 4, narrow rows take at most 64 registers. Host builds do
// not use it.
[[maybe_unused]] constexpr int MinBlocksOf(int chunks) { return chunks == 1 ? 4 : 1; }
constexpr int kMaxWarps = kMaxThreads / 32;
constexpr int kNarrowThreads = 128;  // of a block of several rows

// Says how the rows of a width lie on threads.
struct RowShape {
  int threads;  // of a row, a power of two
  int chunks;   // of a thread: 1, 2 or 4
  int rows;     // of a block at a time
};

RowShape ShapeOf(int64_t width) {
  const auto chunks = static_cast<uint64_t>((width + kChunkColumns - 1) / kChunkColumns);
  const uint64_t most = chunks > 512 ? kMaxThreads : MaxThreadsOf(1);
  const int threads = static_cast<int>(std::bit_ceil(std::min(chunks, most)));
  const int each = static_cast<int>(std::bit_ceil((chunks + threads - 1) / threads));
  return {threads, each, std::max(1, kNarrowThreads / threads)};
}

// Calls f.template operator()<chunks of a thread>().
template <typename F>
void WithChunks(int chunks, const F& f) {
  switch (chunks) {
    case 1:
      return f.template operator()<1>();
    case 2:
      return f.template operator()<2>();
    default:
      return f.template operator()<4>();
  }
}

// The columns of the thread's i-th chunk, and how many of them there are.
struct Columns {
  int64_t begin;
  int count;  // 0: none
};
__device__ inline Columns ColumnsOf(int i, int64_t width) {
  const int64_t begin = (static_cast<int64_t>(i) * blockDim.x + threadIdx.x) * kChunkColumns;
  const int64_t left = width - begin;
  return {begin, left >= kChunkColumns ? kChunkColumns : left > 0 ? static_cast<int>(left) : 0};
}

// SumInRow's memory: a number for each warp, twice, to be used by turns.
template <typename T>
struct SumBuffers {
  T of[2][kMaxWarps];
};

// --- Forward ---

struct ForwardKernelArgs {
  ResidualNormArgs args;
  MatrixView branch, y_operand;
  DropoutStream stream;
  int64_t width, mask_stride;
  bool wide_rows;     // x, sum, y, xhat
  bool wide_columns;  // gain, bias
};

// sum = alpha * x + Dropout(branch) of one chunk; writes the mask.
__device__ inline Chunk ResidualSum(const ForwardKernelArgs& k, int64_t row, Columns columns) {
  const ResidualNormArgs& a = k.args;
  Chunk sum = {};
  if (a.x_RD.data != nullptr) {
    sum = LoadChunk(static_cast<const float*>(a.x_RD.data) + row * k.width + columns.begin,
                    columns.count, k.wide_rows);
#pragma unroll
    for (float& v : sum.v) v *= a.alpha;
  }
  if (k.branch.data == nullptr) return sum;
  Chunk branch = LoadChunk(k.branch, row, columns.begin, columns.count);
  if (k.stream.active()) {
    const int64_t block = columns.begin / kChunkColumns;
    const uint32_t keep =
        KeepByte(k.stream, a.ids.pairs[row], a.ids.positions[row], static_cast<uint32_t>(block));
    a.mask[row * k.mask_stride + block] = static_cast<uint8_t>(keep);
    ApplyKeepByte(keep, k.stream.scale, branch);
  }
#pragma unroll
  for (int j = 0; j < kChunkColumns; ++j) sum.v[j] += branch.v[j];
  return sum;
}

__device__ inline void WriteNormalized(const ForwardKernelArgs& k, int64_t row, Columns columns,
                                       const Chunk& sum, float mean, float rstd) {
  const ResidualNormArgs& a = k.args;
  const int64_t at = row * k.width + columns.begin;
  const Chunk gain = LoadChunk(a.gain_D + columns.begin, columns.count, k.wide_columns);
  Chunk bias = {};
  if (a.bias_D != nullptr)
    bias = LoadChunk(a.bias_D + columns.begin, columns.count, k.wide_columns);
  Chunk xhat, y;
#pragma unroll
  for (int j = 0; j < kChunkColumns; ++j) {
    xhat.v[j] = (sum.v[j] - mean) * rstd;
    y.v[j] = fmaf(xhat.v[j], gain.v[j], bias.v[j]);
  }
  if (a.sum_RD != nullptr) StoreChunk(a.sum_RD + at, columns.count, k.wide_rows, sum);
  if (a.state.xhat_RD != nullptr)
    StoreChunk(a.state.xhat_RD + at, columns.count, k.wide_rows, xhat);
  if (a.y_RD != nullptr) StoreChunk(a.y_RD + at, columns.count, k.wide_rows, y);
  if (k.y_operand.data != nullptr) {
    StoreChunk(k.y_operand, row, columns.begin, columns.count, y);
  }
}

template <int kChunks>
__global__ void __launch_bounds__(MaxThreadsOf(kChunks), MinBlocksOf(kChunks))
    ResidualNormKernel(const ForwardKernelArgs k) {
  BLOCK_SHARED(SumBuffers<float>, buffers);
  const ResidualNormArgs& a = k.args;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const int64_t width = row < a.rows ? k.width : 0;  // a thread without a row still helps to sum
  Chunk sum[kChunks];
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const Columns columns = ColumnsOf(i, width);
    sum[i] = {};
    if (columns.count == 0) continue;
    sum[i] = ResidualSum(k, row, columns);
    float of_chunk = 0.0f;
#pragma unroll
    for (const float v : sum[i].v) of_chunk += v;
    total += of_chunk;
  }
  const float inverse_width = 1.0f / static_cast<float>(k.width);
  const float mean = a.centred ? SumInRow(total, buffers.of[0]) * inverse_width : 0.0f;
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const Columns columns = ColumnsOf(i, width);
#pragma unroll
    for (int j = 0; j < kChunkColumns; ++j) {
      const float deviation = j < columns.count ? sum[i].v[j] - mean : 0.0f;
      squares = fmaf(deviation, deviation, squares);
    }
  }
  const float variance = SumInRow(squares, buffers.of[1]) * inverse_width;
  const float rstd = 1.0f / sqrtf(variance + a.epsilon);
  if (threadIdx.x == 0 && row < a.rows && a.state.rstd != nullptr) a.state.rstd[row] = rstd;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const Columns columns = ColumnsOf(i, width);
    if (columns.count > 0) WriteNormalized(k, row, columns, sum[i], mean, rstd);
  }
}

// Runs where nothing is normalised.
struct SumAlone {
  ForwardKernelArgs k;
  __device__ void operator()(int64_t row, int64_t c, int n) const {
    StoreChunk(k.args.sum_RD + row * k.width + c, n, k.wide_rows, ResidualSum(k, row, {c, n}));
  }
};

struct ScaleAndBias {
  MatrixView xhat, y;
  const float* gain;
  const float* bias;
  bool wide_columns;

  __device__ void operator()(int64_t row, int64_t c, int n) const {
    Chunk values = LoadChunk(xhat, row, c, n);
    const Chunk scale = LoadChunk(gain + c, n, wide_columns);
    Chunk shift = {};
    if (bias != nullptr) shift = LoadChunk(bias + c, n, wide_columns);
#pragma unroll
    for (int j = 0; j < kChunkColumns; ++j) {
      values.v[j] = fmaf(values.v[j], scale.v[j], shift.v[j]);
    }
    StoreChunk(y, row, c, n, values);
  }
};

// --- Backward ---

struct BackwardKernelArgs {
  ResidualNormGradArgs args;
  MatrixView dy, dbranch;
  float keep_scale;  // 0: no dropout
  int64_t width, mask_stride;
  int64_t run_rows;
  float* partials;  // [blocks][gain, bias][width]; null: not wanted
  bool wide_rows;   // dpast, xhat, dx
  bool wide_columns;
};

// A row's numbers of one chunk.
struct RowChunk {
  Chunk dy;
  Chunk g;  // dy * gain
  Chunk xhat;
};

__device__ inline RowChunk ReadGradient(const BackwardKernelArgs& k, int64_t row, Columns columns) {
  const ResidualNormGradArgs& a = k.args;
  RowChunk chunk;
  chunk.dy = LoadChunk(k.dy, row, columns.begin, columns.count);
  chunk.xhat =
      LoadChunk(a.state.xhat_RD + row * k.width + columns.begin, columns.count, k.wide_rows);
  const Chunk gain = LoadChunk(a.gain_D + columns.begin, columns.count, k.wide_columns);
#pragma unroll
  for (int j = 0; j < kChunkColumns; ++j) chunk.g.v[j] = chunk.dy.v[j] * gain.v[j];
  return chunk;
}

// Adds to the two sums of the row, and to those for gain and bias.
__device__ inline void AddToSums(const RowChunk& chunk, float2& sums, Chunk& d_gain,
                                 Chunk& d_bias) {
#pragma unroll
  for (int j = 0; j < kChunkColumns; ++j) {
    sums.x += chunk.g.v[j];
    sums.y = fmaf(chunk.g.v[j], chunk.xhat.v[j], sums.y);
    d_gain.v[j] = fmaf(chunk.dy.v[j], chunk.xhat.v[j], d_gain.v[j]);
    d_bias.v[j] += chunk.dy.v[j];
  }
}

__device__ inline void WriteGradient(const BackwardKernelArgs& k, int64_t row, Columns columns,
                                     const RowChunk& chunk, float2 means, float rstd) {
  const ResidualNormGradArgs& a = k.args;
  const int64_t at = row * k.width + columns.begin;
  Chunk ds;
#pragma unroll
  for (int j = 0; j < kChunkColumns; ++j) {
    ds.v[j] = (chunk.g.v[j] - means.x - chunk.xhat.v[j] * means.y) * rstd;
  }
  if (a.dx_RD != nullptr) {
    Chunk dx = {};
    if (a.accumulate_dx) dx = LoadChunk(a.dx_RD + at, columns.count, k.wide_rows);
#pragma unroll
    for (int j = 0; j < kChunkColumns; ++j) dx.v[j] += ds.v[j] * a.alpha;
    StoreChunk(a.dx_RD + at, columns.count, k.wide_rows, dx);
  }
  if (k.dbranch.data == nullptr) return;
  if (a.dpast_RD != nullptr) {
    const Chunk past = LoadChunk(a.dpast_RD + at, columns.count, k.wide_rows);
#pragma unroll
    for (int j = 0; j < kChunkColumns; ++j) ds.v[j] += past.v[j];
  }
  if (k.keep_scale != 0.0f) {
    ApplyKeepByte(a.mask[row * k.mask_stride + columns.begin / kChunkColumns], k.keep_scale, ds);
  }
  StoreChunk(k.dbranch, row, columns.begin, columns.count, ds);
}

template <int kChunks>
__global__ void __launch_bounds__(MaxThreadsOf(kChunks), MinBlocksOf(kChunks))
    ResidualNormBackwardKernel(const BackwardKernelArgs k) {
  // Wide rows are read twice: the sums for gain and bias take the registers.
  constexpr bool kHeld = kChunks <= 2;
  BLOCK_SHARED(SumBuffers<float2>, buffers);
  const ResidualNormGradArgs& a = k.args;
  const float inverse_width = 1.0f / static_cast<float>(k.width);
  const int64_t first = blockIdx.x * k.run_rows;
  Chunk d_gain[kChunks] = {}, d_bias[kChunks] = {};
  int turn = 0;
  for (int64_t r = 0; r < k.run_rows; r += blockDim.y, turn ^= 1) {
    const int64_t row = first + r + threadIdx.y;
    const int64_t width = row < a.rows ? k.width : 0;
    RowChunk chunk[kHeld ? kChunks : 1] = {};
    float2 sums = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const Columns columns = ColumnsOf(i, width);
      if (columns.count == 0) continue;
      const RowChunk read = ReadGradient(k, row, columns);
      AddToSums(read, sums, d_gain[i], d_bias[i]);
      if (kHeld) chunk[i] = read;
    }
    sums = SumInRow(sums, buffers.of[turn]);
    const float2 means =
        make_float2(a.centred ? sums.x * inverse_width : 0.0f, sums.y * inverse_width);
    const float rstd = row < a.rows ? a.state.rstd[row] : 0.0f;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const Columns columns = ColumnsOf(i, width);
      if (columns.count == 0) continue;
      WriteGradient(k, row, columns, kHeld ? chunk[i] : ReadGradient(k, row, columns), means, rstd);
    }
  }
  if (k.partials == nullptr) return;
  if constexpr (kChunks == 1) {
    BLOCK_SHARED(PairSums<kNarrowThreads>, groups);
    if (blockDim.y > 1) AddGroups(groups, d_gain[0], d_bias[0]);
  }
  if (threadIdx.y > 0) return;
  float* const to = k.partials + 2 * blockIdx.x * k.width;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const Columns columns = ColumnsOf(i, k.width);
    StoreChunk(to + columns.begin, columns.count, k.width % 4 == 0, d_gain[i]);
    StoreChunk(to + k.width + columns.begin, columns.count, k.width % 4 == 0, d_bias[i]);
  }
}

// --- BatchNorm: a thread for each column, rows in order, in double precision ---

constexpr int kBatchNormThreads = 64;

__global__ void __launch_bounds__(kBatchNormThreads)
    BatchNormKernel(int64_t rows, int64_t width, double epsilon, float* x, float* rstd) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c >= width) return;
  const double count = static_cast<double>(rows);
  double mean = 0.0, variance = 0.0;
  for (int64_t r = 0; r < rows; ++r) mean += x[r * width + c];
  mean /= count;
  for (int64_t r = 0; r < rows; ++r) {
    const double deviation = x[r * width + c] - mean;
    variance += deviation * deviation;
  }
  const float scale = static_cast<float>(1.0 / sqrt(variance / count + epsilon));
  rstd[c] = scale;
  for (int64_t r = 0; r < rows; ++r) {
    x[r * width + c] = static_cast<float>((x[r * width + c] - mean) * scale);
  }
}

__global__ void __launch_bounds__(kBatchNormThreads)
    BatchNormBackwardKernel(const BackwardKernelArgs k) {
  const ResidualNormGradArgs& a = k.args;
  const int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c >= k.width) return;
  const double count = static_cast<double>(a.rows);
  const auto* const given = static_cast<const float*>(a.dy_RD.data);
  double gradient = 0.0, product = 0.0;
  for (int64_t r = 0; r < a.rows; ++r) {
    const double dy = given[r * k.width + c];
    gradient += dy;
    product += dy * a.state.xhat_RD[r * k.width + c];
  }
  a.dgain_D[c] += static_cast<float>(product);
  if (a.dbias_D != nullptr) a.dbias_D[c] += static_cast<float>(gradient);
  for (int64_t r = 0; r < a.rows; ++r) {
    const int64_t at = r * k.width + c;
    const double centred = given[at] - gradient / count;
    const double slope = centred - a.state.xhat_RD[at] * (product / count);
    float ds = static_cast<float>(slope * a.gain_D[c] * a.state.rstd[c]);
    if (a.dx_RD != nullptr) {
      const float dx = ds * a.alpha;
      a.dx_RD[at] = a.accumulate_dx ? a.dx_RD[at] + dx : dx;
    }
    if (k.dbranch.data == nullptr) continue;
    if (a.dpast_RD != nullptr) ds += a.dpast_RD[at];
    if (k.keep_scale != 0.0f) {
      const bool keep = a.mask[r * k.mask_stride + c / 8] >> (c % 8) & 1;
      ds = keep ? ds * k.keep_scale : 0.0f;
    }
    WithElement(k.dbranch.element, [&]<typename T>() {
      static_cast<T*>(k.dbranch.data)[r * k.dbranch.stride + c] = FromFloat<T>(ds);
    });
  }
}

BackwardKernelArgs KernelArgsOf(const ResidualNormGradArgs& args) {
  const int64_t width = args.dy_RD.cols;
  return {.args = args,
          .dy = ViewOf(args.dy_RD),
          .dbranch = ViewOf(args.dbranch_RD),
          .keep_scale = args.dropout_rate > 0.0 ? native::KeepScale(args.dropout_rate) : 0.0f,
          .width = width,
          .mask_stride = native::MaskBytes(width),
          .run_rows = 0,
          .partials = nullptr,
          .wide_rows = AllWide(width, args.dpast_RD, args.state.xhat_RD, args.dx_RD),
          .wide_columns = AllWide(4, args.gain_D)};
}

void BatchNormForward(GpuStream& gpu, const ResidualNormArgs& args) {
  if (args.rows == 0) return;
  DEEPNET_CHECK(args.centred && args.gain_D != nullptr && args.sum_RD == nullptr);
  const int64_t width = WidthOf(args), size = args.rows * width;
  float* own = gpu.ScratchFloats(size + width);
  float* xhat = args.state.xhat_RD != nullptr ? args.state.xhat_RD : own;
  float* rstd = args.state.rstd != nullptr ? args.state.rstd : own + size;
  ResidualNormArgs sum = args;
  sum.over_rows = false;
  sum.gain_D = nullptr;
  sum.sum_RD = xhat;
  ResidualNormForward(gpu, sum);
  Launch(gpu, "BatchNorm", BatchNormKernel, BlocksOf(width, kBatchNormThreads), kBatchNormThreads,
         /*shared_bytes=*/0, args.rows, width, static_cast<double>(args.epsilon), xhat, rstd);
  const auto view = [&](float* x) {
    return native::Matrix{x, native::Element::kFloat32, args.rows, width, width};
  };
  if (args.y_RD != nullptr) NormOutput(gpu, view(xhat), args.gain_D, args.bias_D, view(args.y_RD));
  if (args.y_operand_RD.data != nullptr) {
    NormOutput(gpu, view(xhat), args.gain_D, args.bias_D, args.y_operand_RD);
  }
}

void BatchNormBackward(GpuStream& gpu, const ResidualNormGradArgs& args) {
  if (args.rows == 0) return;
  DEEPNET_CHECK(args.centred && args.dgain_D != nullptr);
  native::CheckFloats(args.dy_RD);
  Launch(gpu, "BatchNormBackward", BatchNormBackwardKernel,
         BlocksOf(args.dy_RD.cols, kBatchNormThreads), kBatchNormThreads, /*shared_bytes=*/0,
         KernelArgsOf(args));
}

}  // namespace

void ResidualNormForward(GpuStream& gpu, const ResidualNormArgs& args) {
  if (args.over_rows) return BatchNormForward(gpu, args);
  const int64_t width = WidthOf(args);
  DEEPNET_CHECK(width <= native::kMaxNormWidth) << "width " << width;
  if (args.rows == 0) return;  // memory of no rows may have no address
  DEEPNET_CHECK(args.x_RD.data != nullptr || args.branch_RD.data != nullptr);
  native::CheckFloats(args.x_RD);
  DEEPNET_CHECK(args.gain_D != nullptr || args.sum_RD != nullptr) << "nothing is wanted";
  ForwardKernelArgs k = {
      .args = args,
      .branch = ViewOf(args.branch_RD),
      .y_operand = ViewOf(args.y_operand_RD),
      .stream = {},
      .width = width,
      .mask_stride = native::MaskBytes(width),
      .wide_rows = AllWide(width, args.x_RD.data, args.sum_RD, args.y_RD, args.state.xhat_RD),
      .wide_columns = AllWide(4, args.gain_D, args.bias_D)};
  const DropoutStream stream = DropoutStreamOf(gpu, k.args.dropout);
  if (args.branch_RD.data != nullptr) k.stream = stream;
  DEEPNET_CHECK(!k.stream.active() || args.mask != nullptr) << "dropout needs a mask";
  if (args.gain_D == nullptr) {
    ForRowChunks(gpu, "ResidualSum", args.rows, width, SumAlone{k});
    return;
  }
  const RowShape shape = ShapeOf(width);
  WithChunks(shape.chunks, [&]<int kChunks>() {
    Launch(gpu, "ResidualNorm", ResidualNormKernel<kChunks>, BlocksOf(args.rows, shape.rows),
           dim3(shape.threads, shape.rows), /*shared_bytes=*/0, k);
  });
}

void NormOutput(GpuStream& gpu, native::ConstMatrix xhat, const float* gain, const float* bias,
                native::Matrix y) {
  DEEPNET_CHECK_EQ(xhat.cols, y.cols);
  ForRowChunks(gpu, "NormOutput", xhat.rows, xhat.cols,
               ScaleAndBias{ViewOf(xhat), ViewOf(y), gain, bias, AllWide(4, gain, bias)});
}

void ResidualNormBackward(GpuStream& gpu, const ResidualNormGradArgs& args) {
  if (args.over_rows) return BatchNormBackward(gpu, args);
  const int64_t width = args.dy_RD.cols;
  DEEPNET_CHECK(width >= 1 && width <= native::kMaxNormWidth) << "width " << width;
  if (args.rows == 0) return;
  DEEPNET_CHECK(args.dbias_D == nullptr || args.dgain_D != nullptr);
  const RowShape shape = ShapeOf(width);
  BackwardKernelArgs k = KernelArgsOf(args);
  k.run_rows = std::max(native::kNormRunRows, shape.rows);
  const unsigned blocks = BlocksOf(args.rows, k.run_rows);
  if (args.dgain_D != nullptr) {
    k.partials = gpu.ScratchFloats(int64_t{2} * blocks * width);
  }
  WithChunks(shape.chunks, [&]<int kChunks>() {
    Launch(gpu, "ResidualNormBackward", ResidualNormBackwardKernel<kChunks>, blocks,
           dim3(shape.threads, shape.rows), /*shared_bytes=*/0, k);
  });
  if (args.dgain_D == nullptr) return;
  AddColumnSums(gpu, "ResidualNormBackwardSums",
                {.partials = k.partials,
                 .rows = blocks,
                 .stride = 2 * width,
                 .cols = width,
                 .first = args.dgain_D,
                 .second = args.dbias_D});
}

}  // namespace deepnet::cuda
