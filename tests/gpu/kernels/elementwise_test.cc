// Pointwise kernels for GPUs against those for CPUs.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/gpu/kernels/device_testing.h"
#include "tests/gpu/kernels/twin.h"
#include "tests/trainer/kernels/native/dropout_testing.h"
#include "trainer/kernels/cuda/kernels.h"
#include "trainer/kernels/native/residual_norm.h"

namespace deepnet::cuda::testing {
namespace {

const std::vector<Layout> kLayouts =
    Some<Layout>({{}, {.margin = 3}, {.margin = 8}, {.offset = 1}}, 4);

struct Shape {
  int64_t rows, cols;
};
const std::vector<Shape> kShapes =
    Some<Shape>({{0, 8}, {1, 1}, {3, 7}, {5, 64}, {2, 130}, {2, 1024}, {1, 1033}}, 5);

// Calls body(layout, element, shape) for all of them.
template <typename F>
void ForAll(const F& body) {
  for (const Layout& layout : kLayouts) {
    for (const Element element : kElements) {
      for (const Shape& shape : kShapes) {
        SCOPED_TRACE(NameOf(element) + " " + std::to_string(shape.rows) + " x " +
                     std::to_string(shape.cols) + ", margin " + std::to_string(layout.margin) +
                     ", offset " + std::to_string(layout.offset));
        body(layout, element, shape);
      }
    }
  }
}

TEST(GpuAdd, AddsEveryElement) {
  for (const int64_t offset : {0, 1}) {
    for (const int64_t n : Some<int64_t>({0, 1, 7, 8, 1023, 1024, 1025, 5000}, 4)) {
      Twin twin({.offset = offset});
      TwinArray<float>& x = twin.RandomFloats(n, 1);
      TwinArray<float>& y = twin.RandomFloats(n, 2);
      twin.Run([&] { native::Add(TheCpu(), x.at(kCpu), y.at(kCpu), n); },
               [&](GpuStream& gpu) { Add(gpu, x.at(kGpu), y.at(kGpu), n); });
      ExpectSame(y);
      EXPECT_EQ(twin.launches(), n > 0 ? 1 : 0);
    }
  }
}

// The same operations in the same order as on CPUs with a fused multiply-add: 1 allows for one
// without.
constexpr double kGeluUlps = 8;

TEST(GpuGelu, ForwardAndBackwardAreTheCpus) {
  ForAll([](const Layout& layout, Element element, const Shape& shape) {
    Twin twin(layout);
    TwinMatrix& x = twin.RandomMatrix(element, shape.rows, shape.cols, 1, 2.0f);
    TwinMatrix& dy = twin.RandomMatrix(element, shape.rows, shape.cols, 2);
    TwinMatrix& y = twin.NewMatrix(element, shape.rows, shape.cols);
    TwinMatrix& dx = twin.NewMatrix(element, shape.rows, shape.cols);
    twin.Run(
        [&] {
          native::GeluForward(TheCpu(), x.at(kCpu), y.at(kCpu));
          native::GeluBackward(TheCpu(), x.at(kCpu), dy.at(kCpu), dx.at(kCpu));
        },
        [&](GpuStream& gpu) {
          GeluForward(gpu, x.at(kGpu), y.at(kGpu));
          GeluBackward(gpu, x.at(kGpu), dy.at(kGpu), dx.at(kGpu));
        });
    ExpectClose(y, kGeluUlps);
    ExpectClose(dx, kGeluUlps);
  });
}

TEST(GpuGelu, WorksInPlace) {
  Twin twin;
  TwinMatrix& x = twin.RandomMatrix(Element::kFloat32, 3, 50, 1);
  TwinMatrix& dy = twin.RandomMatrix(Element::kFloat32, 3, 50, 2);
  twin.Run(
      [&] {
        native::GeluBackward(TheCpu(), x.at(kCpu), dy.at(kCpu), dy.at(kCpu));
        native::GeluForward(TheCpu(), x.at(kCpu), x.at(kCpu));
      },
      [&](GpuStream& gpu) {
        GeluBackward(gpu, x.at(kGpu), dy.at(kGpu), dy.at(kGpu));
        GeluForward(gpu, x.at(kGpu), x.at(kGpu));
      });
  ExpectClose(x, kGeluUlps);
  ExpectClose(dy, kGeluUlps);
}

TEST(GpuRelu, ZeroesWhatIsNotPositiveForwardAndBackward) {
  ForAll([](const Layout& layout, Element element, const Shape& shape) {
    Twin twin(layout);
    TwinMatrix& x = twin.RandomMatrix(element, shape.rows, shape.cols, 1);
    TwinMatrix& dx = twin.RandomMatrix(element, shape.rows, shape.cols, 2);
    twin.Run([] {},
             [&](GpuStream& gpu) {
               ReluForward(gpu, x.at(kGpu));
               ReluBackward(gpu, x.at(kGpu), dx.at(kGpu));
             });
    // Nothing ran on the CPU's side: it has the arguments.
    std::vector<double> y = x.Cpu(), dy = dx.Cpu();
    for (size_t i = 0; i < y.size(); ++i) {
      if (!(y[i] > 0)) y[i] = dy[i] = 0;
    }
    EXPECT_EQ(x.Gpu(), y);
    EXPECT_EQ(dx.Gpu(), dy);
  });
}

TEST(GpuRelu, KeepsNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Twin twin;
  TwinMatrix& x = twin.MatrixOf(Element::kFloat32, 1, 3, {nan, -1.0f, 2.0f});
  twin.Run([] {}, [&](GpuStream& gpu) { ReluForward(gpu, x.at(kGpu)); });
  EXPECT_TRUE(std::isnan(x.Gpu()[0]));
  EXPECT_EQ(x.Gpu()[1], 0.0);
  EXPECT_EQ(x.Gpu()[2], 2.0);
}

TEST(GpuCast, ConvertsEveryElementToEveryOther) {
  for (const Element from : kElements) {
    for (const Element to : kElements) {
      for (const Layout& layout : kLayouts) {
        for (const Shape& shape : kShapes) {
          SCOPED_TRACE(NameOf(from) + " to " + NameOf(to));
          Twin twin(layout);
          TwinMatrix& x = twin.RandomMatrix(from, shape.rows, shape.cols, 1, 3.0f);
          TwinMatrix& y = twin.NewMatrix(to, shape.rows, shape.cols);
          twin.Run([&] { native::Cast(TheCpu(), x.at(kCpu), y.at(kCpu)); },
                   [&](GpuStream& gpu) { Cast(gpu, x.at(kGpu), y.at(kGpu)); });
          ExpectSame(y);
        }
      }
    }
  }
}

// Beside the largest float16, ties, subnormal numbers and zeros.
TEST(GpuCast, RoundsToTheNearestFloat16WithTiesToEven) {
  const std::vector<float> x = {65504.0f,   -65519.0f,  2049.0f, 2051.0f, 0x1.0p-24f,
                                0x1.8p-25f, 0x1.0p-25f, -0.0f,   1e-9f};
  Twin twin;
  const auto cols = static_cast<int64_t>(x.size());
  TwinMatrix& from = twin.MatrixOf(Element::kFloat32, 1, cols, x);
  TwinMatrix& to = twin.NewMatrix(Element::kFloat16, 1, cols);
  twin.Run([] {}, [&](GpuStream& gpu) { Cast(gpu, from.at(kGpu), to.at(kGpu)); });
  EXPECT_EQ(to.Gpu(), (std::vector<double>{65504.0, -65504.0, 2048.0, 2052.0, 0x1.0p-24, 0x1.0p-24,
                                           0.0, 0.0, 0.0}));
}

TEST(GpuAddBranchBackward, MasksAsDropoutDoes) {
  ForAll([](const Layout& layout, Element element, const Shape& shape) {
    const DropoutSite key = {.seed = 5, .step = 3, .layer = 1, .site = 2, .rate = 0.25};
    Twin twin(layout);
    TwinIds ids(twin, shape.rows);
    TwinMatrix& dx = twin.RandomMatrix(Element::kFloat32, shape.rows, shape.cols, 1);
    TwinMatrix& masked = twin.NewMatrix(element, shape.rows, shape.cols);
    TwinMatrix& plain = twin.NewMatrix(element, shape.rows, shape.cols);
    // The CPU's twin masks after it has rounded: here before.
    TwinMatrix& floats = twin.NewMatrix(Element::kFloat32, shape.rows, shape.cols);
    TwinArray<uint8_t>& mask = twin.RandomBytes(shape.rows * native::MaskBytes(shape.cols));
    twin.Run(
        [&] {
          native::DropoutMask(TheCpu(), key, ids.at(kCpu), shape.rows, shape.cols, mask.at(kCpu));
          native::Cast(TheCpu(), dx.at(kCpu), floats.at(kCpu));
          native::DropoutBackward(TheCpu(), key.rate, mask.at(kCpu), floats.at(kCpu));
          native::Cast(TheCpu(), floats.at(kCpu), masked.at(kCpu));
          native::Cast(TheCpu(), dx.at(kCpu), plain.at(kCpu));
        },
        [&](GpuStream& gpu) {
          CopyToDevice(mask.at(kGpu), mask.at(kCpu), mask.Cpu().size());
          AddBranchBackward(gpu, dx.at(kGpu), key.rate, mask.at(kGpu), masked.at(kGpu));
          AddBranchBackward(gpu, dx.at(kGpu), 0.0, nullptr, plain.at(kGpu));
        });
    ExpectSame(masked);
    ExpectSame(plain);
  });
}

// --- ScaleShift ---

struct ScaleShiftCase {
  int64_t rows, cols, groups;
  bool has_scale = true, has_shift = true;
};

native::ConstMatrix ScaleOf(const ScaleShiftCase& p, const float* factors) {
  if (!p.has_scale) return {};
  return {factors, Element::kFloat32, 1, p.groups, p.groups};
}

class GpuScaleShift : public ::testing::TestWithParam<ScaleShiftCase> {};

TEST_P(GpuScaleShift, ForwardIsTheCpusToTheBit) {
  const ScaleShiftCase& p = GetParam();
  for (const Element element : kElements) {
    for (const Layout& layout : kLayouts) {
      Twin twin(layout);
      TwinMatrix& x = twin.RandomMatrix(element, p.rows, p.cols, 1);
      TwinMatrix& y = twin.NewMatrix(element, p.rows, p.cols);
      TwinArray<float>& scale = twin.RandomFloats(p.groups, 2);
      TwinArray<float>& shift = twin.RandomFloats(1, 3);
      const auto args = [&](Side side) {
        return native::ScaleShiftArgs{.rows = p.rows,
                                      .x_RD = x.at(side),
                                      .scale_G = ScaleOf(p, scale.at(side)),
                                      .shift_1 = p.has_shift ? shift.at(side) : nullptr,
                                      .y_RD = y.at(side)};
      };
      twin.Run([&] { native::ScaleShiftForward(TheCpu(), args(kCpu)); },
               [&](GpuStream& gpu) { ScaleShiftForward(gpu, args(kGpu)); });
      ExpectSame(y);
    }
  }
}

TEST_P(GpuScaleShift, BackwardIsTheCpus) {
  const ScaleShiftCase& p = GetParam();
  for (const Element element : kElements) {
    for (const Layout& layout : kLayouts) {
      Twin twin(layout);
      TwinMatrix& dy = twin.RandomMatrix(element, p.rows, p.cols, 1);
      TwinMatrix& x = twin.RandomMatrix(element, p.rows, p.cols, 2);
      TwinArray<float>& scale = twin.RandomFloats(p.groups, 3);
      TwinArray<float>& shift = twin.RandomFloats(1, 4);
      TwinArray<float>& d_scale = twin.RandomFloats(p.groups, 5);
      TwinArray<float>& d_shift = twin.RandomFloats(1, 6);
      const auto args = [&](Side side) {
        return native::ScaleShiftGradArgs{.rows = p.rows,
                                          .dy_RD = dy.at(side),
                                          .x_RD = x.at(side),
                                          .scale_G = ScaleOf(p, scale.at(side)),
                                          .shift_1 = p.has_shift ? shift.at(side) : nullptr,
                                          .dx_RD = dy.at(side),
                                          .dscale_G = p.has_scale ? d_scale.at(side) : nullptr,
                                          .dshift_1 = p.has_shift ? d_shift.at(side) : nullptr};
      };
      twin.Run([&] { native::ScaleShiftBackward(TheCpu(), args(kCpu)); },
               [&](GpuStream& gpu) { ScaleShiftBackward(gpu, args(kGpu)); });
      ExpectSame(dy);
      // Sums of n terms in another order: as sqrt(n) units of the size of a term.
      const double terms = static_cast<double>(p.rows * p.cols);
      ExpectClose(d_scale, 8 * std::sqrt(terms));
      ExpectClose(d_shift, 8 * std::sqrt(terms));
      EXPECT_EQ(twin.launches(), p.rows == 0 ? 0 : p.has_scale || p.has_shift ? 2 : 1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, GpuScaleShift,
                         ::testing::ValuesIn(Some<ScaleShiftCase>({{0, 8, 1},
                                                                   {1, 1, 1},
                                                                   {3, 12, 4},
                                                                   {70, 64, 64},
                                                                   {5, 130, 1},
                                                                   {4, 130, 10, true, false},
                                                                   {6, 20, 1, false, true},
                                                                   {2, 300, 3},
                                                                   {3, 9, 1, false, false}},
                                                                  5)));

}  // namespace
}  // namespace deepnet::cuda::testing
