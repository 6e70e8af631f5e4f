// Tiles, as in FlashAttention (Dao, 2023): a block holds a tile of rows of one sentence and head in
// shared memory (queries; in the gradient of keys and values, keys) and streams the tiles of the
// other side past it, so that scores never leave the chip. Columns go in chunks of 64.
//
// A warp owns consecutive resident rows, a quarter of the tile. Its lanes form four groups of
// eight: a group owns kRows resident rows, and member m of it the streamed rows m, m + 8, m + 16, m
// + 24 and, in a chunk, the columns 4 m to 4 m + 3 and 32 + 4 m to 32 + 4 m + 3. So a row's maximum
// and sum stay within eight lanes, and the weights of a warp are exchanged within the warp.
//
// Tiles are found without a table. Rows before the first sentence, the sentences, and rows behind
// the last one are segments; segment i begins at row b[i]. Its tiles have the numbers from
// b[i] / T + i on, T being the rows of a tile: these numbers never overlap, because a segment of n
// rows has at most n / T + 1 tiles. A grid of rows / T + num_sentences + 2 blocks a head covers
// all; at most one block of a segment finds nothing to do.
//
// The scale 1 / sqrt(head_dim) and log2(e) are multiplied into the resident rows as they are
// loaded; exponentials are powers of two.
#include <cmath>
#include <initializer_list>

#include "parallel/base/check.h"
#include "trainer/kernels/cuda/device_math.h"
#include "trainer/kernels/cuda/dropout_bits.h"
#include "trainer/kernels/cuda/elements.h"
#include "trainer/kernels/cuda/kernels.h"
#include "trainer/kernels/cuda/launch.h"

namespace deepnet::cuda {
namespace {

using native::AttentionArgs;
using native::AttentionGradArgs;
using native::ConstMatrix;
using native::DecodeAttentionArgs;
using native::Matrix;

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kStreamedRows = 32;  // of a streamed tile
constexpr int kStreamedPerLane = kStreamedRows / 8;
constexpr int kChunk = 64;                        // columns
constexpr int kStride = kChunk + 4;               // floats from a row of a chunk to the next
constexpr int kWeightStride = kStreamedRows + 4;  // floats from a row of weights to the next
constexpr float kLn2 = 0.6931471805599453f;

// Blocks that a processor has registers for: short rows, the usual ones, use few.
template <int kChunks>
constexpr int kBlocksPerProcessor = kChunks == 1 ? 4 : 1;

template <int kRows>
constexpr int kTileRows = kWarps * 4 * kRows;

// Sum and maximum over the eight lanes of a group, in each of them.
__device__ __forceinline__ float GroupSum(float x) { return SumInWarp(x, 8); }
__device__ __forceinline__ float GroupMax(float x) { return MaxInWarp(x, 8); }

// Rows [row, row + count) of a matrix; in sentence `sentence`, of which they are rows from `begin`
// on, or in none if that is negative.
struct Tile {
  int sentence;
  int begin;
  int row;
  int count;  // 0: no tile
};

// The tile of block blockIdx.x; see the top of the file.
template <int kTileRows>
__device__ Tile FindTile(const int32_t* offsets, int num_sentences, int rows) {
  const int number = static_cast<int>(blockIdx.x);
  const auto segment_begin = [&](int i) {
    return i == 0 ? 0 : i <= num_sentences + 1 ? offsets[i - 1] : rows;
  };
  int segments = 0;  // that begin at this tile or before it
  for (int i = static_cast<int>(threadIdx.x) % 32; i < num_sentences + 2; i += 32) {
    segments += segment_begin(i) / kTileRows + i <= number;
  }
  const int segment = SumInWarp(segments) - 1;
  const int first = segment_begin(segment), length = segment_begin(segment + 1) - first;
  const int begin = (number - first / kTileRows - segment) * kTileRows;
  return {.sentence = segment <= num_sentences ? segment - 1 : -1,
          .begin = begin,
          .row = first + begin,
          .count = max(0, min(kTileRows, length - begin))};
}

template <typename T>
__device__ __forceinline__ const T* At(const ConstMatrix& m, int64_t row, int64_t col) {
  return static_cast<const T*>(m.data) + row * m.stride + col;
}
template <typename T>
__device__ __forceinline__ T* MutableAt(const Matrix& m, int64_t row, int64_t col) {
  return static_cast<T*>(m.data) + row * m.stride + col;
}

// Facts of the matrices that are not in a kernel's arguments.
struct Layout {
  int head_dim;
  bool aligned;  // all may be read and written by four columns
  float scale;   // of a score

