#include "trainer/kernels/cuda/optimizer.h"

#include <limits>

#include <gtest/gtest.h>

#include "tests/gpu/kernels/device_testing.h"
#include "tests/trainer/kernels/native/kernel_testing.h"

namespace deepnet::cuda {
namespace {

using native::testing::RandomFloats;
using testing::AppendBytes;
using testing::DeviceArray;
using testing::Element;
using testing::ForThreadOrders;
using testing::Rounded;

constexpr int64_t kLengths[] = {0, 1, 3, 4, 255, 1024, 1025, 4095, 4096, 4097, 9001};

// The bits of the CPU need its fused multiply-add.
bool CpuFuses() { return native::BestIsa() != native::kAllIsas[0]; }

TEST(GpuAdam, HasTheBitsOfTheCpuAndWritesTheOperand) {
  ASSERT_TRUE(CpuFuses());
  native::ThreadPool pool(1);
  for (const int64_t n : kLengths) {
    for (const int shift : {0, 1}) {  // of the ranges in memory: aligned or not
      SCOPED_TRACE(std::to_string(n) + " shifted by " + std::to_string(shift));
      const bool torch = n % 2 == 0;
      const native::AdamArgs args = {
          .learning_rate = 3e-3,
          .beta2 = 0.98,
          .weight_decay = 0.01,
          .step = 7,
          .gradient_scale = 0.3f,
          .convention = torch ? native::AdamConvention::kTorch : native::AdamConvention::kFairseq};
      const int64_t size = n + shift;
      const std::vector<float> gradient = RandomFloats(size, 1), weights = RandomFloats(size, 2);
      std::vector<float> m = RandomFloats(size, 3), v = RandomFloats(size, 4);
      for (float& x : v) x *= x;
      std::vector<float> twin = weights, twin_m = m, twin_v = v;
      native::AdamStep(pool, native::Table(native::BestIsa()), args, n, twin.data() + shift,
                       gradient.data() + shift, twin_m.data() + shift, twin_v.data() + shift);
      for (const Element element : {Element::kFloat32, Element::kBfloat16, Element::kFloat16}) {
        ForThreadOrders([&](GpuStream& gpu) {
          const DeviceArray<float> w(weights), g(gradient), dm(m), dv(v);
          const int64_t bytes = testing::BytesOf(element);
          const DeviceArray<uint8_t> operand(std::vector<uint8_t>(size * bytes));
          AdamStep(gpu, args, n, w.data() + shift, g.data() + shift, dm.data() + shift,
                   dv.data() + shift, operand.data() + shift * bytes, element);
          EXPECT_EQ(gpu.launches(), n == 0 ? 0 : 1);
          const std::vector<float> got = w.Read(gpu);
          EXPECT_TRUE(got == twin);
          EXPECT_TRUE(dm.Read(gpu) == twin_m);
          EXPECT_TRUE(dv.Read(gpu) == twin_v);
          const std::vector<uint8_t> raw = operand.Read(gpu);
          const std::vector<float> rounded = Rounded(element, twin);
          for (int64_t i = 0; i < size; ++i) {
            uint32_t bits = 0;
            std::memcpy(&bits, raw.data() + i * bytes, bytes);
            EXPECT_EQ(testing::FromBits(element, bits), i < shift ? 0.0f : rounded[i]) << i;
          }
          std::vector<uint8_t> result;
          AppendBytes(result, got);
          return result;
        });
      }
    }
  }
}

TEST(GpuAdam, WritesNoOperandWhereThereIsNone) {
  GpuStream gpu;
  const DeviceArray<float> w(std::vector<float>(5, 1.0f)), g(std::vector<float>(5, 1.0f));
  const DeviceArray<float> m(std::vector<float>(5, 0.0f)), v(std::vector<float>(5, 0.0f));
  AdamStep(gpu, {.learning_rate = 0.5, .step = 1}, 5, w.data(), g.data(), m.data(), v.data());
  for (const float x : w.Read(gpu)) EXPECT_NEAR(x, 0.5f, 1e-4f);
}

TEST(GpuSumSquares, HasTheBitsOfTheCpu) {
  native::ThreadPool pool(1);
  for (const int64_t n : kLengths) {
    SCOPED_TRACE(n);
    const std::vector<float> x = RandomFloats(n, 5, 30.0f);
    const int64_t num_blocks = (n + native::kSumSquaresBlock - 1) / native::kSumSquaresBlock;
    std::vector<double> twin(num_blocks);
    native::SumSquares(pool, native::Table(native::BestIsa()), x.data(), n, twin);
    const DeviceArray<float> device_x(x);
    ForThreadOrders([&](GpuStream& gpu) {
      const DeviceArray<double> sums(static_cast<size_t>(num_blocks));
      SumSquares(gpu, device_x.data(), n, sums.data());
      EXPECT_EQ(gpu.launches(), n == 0 ? 0 : 1);
      const std::vector<double> got = sums.Read(gpu);
      EXPECT_TRUE(got == twin);
      std::vector<uint8_t> bytes;
      AppendBytes(bytes, got);
      return bytes;
    });
  }
}

TEST(GpuSumSquares, IsNotFiniteWhereAnElementIsNot) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    std::vector<float> x(5000, 1.0f);
    x[4999] = bad;
    GpuStream gpu;
    const DeviceArray<float> device_x(x);
    const DeviceArray<double> sums(size_t{2});
    SumSquares(gpu, device_x.data(), 5000, sums.data());
    EXPECT_EQ(sums.Read(gpu)[0], 4096.0);
    EXPECT_FALSE(std::isfinite(sums.Read(gpu)[1]));
  }
}

TEST(GpuCountNonFinite, CountsEveryOne) {
  for (const int64_t n : kLengths) {
    for (const int shift : {0, 1}) {
      SCOPED_TRACE(std::to_string(n) + " shifted by " + std::to_string(shift));
      std::vector<float> x(n + shift, std::numeric_limits<float>::max());
      unsigned long long expected = 5;
      for (int64_t i = shift; i < n + shift; ++i) {
        if (i % 7 != 3 && i != n + shift - 1) continue;
        x[i] = i % 2 == 0 ? std::nanf("") : -std::numeric_limits<float>::infinity();
        ++expected;
      }
      const DeviceArray<float> device_x(x);
      ForThreadOrders([&](GpuStream& gpu) {
        const DeviceArray<unsigned long long> count(std::vector<unsigned long long>{5});
        CountNonFinite(gpu, device_x.data() + shift, n, count.data());
        const std::vector<unsigned long long> got = count.Read(gpu);
        EXPECT_EQ(got[0], expected);
        std::vector<uint8_t> bytes;
        AppendBytes(bytes, got);
        return bytes;
      });
    }
  }
}

}  // namespace
}  // namespace deepnet::cuda
