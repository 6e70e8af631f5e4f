// Functions of numbers in kernels, and sums over threads. e^x and the normal distribution are those
// of trainer/kernels/native/vector_math.inc, operation by operation, and have its bits wherever it
// runs. For kernel sources (.cu) only.
#pragma once

#include <cstdint>

#include "trainer/kernels/cuda/device_code.h"

namespace deepnet::cuda {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

inline constexpr float kLog2E = 1.4426950408889634f;
// Below every number but -infinity; finite, so that a difference of two is a number.
inline constexpr float kLowestFloat = -3.4028235e38f;

// e^x within 2 units in the last place for -87.33 <= x <= 88.37; 0 below, 2.4e38 above, NaN for
// NaN. x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 P(r).
__device__ inline float Exp(float x) {
  constexpr float kLowest = -87.33654f, kHighest = 88.37f;
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float at_least = kLowest > x ? kLowest : x;
  const float clamped = kHighest < at_least ? kHighest : at_least;
  const float shifted = fmaf(clamped, kLog2E, kMagic);
  const float n = shifted - kMagic;
  float r = fmaf(n, -0.693359375f, clamped);
  r = fmaf(n, 2.12194440e-4f, r);
  float p = 0.0013926176f;
  p = fmaf(p, r, 0.0083631731f);
  p = fmaf(p, r, 0.041666555f);
  p = fmaf(p, r, 0.16666577f);
  p = fmaf(p, r, 0.5f);
  const float e = fmaf(p, r * r, r) + 1.0f;
  const float power = __uint_as_float((__float_as_uint(shifted) << 23) + 0x3F800000u);
  return x < kLowest ? 0.0f : e * power;
}

// The normal distribution at x: *density = exp(-x^2 / 2) / sqrt(2 pi); returns Phi(x). With
// z = |x| / sqrt(2) and t = 1 / (1 + 0.3 z): erfc(z) = exp(-z^2) t Q(t), relative error 2e-7.
__device__ inline float NormalCumulative(float x, float* density) {
  const float size = fabsf(x);
  const float magnitude = size > 14.0f ? 14.0f : size;  // NaN stays
  const float z = magnitude * 0.70710678f;
  const float t = 1.0f / fmaf(z, 0.3f, 1.0f);
  float q = -0.130845166f;
  q = fmaf(q, t, 0.49228653f);
  q = fmaf(q, t, -0.526856074f);
  q = fmaf(q, t, 0.565285958f);
  q = fmaf(q, t, -0.107486531f);
  q = fmaf(q, t, 0.220737311f);
  q = fmaf(q, t, 0.146750589f);
  q = fmaf(q, t, 0.170954553f);
  q = fmaf(q, t, 0.169172808f);
  const float e = Exp(magnitude * magnitude * -0.5f);
  *density = e * 0.39894228f;
  const float tail = e * t * q * 0.5f;
  return x > 0.0f ? 1.0f - tail : tail;
}

// Sum over groups of `lanes` neighbours of a warp, a power of two; the same bits in all of them.
// All 32 lanes call it.
template <typename T>
__device__ inline T SumInWarp(T v, int lanes = 32) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    v += __shfl_xor_sync(kAllLanes, v, offset);
  }
  return v;
}

__device__ inline float2 SumInWarp(float2 v, int lanes = 32) {
  return make_float2(SumInWarp(v.x, lanes), SumInWarp(v.y, lanes));
}

__device__ inline float MaxInWarp(float v, int lanes = 32) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, offset));
  }
  return v;
}

__device__ inline void AddTo(float& sum, float v) { sum += v; }
__device__ inline void AddTo(float2& sum, float2 v) { sum = make_float2(sum.x + v.x, sum.y + v.y); }

// Sum, or both sums of pairs, over the threads of a block that have one threadIdx.y; blockDim.x is
// a power of two. All threads of the block call it, the same number of times. `buffer` is shared
// memory and holds a T for each warp; the next call needs another one, the call after that may have
// it again.
template <typename T>
__device__ inline T SumInRow(T v, T* buffer) {
  const int threads = static_cast<int>(blockDim.x);
  v = SumInWarp(v, threads < 32 ? threads : 32);
  if (threads <= 32) return v;
  const int warps = threads / 32;
  T* const mine = buffer + threadIdx.y * warps;
  if (threadIdx.x % 32 == 0) mine[threadIdx.x / 32] = v;
  __syncthreads();
  v = mine[0];
  for (int w = 1; w < warps; ++w) AddTo(v, mine[w]);
  return v;
}

}  // namespace deepnet::cuda