  __device__ int ColumnsOf(int chunk) const { return min(kChunk, head_dim - chunk * kChunk); }
};

// to [kTileRows, kStride] = scale * `cols` columns of `rows` rows, 0 up to 64 columns and all rows.
// Where rows are aligned, a thread has all its loads under way before it stores.
template <typename T, int kTileRows>
__device__ __forceinline__ void LoadTile(const T* from, int64_t stride, int rows, int cols,
                                         bool aligned, float scale, float* to) {
  constexpr int kFours = kChunk / 4, kRowsAtOnce = kThreads / kFours;
  constexpr int kLoads = kTileRows / kRowsAtOnce;
  const int first = static_cast<int>(threadIdx.x) / kFours;
  const int col = static_cast<int>(threadIdx.x) % kFours * 4;
  from += first * stride + col;
  to += first * kStride + col;
  float4 v[kLoads] = {};
  if (aligned) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (first + i * kRowsAtOnce < rows && col < cols) {
        v[i] = LoadFour(from + i * kRowsAtOnce * stride, 4, true);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (first + i * kRowsAtOnce < rows && col < cols) {
        v[i] = LoadFour(from + i * kRowsAtOnce * stride, cols - col, false);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    *reinterpret_cast<float4*>(to + i * kRowsAtOnce * kStride) =
        make_float4(v[i].x * scale, v[i].y * scale, v[i].z * scale, v[i].w * scale);
  }
}

// products[i][j] += the product over `cols` columns of the lane's resident row i and its streamed
// row j. `resident` is the lane's first row, `streamed` row `member`.
template <int kRows>
__device__ __forceinline__ void AddProducts(const float* resident, const float* streamed, int cols,
                                            float (&products)[kRows][kStreamedPerLane]) {
#pragma unroll 1
  for (int c = 0; c < cols; c += 4) {
    float4 a[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      a[i] = *reinterpret_cast<const float4*>(resident + i * kStride + c);
    }
#pragma unroll
    for (int j = 0; j < kStreamedPerLane; ++j) {
      const float4 b = *reinterpret_cast<const float4*>(streamed + 8 * j * kStride + c);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        float sum = products[i][j];
        sum = fmaf(a[i].x, b.x, sum);
        sum = fmaf(a[i].y, b.y, sum);
        sum = fmaf(a[i].z, b.z, sum);
        products[i][j] = fmaf(a[i].w, b.w, sum);
      }
    }
  }
}

// sums[i] += weights[i][k] * streamed row k over the first `count` rows, in the lane's columns.
// `weights` is the lane's first row, `streamed` the lane's first column.
template <int kRows>
__device__ __forceinline__ void AddWeighted(const float* weights, const float* streamed, int count,
                                            float (&sums)[kRows][8]) {
#pragma unroll 1
  for (int k = 0; k < count; k += 4) {
    float4 w[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      w[i] = *reinterpret_cast<const float4*>(weights + i * kWeightStride + k);
    }
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) {
      const float* row = streamed + (k + kk) * kStride;
      const float4 low = *reinterpret_cast<const float4*>(row);
      const float4 high = *reinterpret_cast<const float4*>(row + 32);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const float weight = kk == 0 ? w[i].x : kk == 1 ? w[i].y : kk == 2 ? w[i].z : w[i].w;
        sums[i][0] = fmaf(weight, low.x, sums[i][0]);
        sums[i][1] = fmaf(weight, low.y, sums[i][1]);
        sums[i][2] = fmaf(weight, low.z, sums[i][2]);
        sums[i][3] = fmaf(weight, low.w, sums[i][3]);
        sums[i][4] = fmaf(weight, high.x, sums[i][4]);
        sums[i][5] = fmaf(weight, high.y, sums[i][5]);
        sums[i][6] = fmaf(weight, high.z, sums[i][6]);
        sums[i][7] = fmaf(weight, high.w, sums[i][7]);
      }
    }
  }
}

// Rows of a matrix that stream past, by way of a buffer.
struct Streamed {
  const ConstMatrix& m;
  int row, count;  // of the matrix
  int head;
  float* buffer;  // [kStreamedRows, kStride]
};

template <typename T>
__device__ __forceinline__ void LoadStreamed(const Streamed& from, const Layout& layout,
                                             int chunk) {
  LoadTile<T, kStreamedRows>(At<T>(from.m, from.row, from.head * layout.head_dim + chunk * kChunk),
                             from.m.stride, from.count, layout.ColumnsOf(chunk), layout.aligned,
                             1.0f, from.buffer);
}

// Products with all columns of a streamed tile. A single chunk has been loaded; of several, each is
// loaded here, into a buffer that other threads may still read.
template <typename T, int kChunks, int kRows>
__device__ __forceinline__ void AddAllProducts(const Streamed& from, const Layout& layout,
                                               const float* resident, int member,
                                               float (&products)[kRows][kStreamedPerLane]) {
#pragma unroll 1
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    if constexpr (kChunks > 1) {
      __syncthreads();
      LoadStreamed<T>(from, layout, chunk);
      __syncthreads();
    }
    AddProducts<kRows>(resident + chunk * kTileRows<kRows> * kStride,
                       from.buffer + member * kStride, layout.ColumnsOf(chunk), products);
  }
}

// The same for weighted sums.
template <typename T, int kChunks, int kRows>
__device__ __forceinline__ void AddAllWeighted(const Streamed& from, const Layout& layout,
                                               const float* weights, int member,
                                               float (&sums)[kChunks][kRows][8]) {
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    if constexpr (kChunks > 1) {
      __syncthreads();
      LoadStreamed<T>(from, layout, chunk);
      __syncthreads();
    }
    AddWeighted<kRows>(weights, from.buffer + member * 4, from.count, sums[chunk]);
  }
}

// Writes the lane's columns of a chunk of one row, times `scale`.
template <typename T>
__device__ __forceinline__ void StoreColumns(T* row, const Layout& layout, int chunk, int member,
                                             const float (&sums)[8], float scale) {
  const int cols = layout.ColumnsOf(chunk);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int col = half * 32 + member * 4;
    if (col >= cols) continue;
    const float* v = sums + half * 4;
    StoreFour(row + chunk * kChunk + col,
              make_float4(v[0] * scale, v[1] * scale, v[2] * scale, v[3] * scale), cols - col,
              layout.aligned);
  }
}

