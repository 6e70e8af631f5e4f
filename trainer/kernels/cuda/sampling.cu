// A block makes a choice.
//
// The k best: the first pass takes the maximum of each thread's columns; the k-th largest of these
// is a floor: k numbers reach it, so the k best do. The second pass collects the few that reach it,
// and their ranks decide: they are counted, not sorted, so that the order in which threads found
// them does not matter. Where too many reach the floor (equal numbers), the best are taken one
// after the other instead, each by a pass over the row.
//
// One drawn: each warp sums the weights of its run of columns. The sums, in the order of the runs,
// say in which one the bound is exceeded, and its warp looks there, 32 columns at a time. Cuts
// leave the columns from a key on, which orders them by value, then column: it is found bit by bit,
// by a pass over the row each.
#include <cmath>

#include "parallel/base/check.h"
#include "trainer/kernels/cuda/device_math.h"
#include "trainer/kernels/cuda/elements.h"
#include "trainer/kernels/cuda/kernels.h"
#include "trainer/kernels/cuda/launch.h"

namespace deepnet::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxCandidates = 1024;

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
  Candidate candidates[kMaxCandidates];
  Candidate of_warp[kWarps];
};

__device__ __forceinline__ bool IsBetter(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.index < b.index);
}

__device__ __forceinline__ Row RowOf(const Args& args, const native::TokenChoice& choice) {
  return {args.log_probs + choice.row * args.stride, args.choices.kinds, choice.forbidden,
          args.cols};
}

