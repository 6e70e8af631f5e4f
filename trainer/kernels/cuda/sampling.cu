// A block makes a choice.
//
// The k best: the first pass takes the maximum of each thread's columns; the k-th largest of these
// is a floor: k numbers reach it, so the k best do. The second pass collects the few that reach it,
// and their ranks decide: they are counted, not sorted, so that the order in which threads found
// them does not matter. Where too many reach the floor (equal numbers), the best are taken one
// after the other instead, each by a pass over the row.
//
// One drawn: each warp sums the weights of its run of columns. The sums, in the order of the runs,
// say in which one the bound is exceeded, and its warp looks there, 32 columns at a time.
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

struct Args {
  const float* log_probs;
  int cols;
  int64_t stride;
  native::TokenChoices choices;
};

// The row of a choice.
struct Row {
  const float* x;
  const uint8_t* kinds;
  uint32_t forbidden;
  int cols;
};

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

__device__ __forceinline__ Row RowOf(const Args& args, const native::TokenChoice& choice) {
  return {args.log_probs + choice.row * args.stride, args.choices.kinds, choice.forbidden,
          args.cols};
}

// -infinity where the column must not be chosen.
__device__ __forceinline__ float ValueAt(const Row& row, int col) {
  const float value = row.x[col];
  const bool possible = value > -INFINITY;  // false for NaN
  return possible && (row.kinds[col] & row.forbidden) == 0 ? value : -INFINITY;
}

// The k-th largest of the threads' maxima, in shared.floor; -infinity if there are fewer.
__device__ void FindFloor(const Row& row, int k, Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  float largest = -INFINITY;
#pragma unroll 4
  for (int col = thread; col < row.cols; col += kThreads) {
    largest = fmaxf(largest, ValueAt(row, col));
  }
  shared.largest[thread] = largest;
  __syncthreads();
  int better = 0;
#pragma unroll 8
  for (int other = 0; other < kThreads; ++other) {
    better += IsBetter({shared.largest[other], other}, {largest, thread});
  }
  if (better == k - 1) shared.floor = largest;
  if (thread == 0 && k > kThreads) shared.floor = -INFINITY;
  if (thread == 0) shared.num_candidates = 0;
  __syncthreads();
}

// Returns how many columns reach the floor; the first kMostCandidates found are in shared memory.
__device__ int Collect(const Row& row, Shared& shared) {
  const float floor = shared.floor;
#pragma unroll 4
  for (int col = static_cast<int>(threadIdx.x); col < row.cols; col += kThreads) {
    const float value = ValueAt(row, col);
    if (!(value >= floor) || value == -INFINITY) continue;
    const int place = atomicAdd(&shared.num_candidates, 1);
    if (place < kMostCandidates) shared.candidates[place] = {value, col};
  }
  __syncthreads();
  return shared.num_candidates;
}

