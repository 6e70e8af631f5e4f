// Attention of trainer/kernels/native/attention.h on a GPU: the same arguments, whose pointers are
// device memory, and the same dropped weights. head_dim is at most native::kMaxGpuHeadDim.
//
// Offsets lie on the device, so that no call waits: what the CPU's kernels check of them (that they
// do not decrease, end within the matrices, are equal where `causal`, and that a sentence with
// queries has keys) is for whoever makes the batch. Results are the same bits whatever the order of
// threads, and those of a sentence do not depend on its neighbours.
#pragma once

#include "trainer/kernels/cuda/gpu_stream.h"
#include "trainer/kernels/native/attention.h"

namespace deepnet::cuda {

// One launch. args.log_sum_exp_RH may be null where there will be no backward pass.
void AttentionForward(GpuStream& gpu, const native::AttentionArgs& args);

// Two launches. Reads the context. Scratch: a float for each query row and head.
void AttentionBackward(GpuStream& gpu, const native::AttentionGradArgs& args);

// One launch.
void DecodeAttention(GpuStream& gpu, const native::DecodeAttentionArgs& args);

}  // namespace deepnet::cuda