// Chooses the token that a choice names, whatever its kind.
__device__ void ChooseGiven(const Args& args, const native::TokenChoice& choice) {
  const float value = args.log_probs[choice.row * args.stride + choice.given];
  native::TokenScore* const chosen =
      args.choices.chosen + static_cast<int64_t>(blockIdx.x) * args.choices.k;
  for (int rank = static_cast<int>(threadIdx.x); rank < args.choices.k; rank += kThreads) {
    const bool taken = rank == 0 && value > -INFINITY;  // false for NaN
    chosen[rank] = {taken ? value : -INFINITY, taken ? choice.given : -1};
  }
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

// Returns how many columns reach the floor; the first kMaxCandidates found are in shared memory.
__device__ int Collect(const Row& row, Shared& shared) {
  const float floor = shared.floor;
#pragma unroll 4
  for (int col = static_cast<int>(threadIdx.x); col < row.cols; col += kThreads) {
    const float value = ValueAt(row, col);
    if (!(value >= floor) || value == -INFINITY) continue;
    const int place = atomicAdd(&shared.num_candidates, 1);
    if (place < kMaxCandidates) shared.candidates[place] = {value, col};
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
  const native::TokenChoice choice = args.choices.choices[blockIdx.x];
  if (choice.given >= 0) return ChooseGiven(args, choice);
  const Row row = RowOf(args, choice);
  const int k = args.choices.k, thread = static_cast<int>(threadIdx.x);
  native::TokenScore* const chosen = args.choices.chosen + static_cast<int64_t>(blockIdx.x) * k;
  FindFloor(row, k, shared);
  const int found = Collect(row, shared);
  if (found > kMaxCandidates) {
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

// A row that is drawn from, and what cuts leave of it.
struct DrawRow {
  Row row;
  double temperature;
  float highest = -INFINITY;
  uint64_t least_key = 0;     // of the columns that are left
  double least_weight = 0.0;  // likewise
};

// The better the column, the larger its key.
__device__ __forceinline__ uint64_t KeyOf(float value, int col, int cols) {
  const uint32_t bits = __float_as_uint(value + 0.0f);  // -0 equals 0
  const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return (static_cast<uint64_t>(ordered) << 32) | static_cast<uint32_t>(cols - 1 - col);
}

// The weight of a column relative to the highest, so that nothing overflows; 0 where it is
// impossible or cut.
__device__ __forceinline__ double WeightAt(const DrawRow& of, int col, int end) {
  const float value = col < end ? ValueAt(of.row, col) : -INFINITY;
  if (value == -INFINITY || KeyOf(value, col, of.row.cols) < of.least_key) return 0.0;
  const double weight = exp((static_cast<double>(value) - of.highest) / of.temperature);
  return weight < of.least_weight ? 0.0 : weight;
}

// The sum over the block, in every thread.
__device__ double SumInBlock(double value, DrawShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  value = SumInWarp(value);
  __syncthreads();  // all have read the last sum
  if (thread % 32 == 0) shared.weights[thread / 32] = value;
  __syncthreads();
  double sum = 0.0;
  for (int warp = 0; warp < kWarps; ++warp) sum += shared.weights[warp];
  return sum;
}

// Returns the number of columns whose key is at least `key`, or the sum of their weights.
template <bool kCounts>
__device__ double MeasureFrom(const DrawRow& of, uint64_t key, DrawShared& shared) {
  DrawRow from = of;
  from.least_key = key > of.least_key ? key : of.least_key;
  double measure = 0.0;
  for (int col = static_cast<int>(threadIdx.x); col < of.row.cols; col += kThreads) {
    const double weight = WeightAt(from, col, of.row.cols);
    measure += kCounts ? static_cast<double>(weight > 0.0) : weight;
  }
  return SumInBlock(measure, shared);
}

// The largest key from which on the columns measure at least `goal`, found bit by bit; 0: none.
template <bool kCounts>
__device__ uint64_t FindKey(const DrawRow& of, double goal, DrawShared& shared) {
  uint64_t key = 0;
  for (int bit = 63; bit >= 0; --bit) {
    if (bit < 32 && ((of.row.cols - 1) >> bit) == 0) continue;  // no key has it
    const uint64_t trial = key | (static_cast<uint64_t>(1) << bit);
    if (MeasureFrom<kCounts>(of, trial, shared) >= goal) key = trial;
  }
  return key;
}

__device__ void Cut(const native::TokenCuts& cuts, DrawRow& of, DrawShared& shared) {
  if (cuts.top_k > 0) of.least_key = FindKey<true>(of, cuts.top_k, shared);
  if (cuts.top_p > 0.0 && cuts.top_p < 1.0) {
    const double goal = cuts.top_p * MeasureFrom<false>(of, 0, shared);
    const uint64_t key = FindKey<false>(of, goal, shared);
    of.least_key = key > of.least_key ? key : of.least_key;
  }
  if (cuts.epsilon > 0.0) {
    const double least = cuts.epsilon * MeasureFrom<false>(of, 0, shared);
    of.least_weight = least < 1.0 ? least : 1.0;  // the best has 1
  }
}

// The first column of [begin, end) where the running sum, `sum` before it, exceeds the bound, else
// the last one that has a weight; -1: none. Called by one warp.
__device__ int FindInRun(const DrawRow& of, int begin, int end, double sum, double bound) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int last = -1;
  for (int first = begin; first < end; first += 32) {
    const double weight = WeightAt(of, first + lane, end);
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
  if (choice.given >= 0) return ChooseGiven(args, choice);
  DrawRow of = {.row = RowOf(args, choice), .temperature = args.choices.temperature};
  const Row& row = of.row;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int run = (row.cols + kThreads - 1) / kThreads * 32;  // columns of a warp
  const int begin = min(warp * run, row.cols), end = min(begin + run, row.cols);

  float highest = -INFINITY;
  for (int col = begin + lane; col < end; col += 32) highest = fmaxf(highest, ValueAt(row, col));
  highest = MaxInWarp(highest);
  if (lane == 0) shared.highest[warp] = highest;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) highest = fmaxf(highest, shared.highest[w]);
  of.highest = highest;
  Cut(args.choices.cuts, of, shared);

  double weight = 0.0;
  for (int col = begin + lane; col < end; col += 32) weight += WeightAt(of, col, end);
  const double total = SumInBlock(weight, shared);  // leaves the sums of the runs

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
  const int token = FindInRun(of, begin, end, before, bound);
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
