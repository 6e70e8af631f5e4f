// Pointwise kernels: sums, activations, conversions. Results do not depend on the thread count.
#pragma once

#include <cstdint>

#include "trainer/kernels/native/matrix.h"

namespace deepnet::native {

struct Cpu;

// y[i] += x[i], float32.
void Add(Cpu& cpu, const float* x, float* y, int64_t n);

// y = GELU(x) = x * Phi(x), the exact form by the error function; same shapes; y may be x.
void GeluForward(Cpu& cpu, ConstMatrix x, Matrix y);

// dx = dy * GELU'(x), with x as given to GeluForward; dx may be dy.
void GeluBackward(Cpu& cpu, ConstMatrix x, ConstMatrix dy, Matrix dx);

// to = from, converted if the elements differ: float32 -> bfloat16 rounds to nearest even.
void Cast(Cpu& cpu, ConstMatrix from, Matrix to);

// y = scale * (x - shift): trained factors on columns and a trained number, which residual schemes
// put on streams, branches and heads (docs/design/residuals.md).
struct ScaleShiftForwardArgs {
  ConstMatrix x = {};
  const float* scale = nullptr;  // [groups], one for each cols / groups neighbours; null: 1
  int64_t groups = 1;            // divides the columns
  const float* shift = nullptr;  // [1]; null: 0
  Matrix y = {};                 // of either element; may be x
};

void ScaleShiftForward(Cpu& cpu, const ScaleShiftForwardArgs& args);

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
void ScaleShiftBackward(Cpu& cpu, const ScaleShiftBackwardArgs& args);

}  // namespace deepnet::native
