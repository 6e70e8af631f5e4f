#include <algorithm>

#include "trainer/kernels/cuda/device_math.h"
#include "trainer/kernels/cuda/elements.h"
#include "trainer/kernels/cuda/kernels.h"
#include "trainer/kernels/cuda/launch.h"

namespace deepnet::cuda {
namespace {

using native::AdamConstants;

constexpr int kThreads = 256;

struct AdamElement {
  float weight, m, v;
};

// Rounds as the CPU does: nothing is fused but what is written as fused.
__device__ __forceinline__ void UpdateElement(const AdamConstants& k, float gradient,
                                              AdamElement& e) {
  const float g = __fmul_rn(gradient, k.gradient_scale);
  e.m = __fmaf_rn(g, k.one_minus_beta1, __fmul_rn(e.m, k.beta1));
  e.v = __fmaf_rn(__fmul_rn(g, g), k.one_minus_beta2, __fmul_rn(e.v, k.beta2));
  const float root = __fmaf_rn(__fsqrt_rn(e.v), k.root_scale, k.epsilon);
  const float change = __fdiv_rn(__fmul_rn(e.m, k.rate), root);
  e.weight = __fadd_rn(__fmul_rn(e.weight, 1.0f - k.decay), -change);
}

// Four elements a thread.
__global__ void __launch_bounds__(kThreads)
    AdamKernel(const AdamConstants constants, const native::AdamArgs p, int64_t n, bool aligned) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4;
  if (i >= n) return;
  const int left = static_cast<int>(min(n - i, int64_t{4}));
  const bool whole = aligned && left == 4;
  const float4 g = LoadFour(p.gradient + i, left, whole);
  const float4 w = LoadFour(p.weights + i, left, whole);
  const float4 m = LoadFour(p.moment1 + i, left, whole), v = LoadFour(p.moment2 + i, left, whole);
  AdamElement a = {w.x, m.x, v.x}, b = {w.y, m.y, v.y};
  AdamElement c = {w.z, m.z, v.z}, d = {w.w, m.w, v.w};
  UpdateElement(constants, g.x, a);
  UpdateElement(constants, g.y, b);
  UpdateElement(constants, g.z, c);
  UpdateElement(constants, g.w, d);
  StoreFour(p.weights + i, make_float4(a.weight, b.weight, c.weight, d.weight), left, whole);
  StoreFour(p.moment1 + i, make_float4(a.m, b.m, c.m, d.m), left, whole);
  StoreFour(p.moment2 + i, make_float4(a.v, b.v, c.v, d.v), left, whole);
}

// The ranges of a launch lie in its arguments, so that nothing is copied to the device for them.
struct RangesOfLaunch {
  int count = 0;                        // ranges
  int64_t first_block[kMaxRanges + 1];  // of each range; then the number of blocks
  FloatRange ranges[kMaxRanges];
};

// A warp takes a block of elements: element i goes to lane i % 32, and the lanes are added by
// halves, as on the CPU. Products are exact.
__global__ void __launch_bounds__(kThreads) SumSquaresKernel(const RangesOfLaunch p, double* sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t block =
      static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  if (block >= p.first_block[p.count]) return;
  int range = 0, end = p.count;  // the block is in one of the ranges from `range` to `end`
  while (end - range > 1) {
    const int middle = (range + end) / 2;
    (p.first_block[middle] <= block ? range : end) = middle;
  }
  const int64_t begin = (block - p.first_block[range]) * native::kSumSquaresBlock;
  const float* const x = p.ranges[range].x;
  const int count = static_cast<int>(min(p.ranges[range].n - begin, native::kSumSquaresBlock));
  double sum = 0.0;
#pragma unroll 8
  for (int i = lane; i < count; i += 32) {
    const double value = static_cast<double>(x[begin + i]);
    sum += value * value;
  }
  sum = SumInWarp(sum);
  if (lane == 0) sums[block] = sum;
}

}  // namespace

void AdamStep(GpuStream& gpu, const native::AdamArgs& args, int64_t n) {
  const AdamConstants constants = native::MakeAdamConstants(args.rule);
  if (n == 0) return;
  Launch(gpu, "Adam", AdamKernel, BlocksOf(n, 4 * kThreads), kThreads, 0, constants, args, n,
         AllWide(4, args.weights, args.gradient, args.moment1, args.moment2));
}

void SumSquares(GpuStream& gpu, std::span<const FloatRange> ranges, double* sums) {
  for (size_t begin = 0; begin < ranges.size(); begin += kMaxRanges) {
    RangesOfLaunch p = {};
    int64_t num_blocks = 0;
    for (const FloatRange& range :
         ranges.subspan(begin, std::min<size_t>(kMaxRanges, ranges.size() - begin))) {
      p.first_block[p.count] = num_blocks;
      p.ranges[p.count++] = range;
      num_blocks += BlocksOf(range.n, native::kSumSquaresBlock);
    }
    p.first_block[p.count] = num_blocks;
    if (num_blocks == 0) continue;
    Launch(gpu, "SumSquares", SumSquaresKernel, BlocksOf(num_blocks, kThreads / 32), kThreads, 0, p,
           sums);
    sums += num_blocks;
  }
}

}  // namespace deepnet::cuda
