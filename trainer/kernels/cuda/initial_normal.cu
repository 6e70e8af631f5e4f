// A thread draws the four numbers of one block of random bits, one after the other: at 15 % of them
// the quantile takes its long way, which nearly every warp then goes.
#include "parallel/base/normal_quantile.h"
#include "trainer/kernels/cuda/dropout_bits.h"
#include "trainer/kernels/cuda/elements.h"
#include "trainer/kernels/cuda/kernels.h"
#include "trainer/kernels/cuda/launch.h"

namespace deepnet::cuda {
namespace {

constexpr int kThreads = 256;

struct InitialRange {
  PhiloxKey key;
  uint32_t hash_low, hash_high;
  int64_t n;
  float* values;
  float std;
  bool aligned;
};

__global__ void __launch_bounds__(kThreads) InitialNormalKernel(const InitialRange p) {
  const int64_t block = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t i = 4 * block;
  if (i >= p.n) return;
  const auto counter = static_cast<uint64_t>(block);
  uint4 bits = Philox(p.key.k0, p.key.k1,
                      make_uint4(static_cast<uint32_t>(counter),
                                 static_cast<uint32_t>(counter >> 32), p.hash_low, p.hash_high));
  float4 values = {};
#pragma unroll 1
  for (int j = 0; j < 4; ++j) {  // both turn by one number
    const float value = NormalQuantile(bits.x, [](double x) { return sqrt(x); }) * p.std;
    bits = make_uint4(bits.y, bits.z, bits.w, bits.x);
    values = make_float4(values.y, values.z, values.w, value);
  }
  const int left = static_cast<int>(min(p.n - i, int64_t{4}));
  StoreFour(p.values + i, values, left, p.aligned && left == 4);
}

}  // namespace

void InitialNormal(GpuStream& gpu, PhiloxKey key, uint64_t hash, std::span<float> values,
                   float std) {
  if (values.empty()) return;
  const InitialRange range = {.key = key,
                              .hash_low = static_cast<uint32_t>(hash),
                              .hash_high = static_cast<uint32_t>(hash >> 32),
                              .n = static_cast<int64_t>(values.size()),
                              .values = values.data(),
                              .std = std,
                              .aligned = AllWide(4, values.data())};
  Launch(gpu, "InitialNormal", InitialNormalKernel, BlocksOf(range.n, 4 * kThreads), kThreads,
         /*shared_bytes=*/0, range);
}

}  // namespace deepnet::cuda
