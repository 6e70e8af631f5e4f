// Every product against a plain loop in double precision, for every instruction set this host has.
#include "trainer/kernels/native/linear.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "trainer/kernels/native/isa.h"

namespace deepnet::native {
namespace {

// Sums of up to 1,100 products in float32, as a share of the largest result.
constexpr double kFloat32Tolerance = 1e-5;
// A bfloat16 result is the float32 one, rounded to 8 bits.
constexpr double kBfloat16Tolerance = 1.0 / 256;

uint16_t ToBf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float FromBf16(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

// A matrix with its memory. Columns from `cols` to `stride` hold NaN: whoever reads them shows it.
class TestMatrix {
 public:
  TestMatrix(Element element, int64_t rows, int64_t cols, int64_t stride)
      : element_(element), rows_(rows), cols_(cols), stride_(stride) {
    floats_.assign(element == Element::kFloat32 ? rows * stride + 1 : 0, std::nanf(""));
    halves_.assign(element == Element::kBfloat16 ? rows * stride + 1 : 0, 0x7fc0);
  }

  static TestMatrix Random(Element element, int64_t rows, int64_t cols, int64_t stride, int seed) {
    TestMatrix m(element, rows, cols, stride);
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) m.Set(r, c, normal(random));
    }
    return m;
  }

  double At(int64_t r, int64_t c) const {
    return element_ == Element::kFloat32 ? floats_[r * stride_ + c]
                                         : FromBf16(halves_[r * stride_ + c]);
  }
  void Set(int64_t r, int64_t c, float x) {
    if (element_ == Element::kFloat32) {
      floats_[r * stride_ + c] = x;
    } else {
      halves_[r * stride_ + c] = ToBf16(x);
    }
  }

  Matrix View() { return Rows(0, rows_); }
  Matrix Rows(int64_t begin, int64_t end) {
    if (element_ == Element::kFloat32) {
      return {floats_.data() + begin * stride_, element_, end - begin, cols_, stride_};
    }
    return {halves_.data() + begin * stride_, element_, end - begin, cols_, stride_};
  }
  float* floats() { return floats_.data(); }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

  // The same bits, NaN and padding included.
  bool SameBits(const TestMatrix& other) const {
    const auto same = [](float a, float b) {
      return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
    };
    return std::ranges::equal(floats_, other.floats_, same) && halves_ == other.halves_;
  }

 private:
  Element element_;
  int64_t rows_, cols_, stride_;
  std::vector<float> floats_;
  std::vector<uint16_t> halves_;
};

using Reference = std::vector<double>;  // row-major, contiguous

// Largest |matrix - reference| / largest |reference|.
double Error(const TestMatrix& matrix, const Reference& reference) {
  double error = 0, largest = 1e-30;
  for (int64_t r = 0; r < matrix.rows(); ++r) {
    for (int64_t c = 0; c < matrix.cols(); ++c) {
      const double expected = reference[r * matrix.cols() + c];
      const double difference = std::abs(matrix.At(r, c) - expected);
      error = std::isnan(difference) ? INFINITY : std::max(error, difference);
      largest = std::max(largest, std::abs(expected));
    }
  }
  return error / largest;
}

struct Shape {
  int64_t rows, in, out;
  int64_t padding;  // stride - cols of every operand
};

const Shape kShapes[] = {
    {1, 1, 1, 0},     {1, 64, 64, 0},    {2, 3, 5, 1},     {3, 200, 128, 0},  {5, 17, 33, 3},
    {6, 31, 257, 0},  {13, 64, 48, 16},  {14, 65, 95, 0},  {15, 100, 70, 7},  {29, 7, 16, 0},
    {100, 64, 64, 0}, {257, 33, 31, 1},  {300, 96, 40, 2}, {513, 15, 129, 0}, {40, 1100, 37, 0},
    {33, 20, 600, 5}, {600, 130, 70, 0},
};

struct Case {
  Isa isa;
  Element element;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << IsaName(c.isa) << (c.element == Element::kFloat32 ? "_float32" : "_bfloat16");
}

class LinearTest : public testing::TestWithParam<Case> {
 protected:
  const KernelTable& table() const { return Table(GetParam().isa); }
  Element element() const { return GetParam().element; }
  double OperandOf(float x) const {
    return element() == Element::kFloat32 ? x : FromBf16(ToBf16(x));
  }

