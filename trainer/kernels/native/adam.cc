#include "trainer/kernels/native/adam.h"

#include <algorithm>
#include <cmath>

#include "parallel/base/check.h"
#include "trainer/kernels/native/kernel_table.h"
#include "trainer/kernels/native/thread_pool.h"

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

AdamConstants MakeAdamConstants(const AdamArgs& args) {
  DEEPNET_CHECK(args.step >= 1) << "step " << args.step;
  const double c1 = 1.0 - IntegerPower(args.beta1, args.step);
  const double root_c2 = std::sqrt(1.0 - IntegerPower(args.beta2, args.step));
  const bool fairseq = args.convention == AdamConvention::kFairseq;
  return {.beta1 = static_cast<float>(args.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - args.beta1),
          .beta2 = static_cast<float>(args.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - args.beta2),
          .epsilon = static_cast<float>(args.epsilon),
          .decay = static_cast<float>(args.learning_rate * args.weight_decay),
          .rate = static_cast<float>(fairseq ? args.learning_rate * root_c2 / c1
                                             : args.learning_rate / c1),
          .root_scale = static_cast<float>(fairseq ? 1.0 : 1.0 / root_c2),
          .gradient_scale = args.gradient_scale};
}

void AdamStep(ThreadPool& pool, const KernelTable& table, const AdamArgs& args, int64_t n,
              float* weights, const float* gradient, float* m, float* v) {
  const AdamConstants constants = MakeAdamConstants(args);
  const ElementwiseTable& kernels = table.elementwise;
  ForBlocks(pool, n, kElementsPerBlock, [&](int64_t begin, int64_t end, int) {
    kernels.adam(constants, end - begin, weights + begin, gradient + begin, m + begin, v + begin);
  });
}

void SumSquares(ThreadPool& pool, const KernelTable& table, const float* x, int64_t n,
                std::span<double> sums) {
  const int64_t num_blocks = (n + kSumSquaresBlock - 1) / kSumSquaresBlock;
  DEEPNET_CHECK_EQ(static_cast<int64_t>(sums.size()), num_blocks);
  const ElementwiseTable& kernels = table.elementwise;
  ForBlocks(pool, num_blocks, kElementsPerBlock / kSumSquaresBlock,
            [&](int64_t begin, int64_t end, int) {
              for (int64_t block = begin; block < end; ++block) {
                sums[block] =
                    kernels.sum_squares(x + block * kSumSquaresBlock,
                                        std::min(kSumSquaresBlock, n - block * kSumSquaresBlock));
              }
            });
}

}  // namespace deepnet::native
