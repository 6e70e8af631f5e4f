// Cross-entropy of trainer/kernels/native/cross_entropy.h on a GPU: the same arguments, whose
// pointers are device memory. Targets lie on the device, so that no call waits: that they are -1 or
// below the vocabulary is for whoever makes the batch.
#pragma once

#include <cstdint>

#include "trainer/kernels/cuda/gpu_stream.h"
#include "trainer/kernels/native/cross_entropy.h"

namespace deepnet::cuda {

// One launch: loss and gradient of a row by one block, which reads the row again from the cache.
// d_logits may be the logits themselves, also of 16-bit numbers if their stride is twice that of
// the logits: a row's gradient then lies in the first half of the row.
void CrossEntropyRows(GpuStream& gpu, const native::CrossEntropyArgs& args);

// One launch.
void LogSoftmaxRows(GpuStream& gpu, native::ConstMatrix logits, native::Matrix y);

// One launch.
void AverageLogProbs(GpuStream& gpu, int64_t num_elements, int n, const float* x, float* y);

// sums[0] += the sum of loss [rows], sums[1] += the sum of nll [rows], in double precision and an
// order that depends on `rows` alone. One launch. `sums` is device memory: a step reads it once.
void SumLosses(GpuStream& gpu, int64_t rows, const float* loss, const float* nll, double* sums);

}  // namespace deepnet::cuda
