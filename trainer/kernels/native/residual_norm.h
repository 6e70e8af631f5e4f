// The residual step fused with LayerNorm, of which post-norm and pre-norm sub-layers are made:
//
//   sum = alpha * x + Dropout(branch)      y = LayerNorm(sum) * gain + bias
//
// Post-LN and DeepNorm go on with y; pre-LN carries sum and feeds y to the next branch. RMSNorm is
// the same without subtracting the mean. All arithmetic is float32; matrices without a stride are
// contiguous [rows, width].
#pragma once

#include <cstdint>

#include "trainer/kernels/native/dropout.h"
#include "trainer/kernels/native/matrix.h"

namespace deepnet::native {

inline constexpr int64_t kMaxNormWidth = 16384;

struct ResidualNormForwardArgs {
  int64_t rows = 0;
  int64_t width = 0;  // 1..kMaxNormWidth
  float alpha = 1.0f;
  float epsilon = 1e-5f;
  bool centred = true;          // false: RMSNorm
  const float* x = nullptr;     // null: 0; there is a branch then
  ConstMatrix branch = {};      // data null: no branch, no dropout
  DropoutSite dropout = {};     // of the branch
  RowIds ids = {};              // read if dropout.rate > 0
  const float* gain = nullptr;  // [width]; null: only the sum is wanted, nothing is normalized
  const float* bias = nullptr;  // [width]; null: 0
  // Outputs; each may be null. sum and y may be x.
  float* sum = nullptr;
  float* y = nullptr;
  Matrix y_operand = {};
  // Kept for the backward pass; each may be null when there will be none.
  float* xhat = nullptr;    // (sum - mean) * rstd, without the mean if not centred
  float* rstd = nullptr;    // [rows]
  uint8_t* mask = nullptr;  // [rows, MaskBytes(width)]; required if dropout.rate > 0
};

void ResidualNormForward(Cpu& cpu, const ResidualNormForwardArgs& args);

// y = xhat * gain + bias: what the forward pass wrote, again, bit for bit. xhat [rows, width]
// float32, y of either element; bias may be null.
void NormOutput(Cpu& cpu, ConstMatrix xhat, const float* gain, const float* bias, Matrix y);

struct ResidualNormBackwardArgs {
  int64_t rows = 0;
  int64_t width = 0;
  float alpha = 1.0f;
  double rate = 0.0;  // dropout of the forward pass
  bool centred = true;
  const float* dy = nullptr;     // gradient of y
  const float* dpast = nullptr;  // gradient that reaches the branch past the norm; null: none
  const float* xhat = nullptr;
  const float* rstd = nullptr;    // [rows]
  const float* gain = nullptr;    // [width]
  const uint8_t* mask = nullptr;  // read if rate > 0
  // Outputs; each may be null.
  float* d_residual = nullptr;       // gradient of x; may be dy
  bool accumulate_residual = false;  // add to d_residual instead of overwriting it
  Matrix d_branch = {};
  float* d_gain = nullptr;  // [width], added to
  float* d_bias = nullptr;  // the same; null also where there is no bias
};

// The gradients of gain and bias are summed over blocks of kRowsPerBlock rows, then over the blocks
// in order: the same bits for any number of threads.
void ResidualNormBackward(Cpu& cpu, const ResidualNormBackwardArgs& args);

// The same step with BatchNorm (Ioffe & Szegedy, 2015): mean and variance of each column over the
// rows instead of each row over the columns, always those of the rows given. A contrast for
// studies, not a fast path: several sweeps, plain loops.
//
// `args` as in ResidualNormForward, except: always centred, gain given, no sum wanted, rstd
// [width]. Statistics are summed in double precision, each column over the rows in order: the same
// bits for any number of threads and any instruction set.
void BatchNormForward(Cpu& cpu, const ResidualNormForwardArgs& args);

// `args` as in ResidualNormBackward, except: rstd [width], d_gain wanted.
void BatchNormBackward(Cpu& cpu, const ResidualNormBackwardArgs& args);

}  // namespace deepnet::native
