#include "trainer/kernels/native/adam.h"

#include <algorithm>
#include <cmath>

#include "parallel/base/check.h"
#include "trainer/kernels/native/cpu.h"
#include "trainer/kernels/native/kernel_table.h"

namespace deepnet::native {
namespace {

// base^n, n >= 1, by squaring: libm's pow may differ between hosts in the last bit.
double IntegerPower(double base, int64_t n) {
  double result = 1.0;
  for (; n > 0; n >>= 1) {
    if (n & 1) result *= base;
    base *= base;
  }
  return result;
}

}  // namespace

AdamConstants MakeAdamConstants(const AdamRule& rule) {
  DEEPNET_CHECK(rule.step >= 1) << "step " << rule.step;
  const double c1 = 1.0 - IntegerPower(rule.beta1, rule.step);
  const double root_c2 = std::sqrt(1.0 - IntegerPower(rule.beta2, rule.step));
  const bool fairseq = rule.fairseq_epsilon;
  return {.beta1 = static_cast<float>(rule.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - rule.beta1),
          .beta2 = static_cast<float>(rule.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - rule.beta2),
          .epsilon = static_cast<float>(rule.epsilon),
          .decay = static_cast<float>(rule.rate * rule.weight_decay),
          .rate = static_cast<float>(fairseq ? rule.rate * root_c2 / c1 : rule.rate / c1),
          .root_scale = static_cast<float>(fairseq ? 1.0 : 1.0 / root_c2),
          .gradient_scale = static_cast<float>(rule.gradient_scale)};
}

void AdamStep(Cpu& cpu, const AdamArgs& args, int64_t n) {
  RunBlocks(cpu, n, kElementsPerBlock, cpu.kernels.adam, MakeAdamConstants(args.rule), args);
}

void SumSquares(Cpu& cpu, const float* x, int64_t n, std::span<double> sums) {
  const int64_t num_blocks = (n + kSumSquaresBlock - 1) / kSumSquaresBlock;
  DEEPNET_CHECK_EQ(static_cast<int64_t>(sums.size()), num_blocks);
  ForBlocks(cpu.pool, num_blocks, kElementsPerBlock / kSumSquaresBlock,
            [&](int64_t begin, int64_t end, int) {
              for (int64_t block = begin; block < end; ++block) {
                sums[block] = cpu.kernels.sum_squares(
                    x + block * kSumSquaresBlock,
                    std::min(kSumSquaresBlock, n - block * kSumSquaresBlock));
              }
            });
}

}  // namespace deepnet::native
