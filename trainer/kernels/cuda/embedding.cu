// Forward: a thread makes eight columns of a row, of which it draws the byte of the mask. Backward:
// a block adds the rows of one index in order, each thread in its four columns, so that no two
// blocks touch the same number and the order of additions is that of the CPU. Many rows of an index
// are cut into pieces with a block each, whose sums a second kernel adds in order.
#include "parallel/base/check.h"
#include "trainer/kernels/cuda/dropout_bits.h"
#include "trainer/kernels/cuda/elements.h"
#include "trainer/kernels/cuda/kernels.h"
#include "trainer/kernels/cuda/row_chunks.h"
#include "trainer/kernels/native/check_elements.h"

namespace deepnet::cuda {
namespace {

using native::EmbedArgs;
using native::EmbedGradArgs;

struct EmbedRow {
  EmbedArgs args;
  DropoutStream stream;
  MatrixView table, positions, x, x_operand;
  int64_t mask_stride;

  __device__ void operator()(int64_t row, int64_t c, int n) const {
    const int32_t id = args.rows.tokens[row];
    Chunk values = {};
    if (id >= 0) {
      values = LoadChunk(table, id, c, n);
#pragma unroll
      for (int i = 0; i < kChunkColumns; ++i) values.v[i] *= args.scale;
      if (positions.data != nullptr) AddPosition(row, c, n, values);
    }
    if (stream.threshold > 0) {
      const uint32_t block = static_cast<uint32_t>(c / kChunkColumns);
      const uint32_t keep = KeepByte(stream, args.rows.pairs[row], args.rows.positions[row], block);
      args.mask[row * mask_stride + block] = static_cast<uint8_t>(keep);
      ApplyKeepByte(keep, stream.scale, values);
    }
    if (x.data != nullptr) StoreChunk(x, row, c, n, values);
    if (x_operand.data != nullptr) StoreChunk(x_operand, row, c, n, values);
  }

  // Rounds the product before it adds, as the CPU does.
  __device__ void AddPosition(int64_t row, int64_t c, int n, Chunk& values) const {
    const Chunk position = LoadChunk(positions, args.rows.positions[row], c, n);
#pragma unroll
    for (int i = 0; i < kChunkColumns; ++i) values.v[i] = __fadd_rn(values.v[i], position.v[i]);
  }
};

constexpr int kThreads = 128;

struct GradientParameters {
  EmbedGradArgs args;
  SortedRows sorted;
  int64_t width, mask_stride;
  float scale;    // of dx, that of what is kept included
  float* pieces;  // [slots, width] sums of pieces; null: no index has more than one
  bool aligned;

  // The row of the table that the block adds to.
  __device__ float* Gradient() const {
    return static_cast<float*>(args.dtable_VD.data) + sorted.indices[blockIdx.x] * width;
  }
};

// The rows of an index in `order`.
struct RowsOfIndex {
  int begin, end;

  __device__ bool InPieces() const { return end - begin > kEmbedPieceRows; }
  // The slots of its pieces begin here: no two indices with several pieces share one.
  __device__ int64_t FirstSlot() const { return 2 * (begin / kEmbedPieceRows); }
};

__device__ __forceinline__ RowsOfIndex RowsOf(const SortedRows& sorted) {
  return {sorted.starts[blockIdx.x], sorted.starts[blockIdx.x + 1]};
}

__device__ __forceinline__ float4 Plus(const float4& a, const float4& b) {
  return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z),
                     __fadd_rn(a.w, b.w));
}

__device__ __forceinline__ float4 LoadGradient(const GradientParameters& p, int64_t row, int col,
                                               int left) {
  float4 d =
      LoadFour(static_cast<const float*>(p.args.dx_RD.data) + row * p.width + col, left, p.aligned);
  d = make_float4(__fmul_rn(d.x, p.scale), __fmul_rn(d.y, p.scale), __fmul_rn(d.z, p.scale),
                  __fmul_rn(d.w, p.scale));
  if (p.args.dropout_rate == 0.0) return d;
  const uint32_t keep = p.args.mask[row * p.mask_stride + col / 8] >> (col % 8);
  return make_float4(keep & 1u ? d.x : 0.0f, keep & 2u ? d.y : 0.0f, keep & 4u ? d.z : 0.0f,
                     keep & 8u ? d.w : 0.0f);
}