// The best candidate of the block that is worse than `last`, in every thread; index -1: none.
__device__ Candidate BestAfter(const Row& row, const Candidate& last, Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  Candidate best = {-INFINITY, -1};
  for (int col = thread; col < row.cols; col += kThreads) {
    const Candidate here = {ValueAt(row, col), col};
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

__global__ void __launch_bounds__(kThreads) TopKKernel(const Args args) {
  BLOCK_SHARED(Shared, shared);
  const Row row = RowOf(args, args.choices.choices[blockIdx.x]);
  const int k = args.choices.k, thread = static_cast<int>(threadIdx.x);
  native::TokenScore* const chosen = args.choices.chosen + static_cast<int64_t>(blockIdx.x) * k;
  FindFloor(row, k, shared);
  const int found = Collect(row, shared);
  if (found > kMostCandidates) {
    Candidate last = {INFINITY, -1};
    for (int rank = 0; rank < k; ++rank) {
      last = BestAfter(row, last, shared);
      if (thread == 0) chosen[rank] = {last.value, last.index};
    }
    return;
  }
  for (int i = thread; i < found; i += kThreads) {
    const Candidate candidate = shared.candidates[i];
    int rank = 0;
    for (int other = 0; other < found; ++other) {
      rank += IsBetter(shared.candidates[other], candidate);
    }
    if (rank < k) chosen[rank] = {candidate.value, candidate.index};
  }
  for (int rank = found + thread; rank < k; rank += kThreads) chosen[rank] = {-INFINITY, -1};
}

struct DrawShared {
  float highest[kWarps];  // of each warp's run
  double weights[kWarps];
};

// The weight of a column relative to the highest, so that nothing overflows.
__device__ __forceinline__ double WeightAt(const Row& row, int col, int end, float highest,
                                           double temperature) {
  const float value = col < end ? ValueAt(row, col) : -INFINITY;
  return value == -INFINITY ? 0.0 : exp((static_cast<double>(value) - highest) / temperature);
}

// The first column of [begin, end) where the running sum, `sum` before it, exceeds the bound, else
// the last one that has a weight; -1: none. Called by one warp.
__device__ int FindInRun(const Row& row, int begin, int end, float highest, double temperature,
                         double sum, double bound) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int last = -1;
  for (int first = begin; first < end; first += 32) {
    const double weight = WeightAt(row, first + lane, end, highest, temperature);
    double running = weight;
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const double before = __shfl_up_sync(kAllLanes, running, lanes);
      if (lane >= lanes) running += before;
    }
    const unsigned possible = __ballot_sync(kAllLanes, weight > 0.0);
    const unsigned beyond = __ballot_sync(kAllLanes, weight > 0.0 && sum + running > bound);
    if (beyond != 0) return first + __ffs(static_cast<int>(beyond)) - 1;
    if (possible != 0) last = first + 31 - __clz(static_cast<int>(possible));
    sum += __shfl_sync(kAllLanes, running, 31);
  }
  return last;
}

__global__ void __launch_bounds__(kThreads) DrawKernel(const Args args) {
  BLOCK_SHARED(DrawShared, shared);
  const native::TokenChoice choice = args.choices.choices[blockIdx.x];
  const Row row = RowOf(args, choice);
  const double temperature = args.choices.temperature;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int run = (row.cols + kThreads - 1) / kThreads * 32;  // columns of a warp
  const int begin = min(warp * run, row.cols), end = min(begin + run, row.cols);

  float highest = -INFINITY;
  for (int col = begin + lane; col < end; col += 32) highest = fmaxf(highest, ValueAt(row, col));
  highest = MaxInWarp(highest);
  if (lane == 0) shared.highest[warp] = highest;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) highest = fmaxf(highest, shared.highest[w]);

  double weight = 0.0;
  for (int col = begin + lane; col < end; col += 32) {
    weight += WeightAt(row, col, end, highest, temperature);
  }
  weight = SumInWarp(weight);
  if (lane == 0) shared.weights[warp] = weight;
  __syncthreads();
  double total = 0.0;
  for (int w = 0; w < kWarps; ++w) total += shared.weights[w];

  const double bound = choice.uniform * total;
  double sum = 0.0, before = 0.0;  // before the run that is looked into
  int looks = 0;
  for (int w = 0; w < kWarps && !(sum > bound); ++w) {
    if (!(shared.weights[w] > 0.0)) continue;
    looks = w;
    before = sum;
    sum += shared.weights[w];
  }
  if (warp != looks) return;
  const int token = FindInRun(row, begin, end, highest, temperature, before, bound);
  if (lane != 0) return;
  args.choices.chosen[blockIdx.x] = {token < 0 ? -INFINITY : row.x[token], token};
}

}  // namespace

void ChooseTokens(GpuStream& gpu, const float* log_probs, int64_t vocabulary, int64_t stride,
                  const native::TokenChoices& choices) {
  const bool draws = choices.temperature > 0.0;
  DEEPNET_CHECK(choices.k >= 1 && (choices.k == 1 || !draws)) << "k = " << choices.k;
  DEEPNET_CHECK(vocabulary >= 1 && vocabulary < (int64_t{1} << 30)) << vocabulary << " tokens";
  DEEPNET_CHECK_LE(vocabulary, stride);
  if (choices.count == 0) return;
  DEEPNET_CHECK_LT(choices.count, int64_t{1} << 31);
  const Args args{log_probs, static_cast<int>(vocabulary), stride, choices};
  Launch(gpu, draws ? "Draw" : "TopK", draws ? DrawKernel : TopKKernel,
         static_cast<unsigned>(choices.count), kThreads, 0, args);
}

}  // namespace deepnet::cuda
