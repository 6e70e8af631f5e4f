// A block takes one row. The first pass finds the maximum, the sum of exponentials relative to it
// and the sum of the logits: each thread by itself, rescaling where its maximum grows, then all
// together in a fixed order. The second pass writes what needs the result. Long rows have blocks of
// 1,024 threads, so that the rows in work fit the second-level cache and are read from memory once.
#include <cmath>

#include "parallel/base/check.h"
#include "trainer/kernels/cuda/device_math.h"
#include "trainer/kernels/cuda/elements.h"
#include "trainer/kernels/cuda/kernels.h"
#include "trainer/kernels/cuda/launch.h"
#include "trainer/kernels/native/check_elements.h"

namespace deepnet::cuda {
namespace {

using native::CrossEntropyArgs;

constexpr int kMaxThreads = 1024;
constexpr int kMaxWarps = kMaxThreads / 32;
constexpr int64_t kLongRow = 8192;

unsigned ThreadsOfRow(int64_t vocabulary) { return vocabulary >= kLongRow ? kMaxThreads : 256; }

// The sums over some logits of a row.
template <typename Number>
struct RowSums {
  float largest;
  Number exponentials;  // relative to the largest
  Number total;         // of the logits
};

// The results for a whole row.
struct RowResult {
  double log_sum_exp;
  double total;
};

struct SharedSums {
  RowSums<double> of_warp[kMaxWarps];
  RowResult of_row;
};

// e^x by way of the power of two that the hardware has.
__device__ __forceinline__ float Exponential(float x) { return exp2f(x * kLog2E); }

__device__ __forceinline__ void AddLogits(const float (&x)[4], int n, RowSums<float>& sums) {
  float largest = sums.largest;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < n) largest = fmaxf(largest, x[i]);
  }
  sums.exponentials *= Exponential(sums.largest - largest);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < n) {
      sums.exponentials += Exponential(x[i] - largest);
      sums.total += x[i];
    }
  }
  sums.largest = largest;
}

__device__ __forceinline__ RowSums<double> Together(const RowSums<double>& a,
                                                    const RowSums<double>& b) {
  const float largest = fmaxf(a.largest, b.largest);
  return {largest,
          a.exponentials * static_cast<double>(Exponential(a.largest - largest)) +
              b.exponentials * static_cast<double>(Exponential(b.largest - largest)),
          a.total + b.total};
}

// The sums of all lanes, in lane 0.
__device__ __forceinline__ RowSums<double> SumOfWarp(RowSums<double> sums) {
#pragma unroll
  for (int other = 16; other > 0; other /= 2) {
    const RowSums<double> others = {__shfl_down_sync(kAllLanes, sums.largest, other),
                                    __shfl_down_sync(kAllLanes, sums.exponentials, other),
                                    __shfl_down_sync(kAllLanes, sums.total, other)};
    sums = Together(sums, others);
  }
  return sums;
}

// The sums of a row, in every thread. Threads take four neighbours at a time; the first warp puts
// the sums of all warps together.
__device__ RowResult SumRow(const float* x, int n, bool aligned, SharedSums& shared) {
  RowSums<float> mine = {kLowestFloat, 0.0f, 0.0f};
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
#pragma unroll 2
  for (int i = 4 * thread; i < n; i += 4 * threads) {
    const int left = min(n - i, 4);
    const float4 v = LoadFour(x + i, left, aligned && left == 4);
    AddLogits({v.x, v.y, v.z, v.w}, left, mine);
  }
  RowSums<double> sums = SumOfWarp(
      {mine.largest, static_cast<double>(mine.exponentials), static_cast<double>(mine.total)});
  if (thread % 32 == 0) shared.of_warp[thread / 32] = sums;
  __syncthreads();
  if (thread < 32) {
    sums = {kLowestFloat, 0.0, 0.0};
    if (thread < threads / 32) sums = shared.of_warp[thread];
    sums = SumOfWarp(sums);
    if (thread == 0) {
      shared.of_row = {static_cast<double>(sums.largest) + log(sums.exponentials), sums.total};
    }
  }
  __syncthreads();
  return shared.of_row;
}

struct RowParameters {
  CrossEntropyArgs args;
  double smooth;  // share of every piece that is not the target
  bool aligned;   // rows of logits and gradients may be read and written by fours
  bool in_place;  // the gradient overwrites logits that other threads have still to read
};

