#include "trainer/kernels/native/adam.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "tests/trainer/kernels/native/kernel_testing.h"

namespace deepnet::native {
namespace {

using testing::Append;
using testing::Doubles;
using testing::ForEachIsaAndThreads;
using testing::RandomFloats;
using testing::RelativeError;

AdamRule SomeRule(bool fairseq_epsilon, int64_t step) {
  return {.rate = 0.01,
          .beta1 = 0.9,
          .beta2 = 0.98,
          .epsilon = 1e-3,
          .weight_decay = 0.1,
          .gradient_scale = 0.5,
          .step = step,
          .fairseq_epsilon = fairseq_epsilon};
}

class Adam : public ::testing::TestWithParam<bool> {};

TEST_P(Adam, IsTheDefinitionOverSeveralSteps) {
  for (const int64_t n : {1, 17, 100, 40000}) {
    std::vector<double> p = Doubles(RandomFloats(n, 1)), m(n, 0.0), v(n, 0.0);
    for (int64_t step = 1; step <= 3; ++step) {
      const AdamRule a = SomeRule(GetParam(), step);
      const std::vector<float> g = RandomFloats(n, 10 + step);
      const double c1 = 1 - std::pow(a.beta1, step), c2 = 1 - std::pow(a.beta2, step);
      for (int64_t i = 0; i < n; ++i) {
        const double gi = g[i] * 0.5;
        m[i] = a.beta1 * m[i] + (1 - a.beta1) * gi;
        v[i] = a.beta2 * v[i] + (1 - a.beta2) * gi * gi;
        p[i] -= a.rate * a.weight_decay * p[i];
        p[i] -= GetParam()  // fairseq's epsilon
                    ? a.rate * std::sqrt(c2) / c1 * m[i] / (std::sqrt(v[i]) + a.epsilon)
                    : a.rate / c1 * m[i] / (std::sqrt(v[i] / c2) + a.epsilon);
      }
    }
    ForEachIsaAndThreads([&](Cpu& cpu) {
      std::vector<float> weights = RandomFloats(n, 1), got_m(n, 0.0f), got_v(n, 0.0f);
      for (int64_t step = 1; step <= 3; ++step) {
        const std::vector<float> g = RandomFloats(n, 10 + step);
        AdamStep(cpu,
                 {weights.data(), g.data(), got_m.data(), got_v.data(), SomeRule(GetParam(), step)},
                 n);
      }
      EXPECT_LT(RelativeError(Doubles(weights), p), 1e-6);
      EXPECT_LT(RelativeError(Doubles(got_m), m), 1e-6);
      EXPECT_LT(RelativeError(Doubles(got_v), v), 1e-6);
      std::vector<double> all = Doubles(weights);
      Append(all, Doubles(got_m));
      Append(all, Doubles(got_v));
      return all;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Conventions, Adam, ::testing::Bool());

TEST(AdamStep, DoesNotDependOnHowTheRangeIsCut) {
  const int64_t n = 1000, cut = 333;
  Cpu cpu(1);
  const std::vector<float> g = RandomFloats(n, 2);
  std::vector<float> whole = RandomFloats(n, 1), parts = whole, m(n), v(n), m2(n), v2(n);
  const AdamRule rule = SomeRule(/*fairseq_epsilon=*/true, 1);
  AdamStep(cpu, {whole.data(), g.data(), m.data(), v.data(), rule}, n);
  AdamStep(cpu, {parts.data(), g.data(), m2.data(), v2.data(), rule}, cut);
  AdamStep(cpu, {&parts[cut], &g[cut], &m2[cut], &v2[cut], rule}, n - cut);
  EXPECT_EQ(parts, whole);
}

std::vector<double> BlockSums(Cpu& cpu, const std::vector<float>& x) {
  const int64_t n = static_cast<int64_t>(x.size());
  std::vector<double> sums((n + kSumSquaresBlock - 1) / kSumSquaresBlock);
  SumSquares(cpu, x.data(), n, sums);
  return sums;
}

TEST(SumSquares, IsTheSameOnEveryInstructionSet) {
  for (const int64_t n : {0, 1, 15, 4096, 4097, 100001}) {
    const std::vector<float> x = RandomFloats(n, 3);
    double expected = 0.0;
    for (const float value : x) expected += static_cast<double>(value) * value;
    Cpu baseline_cpu(1, Isa::kBaseline);
    const std::vector<double> baseline = BlockSums(baseline_cpu, x);
    EXPECT_NEAR(std::accumulate(baseline.begin(), baseline.end(), 0.0), expected, 1e-12 * expected);
    ForEachIsaAndThreads([&](Cpu& cpu) {
      EXPECT_EQ(BlockSums(cpu, x), baseline);
      return std::vector<double>();
    });
  }
}

TEST(SumSquares, OfABlockIsThatOfItsElementsAlone) {
  ForEachIsaAndThreads([&](Cpu& cpu) {
    const std::vector<float> x = RandomFloats(9001, 4);
    const std::vector<double> sums = BlockSums(cpu, x);
    for (size_t block = 0; block < sums.size(); ++block) {
      const size_t begin = block * kSumSquaresBlock;
      const size_t end = std::min(x.size(), begin + kSumSquaresBlock);
      EXPECT_EQ(BlockSums(cpu, {x.begin() + begin, x.begin() + end}),
                std::vector<double>{sums[block]});
    }
    return std::vector<double>();
  });
}

TEST(SumSquares, IsNotFiniteExactlyIfAnElementIsNot) {
  ForEachIsaAndThreads([&](Cpu& cpu) {
    std::vector<float> x(9001, std::numeric_limits<float>::max());
    for (const double sum : BlockSums(cpu, x)) EXPECT_TRUE(std::isfinite(sum));
    for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
      for (const int64_t at : {0, 4095, 9000}) {
        std::vector<float> broken = x;
        broken[at] = bad;
        const std::vector<double> sums = BlockSums(cpu, broken);
        for (size_t block = 0; block < sums.size(); ++block) {
          EXPECT_EQ(std::isfinite(sums[block]), block != at / size_t{kSumSquaresBlock}) << block;
        }
      }
    }
    return std::vector<double>();
  });
}

}  // namespace
}  // namespace deepnet::native
