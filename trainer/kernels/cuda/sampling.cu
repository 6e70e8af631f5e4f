// A block takes a row. The first pass takes the maximum of each thread's columns; the k-th largest
// of these is a floor: k numbers reach it, so the k best do. The second pass collects the few that
// reach it, and their ranks decide: they are counted, not sorted, so that the order in which
// threads found them does not matter. Where too many reach the floor (equal numbers), the best are
// taken one after the other instead, each by a pass over the row.
#include <cmath>

#include "parallel/base/check.h"
#include "trainer/kernels/cuda/device_math.h"
#include "trainer/kernels/cuda/fours.h"
#include "trainer/kernels/cuda/launch.h"
#include "trainer/kernels/cuda/sampling.h"

namespace deepnet::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMostCandidates = 1024;

struct Candidate {
  float value;
  int32_t index;
};

struct Shared {
  float largest[kThreads];  // of each thread's columns
  float floor;
  int num_candidates;
  Candidate candidates[kMostCandidates];
  Candidate of_warp[kWarps];
};

__device__ __forceinline__ bool IsBetter(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.index < b.index);
}

// -infinity where the column must not be chosen.
__device__ __forceinline__ float ValueAt(const TopKArgs& args, const float* row, int col) {
  const float value = row[col];
  const bool possible = value > -INFINITY;  // false for NaN
  if (!possible || (args.forbidden != nullptr && args.forbidden[col] != 0)) return -INFINITY;
  return value;
}

// The k-th largest of the threads' maxima, in shared.floor; -infinity if fewer are possible.
__device__ void FindFloor(const TopKArgs& args, const float* row, Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x), cols = static_cast<int>(args.cols);
  float largest = -INFINITY;
#pragma unroll 4
  for (int col = thread; col < cols; col += kThreads) {
    largest = fmaxf(largest, ValueAt(args, row, col));
  }
  shared.largest[thread] = largest;
  __syncthreads();
  int better = 0;
#pragma unroll 8
  for (int other = 0; other < kThreads; ++other) {
    better += IsBetter({shared.largest[other], other}, {largest, thread});
  }
  if (better == args.k - 1) shared.floor = largest;
  if (thread == 0) shared.num_candidates = 0;
  __syncthreads();
}

// Returns how many columns reach the floor; the first kMostCandidates found are in shared memory.
__device__ int Collect(const TopKArgs& args, const float* row, Shared& shared) {
  const float floor = shared.floor;
  const int cols = static_cast<int>(args.cols);
#pragma unroll 4
  for (int col = static_cast<int>(threadIdx.x); col < cols; col += kThreads) {
    const float value = ValueAt(args, row, col);
    if (!(value >= floor) || value == -INFINITY) continue;
    const int place = atomicAdd(&shared.num_candidates, 1);
    if (place < kMostCandidates) shared.candidates[place] = {value, col};
  }
  __syncthreads();
  return shared.num_candidates;
}

// The best candidate of the block that is worse than `last`, in every thread; index -1: none.
__device__ Candidate BestAfter(const TopKArgs& args, const float* row, const Candidate& last,
                               Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x), cols = static_cast<int>(args.cols);
  Candidate best = {-INFINITY, -1};
  for (int col = thread; col < cols; col += kThreads) {
    const Candidate here = {ValueAt(args, row, col), col};
    if (here.value == -INFINITY || !IsBetter(last, here)) continue;
    if (best.index < 0 || IsBetter(here, best)) best = here;
  }
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const Candidate other = {__shfl_xor_sync(kAllLanes, best.value, lanes),
                             __shfl_xor_sync(kAllLanes, best.index, lanes)};
    if (other.index >= 0 && (best.index < 0 || IsBetter(other, best))) best = other;
  }
  __syncthreads();  // all have read the last result
  if (thread % 32 == 0) shared.of_warp[thread / 32] = best;
  __syncthreads();
  for (int warp = 0; warp < kWarps; ++warp) {
    const Candidate& other = shared.of_warp[warp];
    if (other.index >= 0 && (best.index < 0 || IsBetter(other, best))) best = other;
  }
  return best;
}

__global__ void __launch_bounds__(kThreads) TopKKernel(const TopKArgs args) {
  BLOCK_SHARED(Shared, shared);
  const float* const row = args.x + blockIdx.x * args.stride;
  float* const values = args.values + static_cast<int64_t>(blockIdx.x) * args.k;
  int32_t* const indices = args.indices + static_cast<int64_t>(blockIdx.x) * args.k;
  const int thread = static_cast<int>(threadIdx.x);
  FindFloor(args, row, shared);
  const int found = Collect(args, row, shared);
  if (found > kMostCandidates) {
    Candidate last = {INFINITY, -1};
    for (int rank = 0; rank < args.k; ++rank) {
      last = BestAfter(args, row, last, shared);
      if (thread == 0) {
        values[rank] = last.value;
        indices[rank] = last.index;
      }
    }
    return;
  }
  for (int i = thread; i < found; i += kThreads) {
    const Candidate candidate = shared.candidates[i];
    int rank = 0;
    for (int other = 0; other < found; ++other) {
      rank += IsBetter(shared.candidates[other], candidate);
    }
    if (rank >= args.k) continue;
    values[rank] = candidate.value;
    indices[rank] = candidate.index;
  }
  for (int rank = found + thread; rank < args.k; rank += kThreads) {
    values[rank] = -INFINITY;
    indices[rank] = -1;
  }
}

}  // namespace

void TopK(GpuStream& gpu, const TopKArgs& args) {
  DEEPNET_CHECK(args.k >= 1 && args.k <= kMaxTopK) << "k = " << args.k;
  DEEPNET_CHECK(args.cols >= 1 && args.cols < (int64_t{1} << 30)) << args.cols << " columns";
  DEEPNET_CHECK_LE(args.cols, args.stride);
  if (args.rows == 0) return;
  DEEPNET_CHECK_LT(args.rows, int64_t{1} << 31);
  Launch(gpu, "TopK", TopKKernel, static_cast<unsigned>(args.rows), kThreads, 0, args);
}

}  // namespace deepnet::cuda
