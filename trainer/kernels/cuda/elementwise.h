// Pointwise kernels on a GPU: the functions of trainer/kernels/native/elementwise.h on device
// memory, and the pointwise operations that Ops has besides. One launch each, but for
// ScaleShiftBackward, which has two. Matrices may be of any element.
#pragma once

#include <cstdint>

#include "trainer/kernels/cuda/gpu_stream.h"
#include "trainer/kernels/native/elementwise.h"

namespace deepnet::cuda {

// y[i] += x[i], float32.
void Add(GpuStream& gpu, const float* x, float* y, int64_t n);

// y = GELU(x) = x * Phi(x), the exact form; same shapes; y may be x.
void GeluForward(GpuStream& gpu, native::ConstMatrix x, native::Matrix y);

// dx = dy * GELU'(x), with x as given to GeluForward; dx may be dy.
void GeluBackward(GpuStream& gpu, native::ConstMatrix x, native::ConstMatrix dy, native::Matrix dx);

// x = max(0, x), in place; NaN stays.
void ReluForward(GpuStream& gpu, native::Matrix x);

// dx = 0 where y, ReluForward's result, is not positive; in place.
void ReluBackward(GpuStream& gpu, native::ConstMatrix y, native::Matrix dx);

// to = from, converted if the elements differ: to two bytes rounds to nearest even.
void Cast(GpuStream& gpu, native::ConstMatrix from, native::Matrix to);

// d_branch = dx masked and scaled as DropoutBackward does, by the mask that the sum's forward pass
// wrote (native::ResidualNormForward without a gain); rate 0: d_branch = dx.
void AddBranchBackward(GpuStream& gpu, native::ConstMatrix dx, double rate, const uint8_t* mask,
                       native::Matrix d_branch);

void ScaleShiftForward(GpuStream& gpu, const native::ScaleShiftArgs& args);

// The gradients of scale and shift are summed over blocks of rows, then for each group over the
// blocks and the columns in a fixed order.
void ScaleShiftBackward(GpuStream& gpu, const native::ScaleShiftGradArgs& args);

}  // namespace deepnet::cuda