__global__ void __launch_bounds__(kThreads) EmbedBackwardKernel(const GradientParameters p) {
  const int col = (static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x)) * 4;
  const int left = static_cast<int>(p.width) - col;
  if (left <= 0) return;
  const RowsOfIndex rows = RowsOf(p.sorted);
  const int piece = static_cast<int>(blockIdx.z);
  const int begin = rows.begin + piece * kEmbedPieceRows;
  if (begin >= rows.end) return;
  const int end = min(begin + kEmbedPieceRows, rows.end);
  float* to = p.Gradient() + col;
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (rows.InPieces()) {
    to = p.pieces + (rows.FirstSlot() + piece) * p.width + col;
  } else {
    sum = LoadFour(to, left, p.aligned);
  }
#pragma unroll 4
  for (int i = begin; i < end; ++i) {
    sum = Plus(sum, LoadGradient(p, p.sorted.order[i], col, left));
  }
  StoreFour(to, sum, left, p.aligned);
}

__global__ void __launch_bounds__(kThreads) AddPiecesKernel(const GradientParameters p) {
  const int col = (static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x)) * 4;
  const int left = static_cast<int>(p.width) - col;
  const RowsOfIndex rows = RowsOf(p.sorted);
  if (left <= 0 || !rows.InPieces()) return;
  const int num_pieces = (rows.end - rows.begin + kEmbedPieceRows - 1) / kEmbedPieceRows;
  const float* const pieces = p.pieces + rows.FirstSlot() * p.width + col;
  float* const grad = p.Gradient() + col;
  float4 sum = LoadFour(grad, left, p.aligned);
#pragma unroll 4
  for (int piece = 0; piece < num_pieces; ++piece) {
    sum = Plus(sum, LoadFour(pieces + piece * p.width, left, p.aligned));
  }
  StoreFour(grad, sum, left, p.aligned);
}

}  // namespace

void EmbedForward(GpuStream& gpu, const EmbedArgs& args) {
  const int64_t width = args.table_VD.cols;
  DEEPNET_CHECK(width >= 1 && width <= native::kMaxDropoutFeatures) << "width " << width;
  DEEPNET_CHECK(args.x_operand_RD.data == nullptr || args.x_operand_RD.cols == width);
  EmbedArgs rest = args;
  const DropoutStream stream = DropoutStreamOf(gpu, rest.dropout);
  const native::Matrix x = {args.x_RD, native::Element::kFloat32, args.rows.count, width, width};
  ForRowChunks(gpu, "EmbedForward", args.rows.count, width,
               EmbedRow{.args = rest,
                        .stream = stream,
                        .table = ViewOf(args.table_VD),
                        .positions = ViewOf(args.positions_PD),
                        .x = ViewOf(x),
                        .x_operand = ViewOf(args.x_operand_RD),
                        .mask_stride = native::MaskBytes(width)});
}

void EmbedBackward(GpuStream& gpu, const EmbedGradArgs& args, const SortedRows& sorted) {
  const int64_t width = args.dx_RD.cols;
  DEEPNET_CHECK(width >= 1 && width <= native::kMaxDropoutFeatures) << "width " << width;
  DEEPNET_CHECK_LE(sorted.num_unique, args.rows.count);
  native::CheckFloats(args.dx_RD, args.dtable_VD);
  if (sorted.num_unique == 0) return;
  const double rate = args.dropout_rate;
  GradientParameters p = {
      .args = args,
      .sorted = sorted,
      .width = width,
      .mask_stride = native::MaskBytes(width),
      .scale = rate > 0.0 ? args.scale * native::KeepScale(rate) : args.scale,
      .pieces = nullptr,
      .aligned = HasAlignedFours(args.dx_RD) && HasAlignedFours(args.dtable_VD)};
  const unsigned pieces = BlocksOf(sorted.longest, kEmbedPieceRows);
  if (pieces > 1) {
    const int64_t slots = 2 * int64_t{BlocksOf(args.rows.count, kEmbedPieceRows)};
    p.pieces = gpu.ScratchFloats(slots * width);
  }
  const dim3 grid(BlocksOf(sorted.num_unique, 1), BlocksOf(width, 4 * kThreads));
  Launch(gpu, "EmbedBackward", EmbedBackwardKernel, dim3(grid.x, grid.y, pieces), kThreads, 0, p);
  if (pieces > 1) Launch(gpu, "EmbedBackwardPieces", AddPiecesKernel, grid, kThreads, 0, p);
}

}  // namespace deepnet::cuda