// scale * (p_v - smooth - a [v = target])
template <typename T>
__device__ void WriteGradient(const RowParameters& p, const float* x, T* to, int target,
                              float log_sum_exp) {
  const float scale = p.args.scale, smooth = static_cast<float>(p.smooth);
  const float at_target = (1.0f - static_cast<float>(p.args.smoothing) - smooth) * scale;
  const int n = static_cast<int>(p.args.vocabulary), threads = static_cast<int>(blockDim.x);
  const auto gradient = [&](float logit, int v) {
    const float d = (Exponential(logit - log_sum_exp) - smooth) * scale;
    return v == target ? d - at_target : d;
  };
  // All threads go round equally often: they may meet at the barrier.
#pragma unroll 2
  for (int begin = 0; begin < n; begin += 4 * threads) {
    const int i = begin + 4 * static_cast<int>(threadIdx.x), left = min(n - i, 4);
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (left > 0) v = LoadFour(x + i, left, p.aligned && left == 4);
    if (p.in_place) __syncthreads();
    if (left <= 0) continue;
    StoreFour(to + i,
              make_float4(gradient(v.x, i), gradient(v.y, i + 1), gradient(v.z, i + 2),
                          gradient(v.w, i + 3)),
              left, p.aligned && left == 4);
  }
}

template <typename T>
__global__ void __launch_bounds__(kMaxThreads) CrossEntropyKernel(const RowParameters p) {
  BLOCK_SHARED(SharedSums, shared);
  const CrossEntropyArgs& args = p.args;
  const int64_t row = blockIdx.x;
  const int target = args.targets[row], n = static_cast<int>(args.vocabulary);
  const float* const x = args.logits + row * args.stride;
  T* const d = static_cast<T*>(args.d_logits.data) + row * args.d_logits.stride;
  const bool first = threadIdx.x == 0;
  if (target < 0) {
    if (first) args.nll[row] = args.loss[row] = 0.0f;
    for (int v = static_cast<int>(threadIdx.x); args.d_logits.data != nullptr && v < n;
         v += static_cast<int>(blockDim.x)) {
      d[v] = FromFloat<T>(0.0f);
    }
    return;
  }
  const float logit = x[target];  // before a gradient takes its place
  const RowResult sums = SumRow(x, n, p.aligned, shared);
  if (first) {
    const double nll = sums.log_sum_exp - static_cast<double>(logit);
    const double smoothed = static_cast<double>(n) * sums.log_sum_exp - sums.total;
    args.nll[row] = static_cast<float>(nll);
    args.loss[row] =
        static_cast<float>((1.0 - args.smoothing - p.smooth) * nll + p.smooth * smoothed);
  }
  if (args.d_logits.data != nullptr) {
    WriteGradient(p, x, d, target, static_cast<float>(sums.log_sum_exp));
  }
}

__global__ void __launch_bounds__(kMaxThreads)
    LogSoftmaxKernel(int n, const float* logits, int64_t stride, float* y, int64_t y_stride,
                     bool aligned) {
  BLOCK_SHARED(SharedSums, shared);
  const float* const x = logits + blockIdx.x * stride;
  float* const to = y + blockIdx.x * y_stride;
  const float log_sum_exp = static_cast<float>(SumRow(x, n, aligned, shared).log_sum_exp);
#pragma unroll 2
  for (int i = 4 * static_cast<int>(threadIdx.x); i < n; i += 4 * static_cast<int>(blockDim.x)) {
    const int left = min(n - i, 4);
    const bool whole = aligned && left == 4;
    const float4 v = LoadFour(x + i, left, whole);
    StoreFour(
        to + i,
        make_float4(v.x - log_sum_exp, v.y - log_sum_exp, v.z - log_sum_exp, v.w - log_sum_exp),
        left, whole);
  }
}

constexpr int kSumThreads = 256;

__global__ void __launch_bounds__(kSumThreads)
    AverageLogProbsKernel(int64_t num_elements, float n, const float* x, float* y) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kSumThreads + threadIdx.x;
  if (i >= num_elements) return;
  const float highest = x[i] > y[i] ? x[i] : y[i];
  if (highest == -INFINITY) return;
  y[i] = highest + logf(((n - 1.0f) * Exp(y[i] - highest) + Exp(x[i] - highest)) / n);
}

struct SharedTotals {
  double loss[kSumThreads / 32], nll[kSumThreads / 32];
};

