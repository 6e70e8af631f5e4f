// The optimizer's arithmetic over flat ranges of float32.
#pragma once

#include <cstdint>
#include <span>

namespace deepnet::native {

class ThreadPool;
struct KernelTable;

// The place of epsilon. With m, v the moments after this step, c1 = 1 - beta1^step,
// c2 = 1 - beta2^step:
enum class AdamConvention {
  kFairseq = 1,  // p -= lr * sqrt(c2) / c1 * m / (sqrt(v) + epsilon)
  kTorch = 2,    // p -= lr / c1 * m / (sqrt(v) / sqrt(c2) + epsilon)
};

struct AdamArgs {
  double learning_rate = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;    // decoupled: p -= learning_rate * weight_decay * p comes first
  int64_t step = 1;             // counts updates, from 1
  float gradient_scale = 1.0f;  // clipping and the number of tokens: the gradient is scaled first
  AdamConvention convention = AdamConvention::kFairseq;
};

// The numbers of AdamArgs that are the same for every element, computed once.
struct AdamConstants {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon;
  float decay;  // weights are multiplied by 1 - decay
  float rate;   // p -= rate * m / (sqrt(v) * root_scale + epsilon)
  float root_scale;
  float gradient_scale;
};

// args.step >= 1.
AdamConstants MakeAdamConstants(const AdamArgs& args);

// One update of n weights. Every element by itself: any cut of the range gives the same bits.
void AdamStep(ThreadPool& pool, const KernelTable& table, const AdamArgs& args, int64_t n,
              float* weights, const float* gradient, float* m, float* v);

// Elements of a block of SumSquares.
inline constexpr int64_t kSumSquaresBlock = 4096;

// sums[b] = sum of x[i]^2 over block b, in double precision; (n + kSumSquaresBlock - 1) /
// kSumSquaresBlock of them. The same bits on every instruction set. Infinite or NaN exactly if an
// element is.
void SumSquares(ThreadPool& pool, const KernelTable& table, const float* x, int64_t n,
                std::span<double> sums);

}  // namespace deepnet::native