// Rows of no sentence become 0.
template <typename T>
__device__ void ZeroTile(const Matrix& m, const Layout& layout, const Tile& tile, int head) {
  for (int i = static_cast<int>(threadIdx.x); i < tile.count * layout.head_dim; i += kThreads) {
    *MutableAt<T>(m, tile.row + i / layout.head_dim, head * layout.head_dim + i % layout.head_dim) =
        FromFloat<T>(0.0f);
  }
}

template <int kRows>
__device__ __forceinline__ void PutWeights(const float (&weights)[kRows][kStreamedPerLane],
                                           int member, float* to) {
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kStreamedPerLane; ++j) {
      to[i * kWeightStride + member + 8 * j] = weights[i][j];
    }
  }
  __syncwarp();
}

// A block: its tile of resident rows, the shared memory and the place of the calling thread.
//
// Shared memory: kResident matrices whose rows stay, the buffers of two streams (one and the same
// where rows have several chunks), a row of weights for each resident row, and two numbers for each
// streamed row.
template <int kChunks, int kRows, int kResident>
struct Block {
  static constexpr int kTile = kTileRows<kRows>;
  static constexpr int kResidentFloats = kChunks * kTile * kStride;
  static constexpr int kStreams = kChunks == 1 ? 2 : 1;
  static constexpr int kStreamFloats = kStreamedRows * kStride;
  static constexpr int kBytes = 4 * (kResident * kResidentFloats + kStreams * kStreamFloats +
                                     kTile * kWeightStride + 2 * kStreamedRows);
  static_assert(kBytes <= 48 * 1024);

  __device__ Block(float* shared, const int32_t* offsets, int num_sentences, int64_t rows)
      : tile(FindTile<kTile>(offsets, num_sentences, static_cast<int>(rows))),
        head(static_cast<int>(blockIdx.y)),
        lane(static_cast<int>(threadIdx.x) % 32),
        member(lane % 8),
        warp_row(static_cast<int>(threadIdx.x) / 32 * 4 * kRows),
        row(warp_row + lane / 8 * kRows),
        resident(shared),
        first_stream(resident + kResident * kResidentFloats),
        second_stream(first_stream + (kStreams - 1) * kStreamFloats),
        numbers(second_stream + kStreamFloats),
        weights(numbers + 2 * kStreamedRows + row * kWeightStride),
        mine(resident + row * kStride),
        mine_too(mine + kResidentFloats) {}

  // All rows of the tile of matrix `number` of the resident ones.
  template <typename T>
  __device__ __forceinline__ void Load(const ConstMatrix& m, const Layout& layout, float scale,
                                       int number) const {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      LoadTile<T, kTile>(At<T>(m, tile.row, head * layout.head_dim + chunk * kChunk), m.stride,
                         tile.count, layout.ColumnsOf(chunk), layout.aligned, scale,
                         resident + number * kResidentFloats + chunk * kTile * kStride);
    }
  }

  Tile tile;
  int head;
  int lane;
  int member;    // of the group of eight lanes
  int warp_row;  // of the tile: the first of the warp
  int row;       // the first of the lane
  float* resident;
  float *first_stream, *second_stream;
  float* numbers;
  float* weights;         // of the lane's rows
  const float* mine;      // the lane's rows of the first resident matrix
  const float* mine_too;  // and of the second
};

// Eight decisions of a row; all are to keep where nothing is dropped.
__device__ __forceinline__ uint32_t KeepByteOfRow(const DropoutStream& stream,
                                                  const PackedRows& ids, int row, int block) {
  if (stream.threshold == 0) return 0xFFu;
  return KeepByte(stream, ids.pairs[row], ids.positions[row], static_cast<uint32_t>(block));
}

// Bit member + 8 j of keep[i] tells whether the weight of the lane's query i and its key j is kept.
// A warp has 4 * kRows queries and 32 keys from `key` on: a lane draws for eight keys of one query.
template <int kRows, typename Block>
__device__ __forceinline__ void KeepBitsOfQueries(const Block& block, const DropoutStream& stream,
                                                  const PackedRows& ids, int key,
                                                  uint32_t (&keep)[kRows]) {
  const int query = block.warp_row + block.lane / 4 % (4 * kRows), eight = block.lane % 4;
  const int feature = block.head * static_cast<int>(native::kMaxAttentionKeys) + key;
  uint32_t bits = KeepByteOfRow(stream, ids, block.tile.row + min(query, block.tile.count - 1),
                                feature / 8 + eight)
                  << (8 * eight);
  bits |= __shfl_xor_sync(kAllLanes, bits, 1);
  bits |= __shfl_xor_sync(kAllLanes, bits, 2);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    keep[i] = __shfl_sync(kAllLanes, bits, 4 * (block.lane / 8 * kRows + i));
  }
}

// Bit i of keep[j] tells the same of the lane's key i and its query j, of `count` queries from row
// `query_row` on. Lane l draws for query l and the keys of the warp.
template <int kRows, typename Block>
__device__ __forceinline__ void KeepBitsOfKeys(const Block& block, const DropoutStream& stream,
                                               const PackedRows& ids, int query_row, int count,
                                               uint32_t (&keep)[kStreamedPerLane]) {
  const int feature =
      block.head * static_cast<int>(native::kMaxAttentionKeys) + block.tile.begin + block.warp_row;
  const uint32_t bits =
      KeepByteOfRow(stream, ids, query_row + min(block.lane, count - 1), feature / 8) >>
      (feature % 8);
#pragma unroll
  for (int j = 0; j < kStreamedPerLane; ++j) {
    keep[j] = __shfl_sync(kAllLanes, bits, block.member + 8 * j) >> (block.lane / 8 * kRows);
  }
}