  // A random weight [out, in] and its packed form.
  struct TestWeight {
    TestMatrix master;
    PackedWeight packed;
  };
  TestWeight MakeWeight(Cpu& cpu, int64_t out, int64_t in) const {
    TestWeight w = {TestMatrix::Random(Element::kFloat32, out, in, in, 7),
                    PackedWeight(table(), out, in, element(), PackedFor::kTraining)};
    w.packed.Pack(cpu.pool, w.master.floats());
    return w;
  }
};

std::string Describe(const Shape& s) {
  return "rows " + std::to_string(s.rows) + " in " + std::to_string(s.in) + " out " +
         std::to_string(s.out) + " padding " + std::to_string(s.padding);
}

TEST_P(LinearTest, ForwardMatchesAPlainLoop) {
  Cpu cpu(2, GetParam().isa);
  for (const Shape& s : kShapes) {
    TestWeight w = MakeWeight(cpu, s.out, s.in);
    TestMatrix x = TestMatrix::Random(element(), s.rows, s.in, s.in + s.padding, 1);
    TestMatrix bias = TestMatrix::Random(Element::kFloat32, 1, s.out, s.out, 2);
    for (const bool with_bias : {false, true}) {
      for (const bool relu : {false, true}) {
        Reference expected(s.rows * s.out);
        for (int64_t r = 0; r < s.rows; ++r) {
          for (int64_t o = 0; o < s.out; ++o) {
            double sum = with_bias ? bias.At(0, o) : 0;
            for (int64_t i = 0; i < s.in; ++i) sum += x.At(r, i) * OperandOf(w.master.At(o, i));
            expected[r * s.out + o] = relu ? std::max(0.0, sum) : sum;
          }
        }
        for (const Element y_element : {Element::kFloat32, Element::kBfloat16}) {
          TestMatrix y(y_element, s.rows, s.out, s.out + s.padding);
          LinearForward(cpu, {s.rows, x.View(), &w.packed, with_bias ? bias.floats() : nullptr,
                              relu, y.View()});
          EXPECT_LE(Error(y, expected),
                    y_element == Element::kFloat32 ? kFloat32Tolerance : kBfloat16Tolerance)
              << Describe(s) << " bias " << with_bias << " relu " << relu;
        }
      }
    }
  }
}

TEST_P(LinearTest, BackwardInputMatchesAPlainLoop) {
  Cpu cpu(2, GetParam().isa);
  for (const Shape& s : kShapes) {
    TestWeight w = MakeWeight(cpu, s.out, s.in);
    TestMatrix dy = TestMatrix::Random(element(), s.rows, s.out, s.out + s.padding, 3);
    TestMatrix gate = TestMatrix::Random(element(), s.rows, s.in, s.in + s.padding, 4);
    const ConstMatrix gate_view = gate.View();
    TestMatrix before = TestMatrix::Random(Element::kFloat32, s.rows, s.in, s.in + s.padding, 5);
    for (const bool gated : {false, true}) {
      for (const bool accumulate : {false, true}) {
        Reference expected(s.rows * s.in);
        for (int64_t r = 0; r < s.rows; ++r) {
          for (int64_t i = 0; i < s.in; ++i) {
            double sum = 0;
            for (int64_t o = 0; o < s.out; ++o) sum += dy.At(r, o) * OperandOf(w.master.At(o, i));
            if (gated && gate.At(r, i) <= 0) sum = 0;
            expected[r * s.in + i] = sum + (accumulate ? before.At(r, i) : 0);
          }
        }
        for (const Element dx_element : {Element::kFloat32, Element::kBfloat16}) {
          if (accumulate && dx_element == Element::kBfloat16) continue;
          TestMatrix dx =
              accumulate ? before : TestMatrix(dx_element, s.rows, s.in, s.in + s.padding);
          LinearBackwardInput(cpu, {s.rows, dy.View(), &w.packed, gated ? gate_view : ConstMatrix{},
                                    accumulate, dx.View()});
          EXPECT_LE(Error(dx, expected),
                    dx_element == Element::kFloat32 ? kFloat32Tolerance : kBfloat16Tolerance)
              << Describe(s) << " gated " << gated << " accumulate " << accumulate;
        }
      }
    }
  }
}

TEST_P(LinearTest, BackwardWeightMatchesAPlainLoopWhateverItsScratchHolds) {
  Cpu cpu(2, GetParam().isa);
  constexpr int64_t kMoreThanNeeded = int64_t{1} << 22;
  std::fill_n(cpu.scratch.Reserve(kMoreThanNeeded), kMoreThanNeeded, NAN);
  for (const Shape& s : kShapes) {
    TestMatrix dy = TestMatrix::Random(element(), s.rows, s.out, s.out + s.padding, 3);
    TestMatrix x = TestMatrix::Random(element(), s.rows, s.in, s.in + s.padding, 1);
    TestMatrix dw = TestMatrix::Random(Element::kFloat32, s.out, s.in, s.in, 5);
    TestMatrix dbias = TestMatrix::Random(Element::kFloat32, 1, s.out, s.out, 6);
    Reference expected(s.out * s.in), expected_bias(s.out);
    for (int64_t o = 0; o < s.out; ++o) {
      expected_bias[o] = dbias.At(0, o);
      for (int64_t r = 0; r < s.rows; ++r) expected_bias[o] += dy.At(r, o);
      for (int64_t i = 0; i < s.in; ++i) {
        double sum = dw.At(o, i);
        for (int64_t r = 0; r < s.rows; ++r) sum += dy.At(r, o) * x.At(r, i);
        expected[o * s.in + i] = sum;
      }
    }
    TestMatrix dw_without_bias = dw;
    LinearBackwardWeight(cpu, dy.View(), x.View(), dw.floats(), dbias.floats());
    LinearBackwardWeight(cpu, dy.View(), x.View(), dw_without_bias.floats(), nullptr);
    EXPECT_LE(Error(dw, expected), kFloat32Tolerance) << Describe(s);
    EXPECT_LE(Error(dbias, expected_bias), kFloat32Tolerance) << Describe(s);
    EXPECT_TRUE(dw.SameBits(dw_without_bias)) << Describe(s);
  }
}

struct Results {
  TestMatrix y, dx, dw, dbias;
};

bool SameBits(const Results& a, const Results& b) {
  return a.y.SameBits(b.y) && a.dx.SameBits(b.dx) && a.dw.SameBits(b.dw) &&
         a.dbias.SameBits(b.dbias);
}

TEST_P(LinearTest, AnyNumberOfThreadsGivesTheSameBits) {
  const auto run = [&](const Shape& s, int threads) {
    Cpu cpu(threads, GetParam().isa);
    TestWeight w = MakeWeight(cpu, s.out, s.in);
    TestMatrix x = TestMatrix::Random(element(), s.rows, s.in, s.in, 1);
    TestMatrix dy = TestMatrix::Random(element(), s.rows, s.out, s.out, 2);
    Results results = {TestMatrix(Element::kFloat32, s.rows, s.out, s.out),
                       TestMatrix(Element::kFloat32, s.rows, s.in, s.in),
                       TestMatrix::Random(Element::kFloat32, s.out, s.in, s.in, 3),
                       TestMatrix::Random(Element::kFloat32, 1, s.out, s.out, 4)};
    LinearForward(cpu, {s.rows, x.View(), &w.packed, nullptr, false, results.y.View()});
    LinearBackwardInput(cpu, {s.rows, dy.View(), &w.packed, {}, false, results.dx.View()});
    LinearBackwardWeight(cpu, dy.View(), x.View(), results.dw.floats(), results.dbias.floats());
    return results;
  };
  for (const Shape& s : {Shape{600, 130, 70, 0}, Shape{37, 64, 300, 0}, Shape{2, 256, 256, 0},
                         Shape{700, 256, 192, 0}}) {
    const Results one = run(s, 1);
    EXPECT_TRUE(SameBits(one, run(s, 2))) << Describe(s);
    EXPECT_TRUE(SameBits(one, run(s, 4))) << Describe(s);
  }
}

TEST_P(LinearTest, ARowDoesNotDependOnItsNeighbours) {
  constexpr int64_t kRows = 45, kIn = 131, kOut = 270;
  Cpu cpu(2, GetParam().isa);
  TestWeight w = MakeWeight(cpu, kOut, kIn);
  TestMatrix x = TestMatrix::Random(element(), kRows, kIn, kIn, 1);
  TestMatrix dy = TestMatrix::Random(element(), kRows, kOut, kOut, 2);
  const auto run = [&](int64_t rows_at_once) {
    std::pair<TestMatrix, TestMatrix> result = {TestMatrix(Element::kFloat32, kRows, kOut, kOut),
                                                TestMatrix(Element::kFloat32, kRows, kIn, kIn)};
    for (int64_t begin = 0; begin < kRows; begin += rows_at_once) {
      const int64_t end = std::min(begin + rows_at_once, kRows);
      LinearForward(cpu, {end - begin, x.Rows(begin, end), &w.packed, nullptr, false,
                          result.first.Rows(begin, end)});
      LinearBackwardInput(
          cpu,
          {end - begin, dy.Rows(begin, end), &w.packed, {}, false, result.second.Rows(begin, end)});
    }
    return result;
  };
  const auto all = run(kRows);
  for (int64_t rows_at_once = 1; rows_at_once < 20; ++rows_at_once) {
    const auto some = run(rows_at_once);
    EXPECT_TRUE(all.first.SameBits(some.first)) << rows_at_once;
    EXPECT_TRUE(all.second.SameBits(some.second)) << rows_at_once;
  }
}

TEST_P(LinearTest, PackingAgainReplacesTheWeight) {
  Cpu cpu(2, GetParam().isa);
  TestMatrix x = TestMatrix::Random(element(), 9, 50, 50, 1);
  TestMatrix zeros = TestMatrix::Random(Element::kFloat32, 70, 50, 50, 2);
  std::fill_n(zeros.floats(), 70 * 50, 0.0f);
  TestWeight w = MakeWeight(cpu, 70, 50);
  const int64_t bytes = w.packed.bytes();
  w.packed.Pack(cpu.pool, zeros.floats());
  TestMatrix y(Element::kFloat32, 9, 70, 70);
  LinearForward(cpu, {9, x.View(), &w.packed, nullptr, false, y.View()});
  EXPECT_EQ(Error(y, Reference(9 * 70, 0.0)), 0);
  EXPECT_EQ(w.packed.bytes(), bytes);
}

TEST_P(LinearTest, ANotANumberShowsInTheResult) {
  Cpu cpu(1, GetParam().isa);
  TestWeight w = MakeWeight(cpu, 40, 30);
  TestMatrix x = TestMatrix::Random(element(), 3, 30, 30, 1);
  x.Set(1, 29, std::nanf(""));
  TestMatrix y(Element::kFloat32, 3, 40, 40);
  LinearForward(cpu, {3, x.View(), &w.packed, nullptr, /*relu=*/true, y.View()});
  for (int64_t c = 0; c < 40; ++c) {
    EXPECT_FALSE(std::isnan(y.At(0, c)));
    EXPECT_TRUE(std::isnan(y.At(1, c)));
  }
}

TEST_P(LinearTest, NoRowsIsNothingToDo) {
  Cpu cpu(2, GetParam().isa);
  TestWeight w = MakeWeight(cpu, 4, 3);
  TestMatrix x(element(), 0, 3, 3), dy(element(), 0, 4, 4);
  TestMatrix y(Element::kFloat32, 0, 4, 4), dx(Element::kFloat32, 0, 3, 3);
  TestMatrix dw = TestMatrix::Random(Element::kFloat32, 4, 3, 3, 1);
  const TestMatrix before = dw;
  LinearForward(cpu, {0, x.View(), &w.packed, nullptr, false, y.View()});
  LinearBackwardInput(cpu, {0, dy.View(), &w.packed, {}, false, dx.View()});
  LinearBackwardWeight(cpu, dy.View(), x.View(), dw.floats(), nullptr);
  EXPECT_TRUE(dw.SameBits(before));
}

std::vector<Case> SupportedCases() {
  std::vector<Case> cases;
  for (const Isa isa : kAllIsas) {
    if (!Supports(isa)) continue;
    cases.push_back({isa, Element::kFloat32});
    cases.push_back({isa, Element::kBfloat16});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Isa, LinearTest, testing::ValuesIn(SupportedCases()),
                         testing::PrintToStringParamName());

TEST(Isa, TheBestIsTheLastThatIsSupported) {
  EXPECT_TRUE(Supports(Isa::kBaseline));
  for (const Isa isa : kAllIsas) EXPECT_EQ(Supports(isa), isa <= BestIsa());
}

}  // namespace
}  // namespace deepnet::native
