// The residual step fused with BatchNorm: ResidualNorm's (residual_norm.h) with mean and variance
// of each column over the rows instead of each row over the columns, always those of the rows
// given.
//
//   sum = alpha * x + Dropout(branch)
//   y = (sum - mean) / sqrt(variance + epsilon) * gain + bias
//
// A contrast for studies (Ioffe & Szegedy, 2015), not a fast path: several sweeps, plain loops.
#pragma once

#include "trainer/kernels/native/residual_norm.h"

namespace deepnet::native {

// `args` as in ResidualNormForward, but: always centred, gain given, no sum wanted, rstd [width].
// Statistics are summed in double precision, each column over the rows in order: the same bits for
// any number of threads and any instruction set.
void BatchNormForward(ThreadPool& pool, const KernelTable& table,
                      const ResidualNormForwardArgs& args, Scratch& scratch);

// `args` as in ResidualNormBackward, but: no dsum, rstd [width], d_gain wanted.
void BatchNormBackward(ThreadPool& pool, const KernelTable& table,
                       const ResidualNormBackwardArgs& args, Scratch& scratch);

}  // namespace deepnet::native
