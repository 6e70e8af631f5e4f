// The residual step with its norm on a GPU: the functions of trainer/kernels/native/residual_norm.h
// on device memory. One launch forward, two backward. Operands may be of any element.
#pragma once

#include "trainer/kernels/cuda/gpu_stream.h"
#include "trainer/kernels/native/residual_norm.h"

namespace deepnet::cuda {

void ResidualNormForward(GpuStream& gpu, const native::ResidualNormForwardArgs& args);

// y = xhat * gain + bias: what the forward pass wrote, again, bit for bit. xhat [rows, width]
// float32, y of any element; bias may be null.
void NormOutput(GpuStream& gpu, native::ConstMatrix xhat, const float* gain, const float* bias,
                native::Matrix y);

// The gradients of gain and bias are summed over blocks of rows that depend on the width alone,
// then over the blocks in a fixed order. A `dy` with data is read in place of args.dy and may be of
// any element.
void ResidualNormBackward(GpuStream& gpu, const native::ResidualNormBackwardArgs& args,
                          native::ConstMatrix dy = {});

// Two launches, and one for each of y and y_operand.
void BatchNormForward(GpuStream& gpu, const native::ResidualNormForwardArgs& args);

// One launch.
void BatchNormBackward(GpuStream& gpu, const native::ResidualNormBackwardArgs& args);

}  // namespace deepnet::cuda
