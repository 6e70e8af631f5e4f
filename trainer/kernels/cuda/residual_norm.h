// The residual step with its norm on a GPU: the functions of trainer/kernels/native/residual_norm.h
// on device memory. One launch forward, two backward. Operands may be of any element.
#pragma once

#include "trainer/kernels/cuda/gpu_stream.h"
#include "trainer/kernels/native/residual_norm.h"

namespace deepnet::cuda {

void ResidualNormForward(GpuStream& gpu, const native::ResidualNormArgs& args);

// y = xhat * gain + bias: what the forward pass wrote, again, bit for bit. xhat [rows, width]
// float32, y of any element; bias may be null.
void NormOutput(GpuStream& gpu, native::ConstMatrix xhat, const float* gain, const float* bias,
                native::Matrix y);

// The gradients of gain and bias are summed over blocks of rows that depend on the width alone,
// then over the blocks in a fixed order.
void ResidualNormBackward(GpuStream& gpu, const native::ResidualNormGradArgs& args);

// Two launches, and one for each of y and y_operand.
void BatchNormForward(GpuStream& gpu, const native::ResidualNormArgs& args);

// One launch.
void BatchNormBackward(GpuStream& gpu, const native::ResidualNormGradArgs& args);

}  // namespace deepnet::cuda
