// Pointwise kernels: sums, activations, conversions. Results do not depend on the thread count.
#pragma once

#include <cstdint>

#include "trainer/kernels/native/matrix.h"

namespace deepnet::native {

// y[i] += x[i], float32.
void Add(Cpu& cpu, const float* x, float* y, int64_t n);

// y = GELU(x) = x * Phi(x), the exact form by the error function; same shapes; y may be x.
void GeluForward(Cpu& cpu, ConstMatrix x, Matrix y);

// dx = dy * GELU'(x), with x as given to GeluForward; dx may be dy.
void GeluBackward(Cpu& cpu, ConstMatrix x, ConstMatrix dy, Matrix dx);

// to = from, converted if the elements differ: float32 -> bfloat16 rounds to nearest even.
void Cast(Cpu& cpu, ConstMatrix from, Matrix to);

// y = scale * (x - shift): trained factors for equal groups of columns (one for all, for each head,
// for each feature) and one trained number (docs/design/residuals.md).
template <typename T>
struct ScaleShiftArgsOf {
  int64_t rows = 0;
  typename T::In x_RD = {};           // residual or operand
  typename T::In scale_G = {};        // residual; G divides D; undefined: 1
  typename T::InFloats shift_1 = {};  // residual; undefined: 0
  typename T::Out y_RD = {};          // out, residual or operand; may be x_RD
};
using ScaleShiftArgs = ScaleShiftArgsOf<Pointers>;

void ScaleShiftForward(Cpu& cpu, const ScaleShiftArgs& args);

template <typename T>
struct ScaleShiftGradArgsOf {
  int64_t rows = 0;
  typename T::In dy_RD = {};  // residual or operand
  typename T::In x_RD = {};   // as given to ScaleShift; read where there is a scale
  typename T::In scale_G = {};
  typename T::InFloats shift_1 = {};
  typename T::Out dx_RD = {};        // out, of dy's type; may be dy_RD
  typename T::Floats dscale_G = {};  // +=, residual; undefined where there is no scale
  typename T::Floats dshift_1 = {};  // +=, residual; undefined where there is none
};
using ScaleShiftGradArgs = ScaleShiftGradArgsOf<Pointers>;

// The gradients of scale and shift are summed over blocks of kRowsPerBlock rows, over the blocks in
// order, then over the columns of a group in order: the same bits for any number of threads.
void ScaleShiftBackward(Cpu& cpu, const ScaleShiftGradArgs& args);

}  // namespace deepnet::native
