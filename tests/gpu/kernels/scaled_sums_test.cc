// Bias gradients and scaled streams, for which no kernel for CPUs stands: against the same
// operations one by one, sums in double precision.
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/gpu/kernels/device_testing.h"
#include "tests/gpu/kernels/twin.h"
#include "trainer/kernels/cuda/kernels.h"
#include "trainer/kernels/kernel_sizes.h"

namespace deepnet::cuda::testing {
namespace {

// The arguments of all functions, in matrices of one shape.
struct Streams {
  Streams(Layout layout, Element element, int64_t num_rows, int64_t num_cols)
      : twin(layout),
        rows(num_rows),
        cols(num_cols),
        x(twin.RandomMatrix(element, rows, cols, 1)),
        y(twin.RandomMatrix(element, rows, cols, 2)),
        bias(twin.RandomFloats(cols, 3)),
        factor(twin.Floats({0.3f})),
        dfactor(twin.Floats({-2.0f})) {}

  // Returns what a kernel writes to a matrix: one(x, y) for each element of both.
  template <typename F>
  std::vector<double> Each(const F& one) const {
    const std::vector<double> of_x = x.Cpu(), of_y = y.Cpu();
    std::vector<float> values;
    for (size_t i = 0; i < of_x.size(); ++i) {
      values.push_back(one(static_cast<float>(of_x[i]), static_cast<float>(of_y[i])));
    }
    values = Rounded(x.element(), std::move(values));
    return {values.begin(), values.end()};
  }

