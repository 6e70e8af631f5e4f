// Dropout on a GPU: the CPU's bits, everywhere.
#include <vector>

#include <gtest/gtest.h>

#include "tests/gpu/kernels/twin.h"
#include "trainer/kernels/cuda/kernels.h"

namespace deepnet::cuda::testing {
namespace {

using native::MaskBytes;

constexpr DropoutSite kFirstKey = {
    .seed = 1, .step = 1, .stack = 0, .layer = 0, .site = 1, .rate = 0.1};
constexpr DropoutSite kFarKey = {.seed = 0xDEADBEEF12345678,
                                 .step = (int64_t{5} << 32) + 77,
                                 .stack = 1,
                                 .layer = 499,
                                 .site = 7,
                                 .rate = 0.5};

std::vector<uint8_t> MaskOfOneRow(const DropoutSite& key, uint32_t pair, uint32_t position) {
  Twin twin;
  TwinArray<uint32_t>& pairs = twin.Numbers({pair});
  TwinArray<uint32_t>& positions = twin.Numbers({position});
  TwinArray<uint8_t>& mask = twin.RandomBytes(12);
  TwinMatrix& x = twin.RandomMatrix(Element::kFloat32, 1, 96, 1);
  twin.Run([] {},
           [&](GpuStream& gpu) {
             DropoutForward(gpu, key, {.positions = positions.at(kGpu), .pairs = pairs.at(kGpu)},
                            x.at(kGpu), mask.at(kGpu));
           });
  return mask.Gpu();
}

// The vectors of tests/trainer/kernels/native/dropout_test.cc.
TEST(GpuDropout, MasksAreTheFrozenOnes) {
  EXPECT_EQ(MaskOfOneRow(kFirstKey, 0, 0),
            (std::vector<uint8_t>{0xf9, 0xff, 0xfb, 0xfd, 0xdd, 0x73, 0xfe, 0xde, 0xdb, 0xff, 0xff,
                                  0xfe}));
  EXPECT_EQ(MaskOfOneRow(kFarKey, 123456, 1023),
            (std::vector<uint8_t>{0xf9, 0x12, 0xd1, 0x73, 0x1d, 0xf5, 0x48, 0x1c, 0xe8, 0x8b, 0xad,
                                  0x2a}));
}

TEST(GpuDropout, MasksAreTheCpusAtEveryShape) {
  for (const int64_t rows : Some<int64_t>({0, 3, 1, 35}, 2)) {
    for (const int64_t cols : Some<int64_t>({1, 7, 8, 64, 130, 1024, 1032}, 4)) {
      SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(cols));
      Twin twin;
      TwinIds ids(twin, rows);
      TwinArray<uint8_t>& mask = twin.RandomBytes(rows * MaskBytes(cols));
      TwinMatrix& x = twin.RandomMatrix(Element::kFloat32, rows, cols, 1);
      twin.Run(
          [&] {
            native::DropoutForward(TheCpu(), kFarKey, ids.at(kCpu), x.at(kCpu), mask.at(kCpu));
          },
          [&](GpuStream& gpu) {
            DropoutForward(gpu, kFarKey, ids.at(kGpu), x.at(kGpu), mask.at(kGpu));
          });
      ExpectSame(mask);
      ExpectSame(x);
      EXPECT_EQ(twin.launches(), rows > 0 ? 1 : 0);
    }
  }
}

TEST(GpuDropout, ForwardAndBackwardAreTheCpusToTheBit) {
  const std::vector<Layout> layouts = {{}, {.margin = 3}, {.margin = 8}, {.offset = 1}};
  for (const Element element : Some(kElements, 2)) {
    for (const Layout& layout : Some(layouts, 2)) {
      for (const int64_t cols : Some<int64_t>({1, 7, 64, 130}, 4)) {
        SCOPED_TRACE(NameOf(element) + ", " + std::to_string(cols) + " columns, margin " +
                     std::to_string(layout.margin));
        const int64_t rows = 17;
        Twin twin(layout);
        TwinIds ids(twin, rows);
        TwinMatrix& x = twin.RandomMatrix(element, rows, cols, 3);
        TwinMatrix& dx = twin.RandomMatrix(element, rows, cols, 4);
        TwinArray<uint8_t>& mask = twin.RandomBytes(rows * MaskBytes(cols));
        twin.Run(
            [&] {
              native::DropoutForward(TheCpu(), kFirstKey, ids.at(kCpu), x.at(kCpu), mask.at(kCpu));
              native::DropoutBackward(TheCpu(), kFirstKey.rate, mask.at(kCpu), dx.at(kCpu));
            },
            [&](GpuStream& gpu) {
              DropoutForward(gpu, kFirstKey, ids.at(kGpu), x.at(kGpu), mask.at(kGpu));
              DropoutBackward(gpu, kFirstKey.rate, mask.at(kGpu), dx.at(kGpu));
            });
        ExpectSame(mask);
        ExpectSame(x);
        ExpectSame(dx);
        EXPECT_EQ(twin.launches(), 2);
      }
    }
  }
}

TEST(GpuDropout, RateZeroLaunchesNothing) {
  Twin twin;
  TwinMatrix& x = twin.RandomMatrix(Element::kFloat32, 2, 9, 1);
  twin.Run([] {},
           [&](GpuStream& gpu) {
             DropoutForward(gpu, DropoutSite{}, PackedRows{}, x.at(kGpu), nullptr);
             DropoutBackward(gpu, 0.0, nullptr, x.at(kGpu));
           });
  ExpectSame(x);
  EXPECT_EQ(twin.launches(), 0);
}

}  // namespace
}  // namespace deepnet::cuda::testing
