#include "trainer/kernels/native/elementwise.h"

#include <gtest/gtest.h>

#include "tests/trainer/kernels/native/kernel_testing.h"

namespace deepnet::native {
namespace {

using testing::Doubles;
using testing::ForEachIsaAndThreads;
using testing::Operand;
using testing::RandomFloats;
using testing::RelativeError;
using testing::Tolerance;

constexpr Element kElements[] = {Element::kFloat32, Element::kBfloat16};

double Gelu(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }

TEST(Add, AddsEveryElement) {
  for (const int64_t n : {1, 16, 33, 50000}) {
    const std::vector<float> x = RandomFloats(n, 1), y = RandomFloats(n, 2);
    ForEachIsaAndThreads([&](Cpu& cpu) {
      std::vector<float> sum = y;
      Add(cpu, x.data(), sum.data(), n);
      for (int64_t i = 0; i < n; ++i) EXPECT_EQ(sum[i], x[i] + y[i]);
      return Doubles(sum);
    });
  }
}

TEST(Gelu, ForwardAndBackwardAreTheExactForm) {
  const int64_t rows = 40, cols = 37;
  for (const Element element : kElements) {
    Operand x = Operand::Of(element, rows, cols, RandomFloats(rows * cols, 1, 2.0f), 1);
    Operand dy = Operand::Of(element, rows, cols, RandomFloats(rows * cols, 2), 2);
    std::vector<double> y, dx;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        constexpr double kStep = 1e-5;
        const double at = x.At(r, c);
        y.push_back(Gelu(at));
        dx.push_back(dy.At(r, c) * (Gelu(at + kStep) - Gelu(at - kStep)) / (2 * kStep));
      }
    }
    ForEachIsaAndThreads([&](Cpu& cpu) {
      Operand got_y(element, rows, cols, 3), got_dx(element, rows, cols, 3);
      GeluForward(cpu, x.view(), got_y.view());
      GeluBackward(cpu, x.view(), dy.view(), got_dx.view());
      EXPECT_LT(RelativeError(got_y.Values(), y), Tolerance(element));
      EXPECT_LT(RelativeError(got_dx.Values(), dx), Tolerance(element));
      EXPECT_TRUE(got_y.MarginIsUntouched() && got_dx.MarginIsUntouched());
      return got_y.Values();
    });
  }
}

TEST(Gelu, KeepsItsRelativePrecisionInTheTail) {
  std::vector<float> x;
  for (float v = -8.0f; v < 8.0f; v += 0.01f) x.push_back(v);
  const int64_t n = static_cast<int64_t>(x.size());
  ForEachIsaAndThreads([&](Cpu& cpu) {
    Operand from = Operand::Of(Element::kFloat32, 1, n, x), to(Element::kFloat32, 1, n);
    GeluForward(cpu, from.view(), to.view());
    // exp(-x^2 / 2) of a rounded x^2 loses up to x^2 / 2 units in the last place.
    for (int64_t i = 0; i < n; ++i) {
      EXPECT_NEAR(to.At(0, i), Gelu(x[i]), (4e-7 + 4e-8 * x[i] * x[i]) * std::abs(Gelu(x[i])))
          << x[i];
    }
    return to.Values();
  });
}

TEST(Cast, RoundsToNearestEvenAndWidensExactly) {
  const int64_t rows = 35, cols = 21;
  const std::vector<float> values = RandomFloats(rows * cols, 1);
  ForEachIsaAndThreads([&](Cpu& cpu) {
    Operand wide = Operand::Of(Element::kFloat32, rows, cols, values, 4);
    Operand expected = Operand::Of(Element::kBfloat16, rows, cols, values);
    Operand narrow(Element::kBfloat16, rows, cols, 1), back(Element::kFloat32, rows, cols, 2);
    Cast(cpu, wide.view(), narrow.view());
    Cast(cpu, narrow.view(), back.view());
    EXPECT_EQ(narrow.Values(), expected.Values());
    EXPECT_EQ(back.Values(), expected.Values());
    EXPECT_TRUE(narrow.MarginIsUntouched() && back.MarginIsUntouched());
    return back.Values();
  });
}

TEST(CastDeathTest, RefusesFloat16WhichIsForGpus) {
  Operand from(Element::kBfloat16, 1, 8), to(Element::kBfloat16, 1, 8);
  Matrix half = to.view();
  half.element = Element::kFloat16;
  Cpu cpu(1);
  EXPECT_DEATH(Cast(cpu, from.view(), half), "no float16");
  half.element = Element::kBfloat16;  // factors are read as float32
  EXPECT_DEATH(ScaleShiftForward(cpu, {.x_RD = from.view(), .scale_G = half, .y_RD = from.view()}),
               "not float32");
}

// Distance in units of the last place of `exact` as a float.
double UlpsOff(float got, double exact) {
  const float rounded = static_cast<float>(exact);
  const float next = std::nextafter(rounded, std::numeric_limits<float>::infinity());
  return std::abs(got - exact) / (static_cast<double>(next) - rounded);
}

TEST(Exp, IsWithinTwoUnitsInTheLastPlace) {
  std::vector<float> x;
  for (float v = -87.3f; v < 88.3f; v += 0.0013f) x.push_back(v);
  const int64_t n = static_cast<int64_t>(x.size());
  ForEachIsaAndThreads([&](Cpu& cpu) {
    std::vector<float> y(n);
    cpu.table.elementwise.exp(x.data(), y.data(), n);
    double worst = 0.0;
    for (int64_t i = 0; i < n; ++i) worst = std::max(worst, UlpsOff(y[i], std::exp(double{x[i]})));
    EXPECT_LT(worst, 2.0);
    return Doubles(y);
  });
}

TEST(Exp, KnowsZeroInfinityAndNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {0.0f, -infinity, -100.0f, std::nanf("")};
  ForEachIsaAndThreads([&](Cpu& cpu) {
    std::vector<float> y(4);
    cpu.table.elementwise.exp(x.data(), y.data(), 4);
    EXPECT_EQ(y[0], 1.0f);
    EXPECT_EQ(y[1], 0.0f);
    EXPECT_EQ(y[2], 0.0f);
    EXPECT_TRUE(std::isnan(y[3]));
    return std::vector<double>();
  });
}

}  // namespace
}  // namespace deepnet::native