  Twin twin;
  const int64_t rows, cols;
  TwinMatrix& x;
  TwinMatrix& y;
  TwinArray<float>& bias;
  TwinArray<float>& factor;
  TwinArray<float>& dfactor;
};

// Calls body(streams) for all shapes, elements and alignments of rows.
template <typename F>
void ForAll(const F& body) {
  for (const Layout& layout : Some<Layout>({{.margin = 3}, {.margin = 6}}, 2)) {
    for (const Element element : kElements) {
      for (const int64_t rows : Some<int64_t>({0, 1, 193, 513}, 4)) {
        for (const int64_t cols : Some<int64_t>({1, 7, 33, 130, 1033, 2050}, 4)) {
          SCOPED_TRACE(NameOf(element) + " " + std::to_string(rows) + " x " + std::to_string(cols) +
                       ", margin " + std::to_string(layout.margin));
          Streams streams(layout, element, rows, cols);
          body(streams);
        }
      }
    }
  }
}

int64_t LaunchesOfSums(int64_t rows) { return rows == 0 ? 0 : rows <= native::kFewRows ? 1 : 2; }

// Every column: as close as an addition in float32 for every four terms of the same sign.
void ExpectColumnSums(const Streams& s, const std::vector<double>& terms) {
  const std::vector<float> before = s.bias.Cpu(), after = s.bias.Gpu();
  for (int64_t c = 0; c < s.cols; ++c) {
    double sum = before[c], size = std::abs(sum);
    for (int64_t r = 0; r < s.rows; ++r) {
      sum += terms[r * s.cols + c];
      size += std::abs(terms[r * s.cols + c]);
    }
    ASSERT_NEAR(after[c], sum, 4 * 0x1p-24 * size) << "column " << c;
  }
}

TEST(GpuAddBiasGradient, AddsTheSumOfEveryColumn) {
  ForAll([](Streams& s) {
    s.twin.Run([] {}, [&](GpuStream& gpu) { AddBiasGradient(gpu, s.x.at(kGpu), s.bias.at(kGpu)); });
    ExpectColumnSums(s, s.x.Cpu());
    EXPECT_EQ(s.x.Gpu(), s.x.Cpu());
    EXPECT_EQ(s.twin.launches(), LaunchesOfSums(s.rows));
  });
}

// 35 runs: more than AddColumnSums has groups of threads. Two blocks of columns; for
// ThreadSanitizer, which checks a block's threads, one with columns for one thread of a group.
TEST(GpuAddBiasGradient, RowsOfZerosBehindTheOthersChangeNoBit) {
  constexpr int64_t kRows = 2177, kPadded = 2500;
  const int64_t cols = Some<int64_t>({264, 8}, 2).front();
  for (const int64_t rows : Some<int64_t>({100, kRows}, 2)) {
    SCOPED_TRACE(rows);
    Streams s({}, Element::kBfloat16, rows, cols);
    std::vector<float> padded;
    for (const double value : s.x.Cpu()) padded.push_back(static_cast<float>(value));
    padded.resize(kPadded * cols);
    TwinMatrix& all = s.twin.MatrixOf(Element::kBfloat16, kPadded, cols, padded);
    TwinArray<float>& bias = s.twin.RandomFloats(cols, 3);
    s.twin.Run([] {},
               [&](GpuStream& gpu) {
                 AddBiasGradient(gpu, s.x.at(kGpu), s.bias.at(kGpu));
                 AddBiasGradient(gpu, all.at(kGpu), bias.at(kGpu));
               });
    ExpectColumnSums(s, s.x.Cpu());
    EXPECT_EQ(s.bias.Gpu(), bias.Gpu());
  }
}

TEST(GpuReluBackwardWithBias, IsBothOfThemToTheBit) {
  ForAll([](Streams& s) {
    TwinMatrix& dx = s.twin.RandomMatrix(s.x.element(), s.rows, s.cols, 2);  // as y
    TwinArray<float>& bias = s.twin.RandomFloats(s.cols, 3);
    s.twin.Run([] {},
               [&](GpuStream& gpu) {
                 ReluBackwardWithBias(gpu, s.x.at(kGpu), s.y.at(kGpu), s.bias.at(kGpu));
                 EXPECT_EQ(Launches(gpu), LaunchesOfSums(s.rows));
                 ReluBackward(gpu, s.x.at(kGpu), dx.at(kGpu));
                 AddBiasGradient(gpu, dx.at(kGpu), bias.at(kGpu));
               });
    const std::vector<double> masked = s.Each([](float x, float y) { return x > 0 ? y : 0.0f; });
    EXPECT_EQ(s.y.Gpu(), masked);
    EXPECT_EQ(dx.Gpu(), masked);
    ExpectColumnSums(s, masked);
    EXPECT_EQ(s.bias.Gpu(), bias.Gpu());
  });
}

TEST(GpuScale, MultipliesEveryElement) {
  ForAll([](Streams& s) {
    s.twin.Run([] {}, [&](GpuStream& gpu) { Scale(gpu, 0.7f, s.x.at(kGpu)); });
    EXPECT_EQ(s.x.Gpu(), s.Each([](float x, float) { return 0.7f * x; }));
    EXPECT_EQ(s.twin.launches(), s.rows == 0 ? 0 : 1);
  });
}

TEST(GpuAddScaled, AddsEveryElementTimesTheFactor) {
  ForAll([](Streams& s) {
    s.twin.Run(
        [] {},
        [&](GpuStream& gpu) { AddScaled(gpu, s.x.at(kGpu), s.factor.at(kGpu), s.y.at(kGpu)); });
    EXPECT_EQ(s.y.Gpu(), s.Each([](float x, float y) { return y + 0.3f * x; }));
    EXPECT_EQ(s.twin.launches(), s.rows == 0 ? 0 : 1);
  });
}

TEST(GpuAddScaledBackward, AddsToTheStreamAndTheProductToTheFactor) {
  ForAll([](Streams& s) {
    TwinMatrix& x = s.twin.RandomMatrix(s.x.element(), s.rows, s.cols, 4);
    s.twin.Run([] {},
               [&](GpuStream& gpu) {
                 AddScaledBackward(gpu, s.x.at(kGpu), x.at(kGpu), s.factor.at(kGpu), s.y.at(kGpu),
                                   s.dfactor.at(kGpu));
               });
    EXPECT_EQ(s.y.Gpu(), s.Each([](float dy, float dx) { return dx + 0.3f * dy; }));
    const std::vector<double> a = s.x.Cpu(), b = x.Cpu();
    double dot = s.dfactor.Cpu()[0], size = std::abs(dot);
    for (size_t i = 0; i < a.size(); ++i) {
      dot += a[i] * b[i];
      size += std::abs(a[i] * b[i]);
    }
    EXPECT_NEAR(s.dfactor.Gpu()[0], dot, 4 * 0x1p-24 * size);
    EXPECT_EQ(s.twin.launches(), s.rows == 0 ? 0 : 3);
  });
}

}  // namespace
}  // namespace deepnet::cuda::testing