template <typename Args>
struct Parameters {
  Args args;
  DropoutStream stream = {};
  Layout layout;
  float* delta = nullptr;  // [q rows, heads]: sums of context * d_context; backward
};

// --- forward ---

// The softmax of the lane's rows so far. `sum` is the lane's own part.
template <int kRows>
struct RunningSoftmax {
  float largest[kRows];
  float sum[kRows];
};

// Scores of the keys that a query does not see become -infinity. `key` is the first of the tile,
// `query` the lane's first.
template <int kRows>
__device__ __forceinline__ void HideKeys(float (&scores)[kRows][kStreamedPerLane], bool causal,
                                         int query, int key, int num_keys, int member) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int seen = causal ? min(query + i + 1, num_keys) : num_keys;
#pragma unroll
    for (int j = 0; j < kStreamedPerLane; ++j) {
      if (key + member + 8 * j >= seen) scores[i][j] = -INFINITY;
    }
  }
}

// Scores become weights relative to the largest so far; what was summed before is rescaled.
template <int kChunks, int kRows>
__device__ __forceinline__ void WeighScores(float (&scores)[kRows][kStreamedPerLane],
                                            RunningSoftmax<kRows>& softmax,
                                            float (&context)[kChunks][kRows][8]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float largest = scores[i][0];
#pragma unroll
    for (int j = 1; j < kStreamedPerLane; ++j) largest = fmaxf(largest, scores[i][j]);
    largest = fmaxf(softmax.largest[i], GroupMax(largest));
    const float rescale = exp2f(softmax.largest[i] - largest);
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kStreamedPerLane; ++j) {
      scores[i][j] = exp2f(scores[i][j] - largest);
      sum += scores[i][j];
    }
    softmax.sum[i] = fmaf(softmax.sum[i], rescale, sum);
    softmax.largest[i] = largest;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
      for (int c = 0; c < 8; ++c) context[chunk][i][c] *= rescale;
    }
  }
}

template <int kRows>
__device__ __forceinline__ void DropWeights(const uint32_t (&keep)[kRows], int member,
                                            float (&weights)[kRows][kStreamedPerLane]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kStreamedPerLane; ++j) {
      if ((keep[i] >> (member + 8 * j) & 1u) == 0) weights[i][j] = 0.0f;
    }
  }
}

template <typename T, int kChunks, int kRows>
__device__ __forceinline__ void StoreContext(const Parameters<AttentionArgs>& p,
                                             const Block<kChunks, kRows, 1>& block,
                                             const RunningSoftmax<kRows>& softmax,
                                             const float (&context)[kChunks][kRows][8]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float sum = GroupSum(softmax.sum[i]);
    if (block.row + i >= block.tile.count) continue;
    const int64_t row = block.tile.row + block.row + i;
    if (block.member == 0 && p.args.log_sum_exp_RH != nullptr) {
      p.args.log_sum_exp_RH[row * p.args.heads + block.head] =
          (softmax.largest[i] + log2f(sum)) * kLn2;
    }
    const float scale = (p.stream.threshold > 0 ? p.stream.scale : 1.0f) / sum;
    T* const to = MutableAt<T>(p.args.context_RD, row, block.head * p.layout.head_dim);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      StoreColumns(to, p.layout, chunk, block.member, context[chunk][i], scale);
    }
  }
}

template <typename T, int kChunks>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor<kChunks>)
    ForwardKernel(const Parameters<AttentionArgs> p) {
  constexpr int kRows = 2;
  DYNAMIC_SHARED(float, shared);
  const AttentionArgs& a = p.args;
  const Block<kChunks, kRows, 1> block(shared, a.queries.offsets, a.queries.num_sentences,
                                       a.queries.count);
  const Tile& tile = block.tile;
  if (tile.count == 0) return;
  if (tile.sentence < 0) return ZeroTile<T>(p.args.context_RD, p.layout, tile, block.head);

  block.template Load<T>(p.args.q_RD, p.layout, p.layout.scale * kLog2E, 0);
  const int k_begin = a.keys.offsets[tile.sentence];
  const int num_keys = a.keys.offsets[tile.sentence + 1] - k_begin;
  const int end = a.causal ? min(num_keys, tile.begin + tile.count) : num_keys;
  RunningSoftmax<kRows> softmax = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
  float context[kChunks][kRows][8] = {};

  for (int key = 0; key < end; key += kStreamedRows) {
    const int count = min(kStreamedRows, end - key);
    const Streamed k = {p.args.k_RD, k_begin + key, count, block.head, block.first_stream};
    const Streamed v = {p.args.v_RD, k_begin + key, count, block.head, block.second_stream};
    if constexpr (kChunks == 1) {
      __syncthreads();
      LoadStreamed<T>(k, p.layout, 0);
      LoadStreamed<T>(v, p.layout, 0);
      __syncthreads();
    }
    float scores[kRows][kStreamedPerLane] = {};
    AddAllProducts<T, kChunks, kRows>(k, p.layout, block.mine, block.member, scores);
    HideKeys<kRows>(scores, a.causal, tile.begin + block.row, key, num_keys, block.member);
    WeighScores<kChunks, kRows>(scores, softmax, context);
    if (p.stream.threshold > 0) {
      uint32_t keep[kRows];
      KeepBitsOfQueries<kRows>(block, p.stream, p.args.queries, key, keep);
      DropWeights<kRows>(keep, block.member, scores);
    }
    PutWeights<kRows>(scores, block.member, block.weights);
    AddAllWeighted<T, kChunks, kRows>(v, p.layout, block.weights, block.member, context);
  }
  StoreContext<T, kChunks, kRows>(p, block, softmax, context);
}

