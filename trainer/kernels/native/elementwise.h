// Pointwise kernels: sums, activations, conversions. Results do not depend on the thread count.
#pragma once

#include <cstdint>

#include "trainer/kernels/native/matrix.h"

namespace deepnet::native {

class Scratch;
class ThreadPool;
struct KernelTable;

// y[i] += x[i], float32.
void Add(ThreadPool& pool, const KernelTable& table, const float* x, float* y, int64_t n);

// y = GELU(x) = x * Phi(x), the exact form by the error function; same shapes; y may be x.
void GeluForward(ThreadPool& pool, const KernelTable& table, ConstMatrix x, Matrix y);

// dx = dy * GELU'(x), with x as given to GeluForward; dx may be dy.
void GeluBackward(ThreadPool& pool, const KernelTable& table, ConstMatrix x, ConstMatrix dy,
                  Matrix dx);

// y[i] = e^x[i] within 2 units in the last place; 0 below -87.33, at most 2.4e38; y may be x.
void Exp(ThreadPool& pool, const KernelTable& table, const float* x, float* y, int64_t n);

// to = from, converted if the elements differ: float32 -> bfloat16 rounds to nearest even.
void Cast(ThreadPool& pool, const KernelTable& table, ConstMatrix from, Matrix to);

// y = scale * (x - shift): trained factors on columns and a trained number, which residual schemes
// put on streams, branches and heads (docs/design/residuals.md).
struct ScaleShiftForwardArgs {
  ConstMatrix x = {};
  const float* scale = nullptr;  // [groups], one for each cols / groups neighbours; null: 1
  int64_t groups = 1;            // divides the columns
  const float* shift = nullptr;  // [1]; null: 0
  Matrix y = {};                 // of either element; may be x
};

void ScaleShiftForward(ThreadPool& pool, const KernelTable& table,
                       const ScaleShiftForwardArgs& args, Scratch& scratch);

struct ScaleShiftBackwardArgs {
  ConstMatrix dy = {};
  ConstMatrix x = {};  // as it went in; data null where there is no scale
  const float* scale = nullptr;
  int64_t groups = 1;
  const float* shift = nullptr;
  Matrix dx = {};            // scale * dy; may be dy
  float* d_scale = nullptr;  // [groups], added to; null where there is no scale
  float* d_shift = nullptr;  // [1], added to; null where there is none
};

// The gradients of scale and shift are summed over blocks of kRowsPerBlock rows, over the blocks in
// order, then over the columns of a group in order: the same bits for any number of threads.
void ScaleShiftBackward(ThreadPool& pool, const KernelTable& table,
                        const ScaleShiftBackwardArgs& args, Scratch& scratch);

}  // namespace deepnet::native
