// The residual step fused with its norm, of which post-norm and pre-norm sub-layers are made:
//
//   y = N(sum) * gain + bias,  sum = alpha * x + Dropout(branch)           (DeepNet, section 2)
//
// N(s) = (s - mean) / sqrt(variance + epsilon), or where it is not centred s / sqrt(mean square +
// epsilon): LayerNorm and RMSNorm, with mean and variance over the features of a row. Post-LN and
// DeepNorm go on with y; pre-LN carries sum and feeds y to the next branch. All arithmetic is
// float32; matrices of kernels have no gaps but for branch, y_operand, dbranch and, on a GPU, dy.
//
// Over rows it is BatchNorm (Ioffe & Szegedy, 2015): mean and variance of each column, always those
// of the rows given. A contrast for studies, not a fast path: several sweeps, plain loops.
// Statistics are summed in double precision, each column over the rows in order.
#pragma once

#include <cstdint>

#include "trainer/kernels/native/dropout.h"
#include "trainer/kernels/native/matrix.h"

namespace deepnet::native {

inline constexpr int64_t kMaxNormWidth = 16384;

// State of a normalisation for its backward pass.
template <typename T>
struct NormStateOf {
  // Residual: (sum - mean) * rstd, without the mean if not centred.
  typename T::Floats xhat_RD = {};
  typename T::Floats rstd = {};  // residual: of each row or, over_rows, of each feature
};

template <typename T>
struct ResidualNormArgsOf {
  int64_t rows = 0;
  typename T::In x_RD = {};       // residual; undefined: 0; there is a branch then
  typename T::In branch_RD = {};  // residual or operand; undefined: 0, nothing is dropped
  typename T::Real alpha = 1.0;
  DropoutSite dropout = {};          // of the branch
  typename T::Rows ids = {};         // for dropout
  bool centred = true;               // false: RMSNorm
  bool over_rows = false;            // BatchNorm; only centred, with a gain, and without a sum_RD
  typename T::InFloats gain_D = {};  // residual; undefined: the sum alone, nothing is normalised
  typename T::InFloats bias_D = {};  // residual; undefined: 0
  typename T::Real epsilon = 1e-5;
  // Outputs. What is undefined is not wanted; there is no state in inference.
  typename T::Floats sum_RD = {};     // residual; may be x_RD; defined where there is no gain
  typename T::Floats y_RD = {};       // residual; may be x_RD
  typename T::Out y_operand_RD = {};  // operand
  NormStateOf<T> state = {};
  typename T::Mask mask = {};  // uint8 [R, ceil(D/8)], a bit is 1 where kept; where rate is not 0
};
using ResidualNormArgs = ResidualNormArgsOf<Pointers>;

// Returns D, from 1 to kMaxNormWidth.
[[gnu::always_inline]] constexpr int64_t WidthOf(const ResidualNormArgs& args) {
  return args.x_RD.data != nullptr ? args.x_RD.cols : args.branch_RD.cols;
}

void ResidualNormForward(Cpu& cpu, const ResidualNormArgs& args);

// y = xhat * gain + bias: what the forward pass wrote, again, bit for bit. xhat [rows, width]
// float32, y of either element; bias may be null.
void NormOutput(Cpu& cpu, ConstMatrix xhat, const float* gain, const float* bias, Matrix y);

template <typename T>
struct ResidualNormGradArgsOf {
  int64_t rows = 0;
  typename T::In dy_RD = {};  // residual or operand; kernels for CPUs and BatchNorm's: float32
  NormStateOf<T> state = {};
  typename T::Real alpha = 1.0;
  double dropout_rate = 0.0;
  typename T::InMask mask = {};
  bool centred = true;
  bool over_rows = false;  // then dgain_D is wanted
  typename T::InFloats gain_D = {};
  typename T::InFloats dpast_RD = {};  // residual: reaches the branch past the norm; undefined: 0
  // What is undefined is not wanted.
  typename T::Floats dx_RD = {};    // out, residual: alpha * dsum; may be dy_RD
  bool accumulate_dx = false;       // add to dx instead
  typename T::Out dbranch_RD = {};  // out, operand; may be dy_RD
  typename T::Floats dgain_D = {};  // +=, residual
  typename T::Floats dbias_D = {};  // +=, residual; undefined: there is no bias
};
using ResidualNormGradArgs = ResidualNormGradArgsOf<Pointers>;

// The gradients of gain and bias are summed over blocks of kRowsPerBlock rows, then over the blocks
// in order: the same bits for any number of threads.
void ResidualNormBackward(Cpu& cpu, const ResidualNormGradArgs& args);

}  // namespace deepnet::native