// --- backward ---
//
// With p the weights before dropout, m their keep / (1 - rate), d = d_context v^T m and, for each
// query, delta = sum of context * d_context = sum of p d over the keys:
//   d_score = p (d - delta),  dq = scale d_score k,  dk = scale d_score^T q,  dv = (p m)^T
//   d_context

// Rows of a lane in the backward kernels: long rows leave memory for half as many.
template <int kChunks>
constexpr int kBackwardRows = kChunks <= 2 ? 2 : 1;

// Scores (in powers of two) and d of a lane's weight become p m and d_score.
__device__ __forceinline__ void ScoreGradient(float lse, float delta, bool keep, float keep_scale,
                                              float& score, float& d) {
  const float p = exp2f(score - lse), m = keep ? keep_scale : 0.0f;
  score = p * m;
  d = p * (d * m - delta);
}

// delta of the lane's rows, written for the other kernel, and their log-sum-exp in powers of two.
template <typename T, int kChunks, int kRows>
__device__ __forceinline__ void LoadQueryNumbers(const Parameters<AttentionGradArgs>& p,
                                                 const Block<kChunks, kRows, 2>& block,
                                                 float (&lse)[kRows], float (&delta)[kRows]) {
  const int head_dim = p.layout.head_dim;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const bool real = block.row + i < block.tile.count;
    const int64_t row = block.tile.row + min(block.row + i, block.tile.count - 1);
    const T* const context = MutableAt<T>(p.args.forward.context_RD, row, block.head * head_dim);
    float sum = 0.0f;
    for (int col = block.member * 4; col < head_dim; col += 32) {
      const float4 a = LoadFour(context + col, head_dim - col, p.layout.aligned);
      const float4 b = *reinterpret_cast<const float4*>(
          block.mine_too + (col / kChunk * block.kTile + i) * kStride + col % kChunk);
      sum = fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sum))));
    }
    delta[i] = GroupSum(sum);
    const int64_t place = row * p.args.forward.heads + block.head;
    if (real && block.member == 0) p.delta[place] = delta[i];
    lse[i] = p.args.forward.log_sum_exp_RH[place] * kLog2E;
  }
}

// Writes the rows of a gradient.
template <typename T, int kChunks, int kRows>
__device__ __forceinline__ void StoreGradient(const Matrix& m, const Layout& layout,
                                              const Block<kChunks, kRows, 2>& block,
                                              const float (&sums)[kChunks][kRows][8], float scale) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (block.row + i >= block.tile.count) continue;
    T* const to = MutableAt<T>(m, block.tile.row + block.row + i, block.head * layout.head_dim);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      StoreColumns(to, layout, chunk, block.member, sums[chunk][i], scale);
    }
  }
}

template <typename T, int kChunks>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor<kChunks>)
    QueryGradientKernel(const Parameters<AttentionGradArgs> p) {
  constexpr int kRows = kBackwardRows<kChunks>;
  DYNAMIC_SHARED(float, shared);
  const AttentionArgs& a = p.args.forward;
  const Block<kChunks, kRows, 2> block(shared, a.queries.offsets, a.queries.num_sentences,
                                       a.queries.count);
  const Tile& tile = block.tile;
  if (tile.count == 0) return;
  if (tile.sentence < 0) return ZeroTile<T>(p.args.dq_RD, p.layout, tile, block.head);

  block.template Load<T>(p.args.forward.q_RD, p.layout, p.layout.scale * kLog2E, 0);
  block.template Load<T>(p.args.dcontext_RD, p.layout, 1.0f, 1);
  __syncthreads();
  float lse[kRows], delta[kRows];
  LoadQueryNumbers<T, kChunks, kRows>(p, block, lse, delta);
  const int k_begin = a.keys.offsets[tile.sentence];
  const int num_keys = a.keys.offsets[tile.sentence + 1] - k_begin;
  const int end = a.causal ? min(num_keys, tile.begin + tile.count) : num_keys;
  float dq[kChunks][kRows][8] = {};

  for (int key = 0; key < end; key += kStreamedRows) {
    const int count = min(kStreamedRows, end - key);
    const Streamed v = {p.args.forward.v_RD, k_begin + key, count, block.head, block.first_stream};
    const Streamed k = {p.args.forward.k_RD, k_begin + key, count, block.head, block.second_stream};
    if constexpr (kChunks == 1) {
      __syncthreads();
      LoadStreamed<T>(v, p.layout, 0);
      LoadStreamed<T>(k, p.layout, 0);
      __syncthreads();
    }
    float d[kRows][kStreamedPerLane] = {}, scores[kRows][kStreamedPerLane] = {};
    AddAllProducts<T, kChunks, kRows>(v, p.layout, block.mine_too, block.member, d);
    AddAllProducts<T, kChunks, kRows>(k, p.layout, block.mine, block.member, scores);
    HideKeys<kRows>(scores, a.causal, tile.begin + block.row, key, num_keys, block.member);
    uint32_t keep[kRows];
    KeepBitsOfQueries<kRows>(block, p.stream, p.args.forward.queries, key, keep);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kStreamedPerLane; ++j) {
        ScoreGradient(lse[i], delta[i], keep[i] >> (block.member + 8 * j) & 1u, p.stream.scale,
                      scores[i][j], d[i][j]);
      }
    }
    PutWeights<kRows>(d, block.member, block.weights);
    AddAllWeighted<T, kChunks, kRows>(k, p.layout, block.weights, block.member, dq);
  }
  StoreGradient<T, kChunks, kRows>(p.args.dq_RD, p.layout, block, dq, p.layout.scale);
}

