// Dropout on a GPU: the functions of trainer/kernels/native/dropout.h on device memory, with the
// same decisions. Matrices may be of any element.
#pragma once

#include <cstdint>

#include "trainer/kernels/cuda/gpu_stream.h"
#include "trainer/kernels/native/dropout.h"

namespace deepnet::cuda {

// x = keep ? x / (1 - rate) : 0, in place; writes the mask.
void DropoutForward(GpuStream& gpu, DropoutSite key, const PackedRows& ids, native::Matrix x,
                    uint8_t* mask);

// dx = keep ? dx / (1 - rate) : 0, in place, by the mask of the forward pass.
void DropoutBackward(GpuStream& gpu, double rate, const uint8_t* mask, native::Matrix dx);

}  // namespace deepnet::cuda
