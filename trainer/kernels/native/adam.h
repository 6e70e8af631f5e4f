// The optimizer's arithmetic over flat ranges of float32.
#pragma once

#include <cstdint>
#include <span>

#include "trainer/kernels/native/matrix.h"

namespace deepnet::native {

// One update. With m, v the moments after it, c1 = 1 - beta1^step, c2 = 1 - beta2^step:
//   fairseq_epsilon: p -= rate * sqrt(c2) / c1 * m / (sqrt(v) + epsilon)
//   else:            p -= rate / c1 * m / (sqrt(v) / sqrt(c2) + epsilon)
struct AdamRule {
  double rate = 0.0, beta1 = 0.9, beta2 = 0.98, epsilon = 1e-8;
  double weight_decay = 0.0;    // decoupled: p -= rate * weight_decay * p comes first
  double gradient_scale = 1.0;  // clipping, and what the loss was scaled by; comes first
  int64_t step = 1;             // counts updates, from 1
  bool fairseq_epsilon = true;
};

// One update of a flat range (docs/design/optimizer.md).
template <typename T>
struct AdamArgsOf {
  typename T::Floats weights = {};  // residual [n], as the others
  typename T::InFloats gradient = {};
  typename T::Floats moment1 = {}, moment2 = {};
  AdamRule rule = {};
};
using AdamArgs = AdamArgsOf<Pointers>;

// The numbers of an AdamRule as every element takes them, computed once.
struct AdamConstants {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon;
  float decay;  // weights are multiplied by 1 - decay
  float rate;   // p -= rate * m / (sqrt(v) * root_scale + epsilon)
  float root_scale;
  float gradient_scale;
};

// rule.step >= 1.
AdamConstants MakeAdamConstants(const AdamRule& rule);

// Updates the n numbers. Every one by itself: any cut of the range gives the same bits.
void AdamStep(Cpu& cpu, const AdamArgs& args, int64_t n);

// Elements of a block of SumSquares.
inline constexpr int64_t kSumSquaresBlock = 4096;

// sums[b] = sum of x[i]^2 over block b, in double precision; (n + kSumSquaresBlock - 1) /
// kSumSquaresBlock of them. The same bits on every instruction set. Infinite or NaN exactly if an
// element is.
void SumSquares(Cpu& cpu, const float* x, int64_t n, std::span<double> sums);

}  // namespace deepnet::native
