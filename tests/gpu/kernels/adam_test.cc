#include <limits>

#include <gtest/gtest.h>

#include "tests/gpu/kernels/device_testing.h"
#include "tests/trainer/kernels/native/kernel_testing.h"
#include "trainer/kernels/cuda/kernels.h"

namespace deepnet::cuda {
namespace {

using native::testing::RandomFloats;
using testing::AppendBytes;
using testing::DeviceArray;
using testing::ForThreadOrders;
using testing::Launches;

constexpr int64_t kLengths[] = {0, 1, 3, 4, 255, 1024, 1025, 4095, 4096, 4097, 9001};

// The bits of the CPU need its fused multiply-add.
bool CpuFuses() { return native::BestIsa() != native::kAllIsas[0]; }

TEST(GpuAdam, HasTheBitsOfTheCpu) {
  ASSERT_TRUE(CpuFuses());
  native::Cpu cpu(1);
  for (const int64_t n : kLengths) {
    for (const int shift : {0, 1}) {  // of the ranges in memory: aligned or not
      SCOPED_TRACE(std::to_string(n) + " shifted by " + std::to_string(shift));
      const native::AdamRule rule = {.rate = 3e-3,
                                     .weight_decay = 0.01,
                                     .gradient_scale = 0.3,
                                     .step = 7,
                                     .fairseq_epsilon = n % 2 != 0};
      const int64_t size = n + shift;
      const std::vector<float> gradient = RandomFloats(size, 1), weights = RandomFloats(size, 2);
      std::vector<float> m = RandomFloats(size, 3), v = RandomFloats(size, 4);
      for (float& x : v) x *= x;
      std::vector<float> twin = weights, twin_m = m, twin_v = v;
      native::AdamStep(cpu,
                       {twin.data() + shift, gradient.data() + shift, twin_m.data() + shift,
                        twin_v.data() + shift, rule},
                       n);
      ForThreadOrders([&](GpuStream& gpu) {
        const DeviceArray<float> w(weights), g(gradient), dm(m), dv(v);
        AdamStep(gpu,
                 {w.data() + shift, g.data() + shift, dm.data() + shift, dv.data() + shift, rule},
                 n);
        EXPECT_EQ(Launches(gpu), n == 0 ? 0 : 1);
        const std::vector<float> got = w.Read(gpu);
        EXPECT_TRUE(got == twin);
        EXPECT_TRUE(dm.Read(gpu) == twin_m);
        EXPECT_TRUE(dv.Read(gpu) == twin_v);
        std::vector<uint8_t> result;
        AppendBytes(result, got);
        return result;
      });
    }
  }
}

// All lengths at once, often enough for three launches.
TEST(GpuSumSquares, HasTheBitsOfTheCpu) {
  constexpr int kTimes = 30;
  native::Cpu cpu(1);
  const std::vector<float> x = RandomFloats(9001 + kTimes, 5, 30.0f);
  const DeviceArray<float> device_x(x);
  std::vector<FloatRange> ranges;
  std::vector<double> twin;
  for (int shift = 0; shift < kTimes; ++shift) {
    for (const int64_t n : kLengths) {
      ranges.push_back({device_x.data() + shift, n});
      std::vector<double> sums((n + native::kSumSquaresBlock - 1) / native::kSumSquaresBlock);
      native::SumSquares(cpu, x.data() + shift, n, sums);
      twin.insert(twin.end(), sums.begin(), sums.end());
    }
  }
  ForThreadOrders([&](GpuStream& gpu) {
    const DeviceArray<double> sums(twin.size());
    SumSquares(gpu, ranges, sums.data());
    EXPECT_EQ(Launches(gpu), (ranges.size() + kMaxRanges - 1) / kMaxRanges);
    const std::vector<double> got = sums.Read(gpu);
    EXPECT_TRUE(got == twin);
    std::vector<uint8_t> bytes;
    AppendBytes(bytes, got);
    return bytes;
  });
}

TEST(GpuSumSquares, OfNothingIsNotLaunched) {
  GpuStream gpu;
  gpu.StartTiming();
  const FloatRange empty = {nullptr, 0};
  SumSquares(gpu, {}, nullptr);
  SumSquares(gpu, std::span(&empty, 1), nullptr);
  EXPECT_EQ(Launches(gpu), 0);
}

TEST(GpuSumSquares, IsNotFiniteWhereAnElementIsNot) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    std::vector<float> x(5000, 1.0f);
    x[4999] = bad;
    GpuStream gpu;
    const DeviceArray<float> device_x(x);
    const DeviceArray<double> sums(size_t{2});
    const FloatRange range = {device_x.data(), 5000};
    SumSquares(gpu, std::span(&range, 1), sums.data());
    EXPECT_EQ(sums.Read(gpu)[0], 4096.0);
    EXPECT_FALSE(std::isfinite(sums.Read(gpu)[1]));
  }
}

}  // namespace
}  // namespace deepnet::cuda