// The numbers of the streamed queries: log-sum-exp in powers of two, and delta. Past the last query
// both are 0, as the rows are, and add nothing.
__device__ __forceinline__ void LoadStreamedNumbers(const Parameters<AttentionGradArgs>& p, int row,
                                                    int count, int head, float* to) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= kStreamedRows) return;
  const int64_t place = static_cast<int64_t>(row + i) * p.args.forward.heads + head;
  to[i] = i < count ? p.args.forward.log_sum_exp_RH[place] * kLog2E : 0.0f;
  to[kStreamedRows + i] = i < count ? p.delta[place] : 0.0f;
}

// ScoreGradient of the lane's keys and its queries, of `count` from query `query` of the sentence
// on, which is row `query_row`.
template <int kRows, typename Block>
__device__ __forceinline__ void KeyScoreGradients(const Parameters<AttentionGradArgs>& p,
                                                  const Block& block, int query, int query_row,
                                                  int count,
                                                  float (&scores)[kRows][kStreamedPerLane],
                                                  float (&d)[kRows][kStreamedPerLane]) {
  uint32_t keep[kStreamedPerLane];
  KeepBitsOfKeys<kRows>(block, p.stream, p.args.forward.queries, query_row, count, keep);
#pragma unroll
  for (int j = 0; j < kStreamedPerLane; ++j) {
    const int place = block.member + 8 * j;
    const float lse = block.numbers[place], delta = block.numbers[kStreamedRows + place];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const bool hidden = p.args.forward.causal && query + place < block.tile.begin + block.row + i;
      if (hidden) scores[i][j] = -INFINITY;
      ScoreGradient(lse, delta, keep[j] >> i & 1u, p.stream.scale, scores[i][j], d[i][j]);
    }
  }
}

template <typename T, int kChunks>
__global__ void __launch_bounds__(kThreads, kChunks == 1 ? 3 : 1)
    KeyGradientKernel(const Parameters<AttentionGradArgs> p) {
  constexpr int kRows = kBackwardRows<kChunks>;
  DYNAMIC_SHARED(float, shared);
  const AttentionArgs& a = p.args.forward;
  const Block<kChunks, kRows, 2> block(shared, a.keys.offsets, a.keys.num_sentences, a.keys.count);
  const Tile& tile = block.tile;
  if (tile.count == 0) return;
  if (tile.sentence < 0) {
    ZeroTile<T>(p.args.dk_RD, p.layout, tile, block.head);
    return ZeroTile<T>(p.args.dv_RD, p.layout, tile, block.head);
  }

  block.template Load<T>(p.args.forward.k_RD, p.layout, p.layout.scale * kLog2E, 0);
  block.template Load<T>(p.args.forward.v_RD, p.layout, 1.0f, 1);
  const int q_begin = a.queries.offsets[tile.sentence];
  const int num_queries = a.queries.offsets[tile.sentence + 1] - q_begin;
  float dk[kChunks][kRows][8] = {}, dv[kChunks][kRows][8] = {};

  // Queries before the tile do not see it if causal.
  const int first = a.causal ? tile.begin / kStreamedRows * kStreamedRows : 0;
  for (int query = first; query < num_queries; query += kStreamedRows) {
    const int count = min(kStreamedRows, num_queries - query), row = q_begin + query;
    const Streamed q = {p.args.forward.q_RD, row, count, block.head, block.first_stream};
    const Streamed d_context = {p.args.dcontext_RD, row, count, block.head, block.second_stream};
    __syncthreads();
    LoadStreamedNumbers(p, row, count, block.head, block.numbers);
    if constexpr (kChunks == 1) {
      LoadStreamed<T>(q, p.layout, 0);
      LoadStreamed<T>(d_context, p.layout, 0);
      __syncthreads();
    }
    float d[kRows][kStreamedPerLane] = {}, scores[kRows][kStreamedPerLane] = {};
    AddAllProducts<T, kChunks, kRows>(q, p.layout, block.mine, block.member, scores);
    AddAllProducts<T, kChunks, kRows>(d_context, p.layout, block.mine_too, block.member, d);
    KeyScoreGradients<kRows>(p, block, query, row, count, scores, d);
    PutWeights<kRows>(scores, block.member, block.weights);
    AddAllWeighted<T, kChunks, kRows>(d_context, p.layout, block.weights, block.member, dv);
    PutWeights<kRows>(d, block.member, block.weights);
    AddAllWeighted<T, kChunks, kRows>(q, p.layout, block.weights, block.member, dk);
  }
  StoreGradient<T, kChunks, kRows>(p.args.dk_RD, p.layout, block, dk, p.layout.scale);
  StoreGradient<T, kChunks, kRows>(p.args.dv_RD, p.layout, block, dv, 1.0f);
}

