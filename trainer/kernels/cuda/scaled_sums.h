// Sums that no kernel for CPUs stands beside: bias gradients, and streams that are scaled and added
// (BRANCH_NORM, DLCL). Orders of additions are fixed.
#pragma once

#include "trainer/kernels/cuda/gpu_stream.h"
#include "trainer/kernels/native/matrix.h"

namespace deepnet::cuda {

// dbias [dy.cols] += the sum of each column of dy. Two launches, one of up to native::kFewRows
// rows.
void AddBiasGradient(GpuStream& gpu, native::ConstMatrix dy, float* dbias);

// ReluBackward (elementwise.h), then AddBiasGradient of its result, with the same bits and
// launches.
void ReluBackwardWithBias(GpuStream& gpu, native::ConstMatrix y, native::Matrix dx, float* dbias);

// x *= factor. One launch.
void Scale(GpuStream& gpu, float factor, native::Matrix x);

// y += *factor * x; `factor` is device memory. One launch.
void AddScaled(GpuStream& gpu, native::ConstMatrix x, const float* factor, native::Matrix y);

// dx += *factor * dy, *dfactor += the sum of dy * x over all elements. Three launches.
void AddScaledBackward(GpuStream& gpu, native::ConstMatrix dy, native::ConstMatrix x,
                       const float* factor, native::Matrix dx, float* dfactor);

}  // namespace deepnet::cuda