__global__ void __launch_bounds__(kSumThreads)
    SumLossesKernel(int64_t rows, const float* loss, const float* nll, double* sums) {
  BLOCK_SHARED(SharedTotals, shared);
  const int thread = static_cast<int>(threadIdx.x);
  double my_loss = 0.0, my_nll = 0.0;
#pragma unroll 4
  for (int64_t row = thread; row < rows; row += kSumThreads) {
    my_loss += static_cast<double>(loss[row]);
    my_nll += static_cast<double>(nll[row]);
  }
  my_loss = SumInWarp(my_loss);
  my_nll = SumInWarp(my_nll);
  if (thread % 32 == 0) {
    shared.loss[thread / 32] = my_loss;
    shared.nll[thread / 32] = my_nll;
  }
  __syncthreads();
  if (thread != 0) return;
  for (int warp = 1; warp < kSumThreads / 32; ++warp) {
    my_loss += shared.loss[warp];
    my_nll += shared.nll[warp];
  }
  sums[0] += my_loss;
  sums[1] += my_nll;
}

void CheckRows(int64_t rows, int64_t vocabulary, int64_t stride) {
  DEEPNET_CHECK(rows >= 0 && rows < (int64_t{1} << 31)) << rows << " rows";
  DEEPNET_CHECK_LT(vocabulary, int64_t{1} << 30) << "vocabulary of " << vocabulary;
  DEEPNET_CHECK_LE(vocabulary, stride);
}

bool RowsAreAligned(const float* data, int64_t stride) {
  return HasAlignedFours({.data = data, .element = native::Element::kFloat32, .stride = stride});
}

// True if the gradient overwrites logits of other columns, which then are those of its own row.
bool OverwritesOtherLogits(const CrossEntropyArgs& args) {
  const native::Matrix& d = args.d_logits;
  if (d.data != args.logits) return false;
  if (d.element == native::Element::kFloat32) {
    DEEPNET_CHECK_EQ(d.stride, args.stride);
    return false;
  }
  DEEPNET_CHECK_EQ(d.stride, 2 * args.stride);
  return true;
}

}  // namespace

void CrossEntropyRows(GpuStream& gpu, const CrossEntropyArgs& args) {
  DEEPNET_CHECK(args.vocabulary >= 2) << "vocabulary of " << args.vocabulary;
  CheckRows(args.rows, args.vocabulary, args.stride);
  if (args.rows == 0) return;
  const RowParameters p = {
      .args = args,
      .smooth = args.smoothing / static_cast<double>(args.vocabulary - 1),
      .aligned = RowsAreAligned(args.logits, args.stride) &&
                 (args.d_logits.data == nullptr || HasAlignedFours(args.d_logits)),
      .in_place = args.d_logits.data != nullptr && OverwritesOtherLogits(args)};
  ForElement(args.d_logits.element, [&]<typename T>() {
    Launch(gpu, "CrossEntropy", CrossEntropyKernel<T>, static_cast<unsigned>(args.rows),
           ThreadsOfRow(args.vocabulary), 0, p);
  });
}

void LogSoftmaxRows(GpuStream& gpu, native::ConstMatrix logits, native::Matrix y) {
  native::CheckFloats(logits, y);
  DEEPNET_CHECK(logits.cols >= 1) << "vocabulary of " << logits.cols;
  CheckRows(logits.rows, logits.cols, std::min(logits.stride, y.stride));
  if (logits.rows == 0) return;
  const auto* const x = static_cast<const float*>(logits.data);
  auto* const to = static_cast<float*>(y.data);
  Launch(gpu, "LogSoftmax", LogSoftmaxKernel, static_cast<unsigned>(logits.rows),
         ThreadsOfRow(logits.cols), 0, static_cast<int>(logits.cols), x, logits.stride, to,
         y.stride, RowsAreAligned(x, logits.stride) && RowsAreAligned(to, y.stride));
}

void AverageLogProbs(GpuStream& gpu, int64_t num_elements, int n, const float* x, float* y) {
  DEEPNET_CHECK(n >= 2) << "n = " << n;
  if (num_elements == 0) return;
  Launch(gpu, "AverageLogProbs", AverageLogProbsKernel, BlocksOf(num_elements, kSumThreads),
         kSumThreads, 0, num_elements, static_cast<float>(n), x, y);
}

void SumLosses(GpuStream& gpu, int64_t rows, const float* loss, const float* nll, double* sums) {
  if (rows == 0) return;
  Launch(gpu, "SumLosses", SumLossesKernel, 1, kSumThreads, 0, rows, loss, nll, sums);
}

}  // namespace deepnet::cuda