// --- decoding ---
//
// A block serves one row and head. Each group of eight lanes takes every 16th key of the list with
// a running softmax of its own; a lane has the columns 4 * member + 32 v of a head. The results of
// the groups are put together in a fixed order.

constexpr int kDecodeGroups = kThreads / 8;

// The softmax of some keys and the values that it weighs.
template <int kFours>
struct Part {
  float largest, sum;
  float4 context[kFours];
};

__device__ __forceinline__ float4 Mix(float a, const float4& x, float b, const float4& y) {
  return make_float4(fmaf(a, x.x, b * y.x), fmaf(a, x.y, b * y.y), fmaf(a, x.z, b * y.z),
                     fmaf(a, x.w, b * y.w));
}

// Puts together the parts of two lanes, of which one has bit `other` of its number; the same in
// both.
template <int kFours>
__device__ __forceinline__ void Join(Part<kFours>& part, int other) {
  const auto of_other = [&](float x) { return __shfl_xor_sync(kAllLanes, x, other); };
  const float largest = fmaxf(part.largest, of_other(part.largest));
  const float mine = exp2f(part.largest - largest), others = of_other(mine);
  part.sum = part.sum * mine + of_other(part.sum) * others;
#pragma unroll
  for (int v = 0; v < kFours; ++v) {
    float4& x = part.context[v];
    x = make_float4(x.x * mine + of_other(x.x) * others, x.y * mine + of_other(x.y) * others,
                    x.z * mine + of_other(x.z) * others, x.w * mine + of_other(x.w) * others);
  }
  part.largest = largest;
}

// The group's keys: entries group, group + 16, ... of the row's list.
template <typename T, int kFours>
__device__ __forceinline__ Part<kFours> DecodeKeys(const DecodeAttentionArgs& args,
                                                   const Layout& layout, int row, int head) {
  const int thread = static_cast<int>(threadIdx.x), column = thread % 8 * 4;
  const int32_t* const index = args.index + row * args.index_stride;
  const int length = args.lengths[row];
  const auto load = [&](const ConstMatrix& m, int64_t of_row, int v) {
    const int col = column + 32 * v, left = layout.head_dim - col;
    return left > 0 ? LoadFour(At<T>(m, of_row, head * layout.head_dim + col), left, layout.aligned)
                    : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  };
  float4 q[kFours];
  Part<kFours> part = {.largest = kLowestFloat, .sum = 0.0f, .context = {}};
#pragma unroll
  for (int v = 0; v < kFours; ++v) q[v] = load(args.q_RD, row, v);
  // All lanes of a warp stay until its first group is done: they exchange sums.
  for (int first = thread / 32 * 4; first < length; first += kDecodeGroups) {
    const int place = first + thread % 32 / 8;
    const int64_t cached = index[min(place, length - 1)];
    float4 value[kFours];
    float score = 0.0f;
#pragma unroll
    for (int v = 0; v < kFours; ++v) {
      const float4 key = load(args.keys_ND, cached, v);
      value[v] = load(args.values_ND, cached, v);
      score = fmaf(q[v].x, key.x, score);
      score = fmaf(q[v].y, key.y, score);
      score = fmaf(q[v].z, key.z, score);
      score = fmaf(q[v].w, key.w, score);
    }
    score = GroupSum(score) * (layout.scale * kLog2E);
    if (place >= length) score = -INFINITY;
    const float largest = fmaxf(part.largest, score);
    const float rescale = exp2f(part.largest - largest), weight = exp2f(score - largest);
    part.sum = fmaf(part.sum, rescale, weight);
    part.largest = largest;
#pragma unroll
    for (int v = 0; v < kFours; ++v) {
      part.context[v] = Mix(weight, value[v], rescale, part.context[v]);
    }
  }
  return part;
}

template <int kFours>
struct DecodeShared {
  float largest[kWarps], sum[kWarps];
  alignas(16) float context[kWarps][kFours * 32];  // written four at a time
};

template <typename T, int kFours>
__global__ void __launch_bounds__(kThreads)
    DecodeKernel(const DecodeAttentionArgs args, const Layout layout) {
  BLOCK_SHARED(DecodeShared<kFours>, shared);
  const int row = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  Part<kFours> part = DecodeKeys<T, kFours>(args, layout, row, head);
  Join(part, 8);
  Join(part, 16);
  if (lane == 0) {
    shared.largest[warp] = part.largest;
    shared.sum[warp] = part.sum;
  }
  if (lane < 8) {
#pragma unroll
    for (int v = 0; v < kFours; ++v) {
      *reinterpret_cast<float4*>(&shared.context[warp][lane * 4 + 32 * v]) = part.context[v];
    }
  }
  __syncthreads();
  float largest = shared.largest[0], factor[kWarps], sum = 0.0f;
#pragma unroll
  for (int w = 1; w < kWarps; ++w) largest = fmaxf(largest, shared.largest[w]);
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    factor[w] = exp2f(shared.largest[w] - largest);
    sum = fmaf(shared.sum[w], factor[w], sum);
  }
  for (int col = thread; col < layout.head_dim; col += kThreads) {
    float context = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) context = fmaf(shared.context[w][col], factor[w], context);
    *MutableAt<T>(args.context_RD, row, head * layout.head_dim + col) = FromFloat<T>(context / sum);
  }
}

// --- host ---

// All matrices hold the same element; returns how they may be read.
Layout MakeLayout(int heads, std::initializer_list<ConstMatrix> matrices) {
  DEEPNET_CHECK(heads >= 1 && heads < 65536) << heads << " heads";
  const int head_dim = static_cast<int>(matrices.begin()->cols / heads);
  Layout layout = {.head_dim = head_dim,
                   .aligned = head_dim % 4 == 0,
                   .scale = 1.0f / std::sqrt(static_cast<float>(head_dim))};
  for (const ConstMatrix& m : matrices) {
    DEEPNET_CHECK(m.element == matrices.begin()->element) << "matrices of two elements";
    DEEPNET_CHECK_EQ(m.cols, int64_t{heads} * head_dim);
    DEEPNET_CHECK(m.stride >= m.cols) << "rows of " << m.cols << " every " << m.stride;
    layout.aligned = layout.aligned && HasAlignedFours(m);
  }
  DEEPNET_CHECK(head_dim >= 1 && head_dim <= native::kMaxGpuHeadDim)
      << "heads of " << head_dim << " columns";
  return layout;
}

// Calls f.template operator()<chunks>() with the number of chunks that hold a head's columns.
template <typename F>
void WithChunks(int head_dim, const F& f) {
  if (head_dim <= kChunk) {
    f.template operator()<1>();
  } else if (head_dim <= 2 * kChunk) {
    f.template operator()<2>();
  } else {
    f.template operator()<4>();
  }
}

template <int kTile>
dim3 Grid(const PackedRows& side, int heads) {
  return dim3(static_cast<unsigned>(side.count / kTile + side.num_sentences + 2),
              static_cast<unsigned>(heads));
}

// The arguments of the forward pass among those of a kernel.
AttentionArgs& ForwardOf(AttentionArgs& args) { return args; }
AttentionArgs& ForwardOf(AttentionGradArgs& args) { return args.forward; }

// `matrices` are all of the arguments.
template <typename Args>
Parameters<Args> MakeParameters(const GpuStream& gpu, const Args& args,
                                std::initializer_list<ConstMatrix> matrices) {
  Parameters<Args> p = {.args = args, .layout = {}};
  AttentionArgs& a = ForwardOf(p.args);
  p.layout = MakeLayout(a.heads, matrices);
  p.stream = DropoutStreamOf(gpu, a.dropout);
  DEEPNET_CHECK(!p.stream.active() ||
                a.heads * native::kMaxAttentionKeys <= native::kMaxDropoutFeatures)
      << a.heads << " heads with dropout";
  for (const PackedRows& side : {a.queries, a.keys}) {
    DEEPNET_CHECK(side.count < (int64_t{1} << 31) - kStreamedRows) << side.count << " rows";
  }
  return p;
}

}  // namespace

void AttentionForward(GpuStream& gpu, const AttentionArgs& args) {
  const auto p = MakeParameters(gpu, args, {args.q_RD, args.k_RD, args.v_RD, args.context_RD});
  if (args.queries.count == 0) return;
  ForElement(args.q_RD.element, [&]<typename T>() {
    WithChunks(p.layout.head_dim, [&]<int kChunks>() {
      using Shape = Block<kChunks, 2, 1>;
      Launch(gpu, "AttentionForward", ForwardKernel<T, kChunks>,
             Grid<Shape::kTile>(args.queries, args.heads), kThreads, Shape::kBytes, p);
    });
  });
}

void AttentionBackward(GpuStream& gpu, const AttentionGradArgs& args) {
  const AttentionArgs& a = args.forward;
  auto p = MakeParameters(
      gpu, args,
      {a.q_RD, a.k_RD, a.v_RD, a.context_RD, args.dcontext_RD, args.dq_RD, args.dk_RD, args.dv_RD});
  const int64_t q_rows = a.queries.count;
  DEEPNET_CHECK(q_rows == 0 || a.context_RD.data != nullptr)
      << "the backward pass needs the context";
  p.delta = gpu.ScratchFloats(q_rows * a.heads);
  ForElement(a.q_RD.element, [&]<typename T>() {
    WithChunks(p.layout.head_dim, [&]<int kChunks>() {
      using Shape = Block<kChunks, kBackwardRows<kChunks>, 2>;
      if (q_rows > 0) {
        Launch(gpu, "AttentionQueryGradient", QueryGradientKernel<T, kChunks>,
               Grid<Shape::kTile>(a.queries, a.heads), kThreads, Shape::kBytes, p);
      }
      if (a.keys.count > 0) {
        Launch(gpu, "AttentionKeyGradient", KeyGradientKernel<T, kChunks>,
               Grid<Shape::kTile>(a.keys, a.heads), kThreads, Shape::kBytes, p);
      }
    });
  });
}

void DecodeAttention(GpuStream& gpu, const DecodeAttentionArgs& args) {
  const Layout layout =
      MakeLayout(args.heads, {args.q_RD, args.keys_ND, args.values_ND, args.context_RD});
  if (args.rows == 0) return;
  const dim3 grid(static_cast<unsigned>(args.rows), static_cast<unsigned>(args.heads));
  ForElement(args.q_RD.element, [&]<typename T>() {
    WithChunks(layout.head_dim, [&]<int kChunks>() {
      Launch(gpu, "DecodeAttention", DecodeKernel<T, 2 * kChunks>, grid, kThreads, 0, args, layout);
    });
  });
}

}  // namespace deepnet::cuda
