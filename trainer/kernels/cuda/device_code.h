// The source of a kernel (.cu) includes this first. nvcc compiles it for GPUs. The tests' emulated
// GPU compiles the same source for the host, where a thread of a block is a fiber; its own header,
// included before this one, then stands in for what nvcc knows (tests/gpu/emulated).
//
// Kernel sources keep to what both can do:
//   - shared memory is declared by DYNAMIC_SHARED and BLOCK_SHARED, never by __shared__;
//   - kernels are launched by Launch (trainer/kernels/cuda/launch.h), never by <<<>>>;
//   - no PTX, no __device__ variables, no dynamic parallelism;
//   - no floating-point atomics: the bits of a result do not depend on the order of threads.
#pragma once

#include <cuda_runtime.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifdef __CUDACC__
// The dynamic shared memory of the block, as an array of T.
#define DYNAMIC_SHARED(T, name)                                 \
  extern __shared__ __align__(16) unsigned char name##_bytes[]; \
  T* const name = reinterpret_cast<T*>(name##_bytes)
// One T of the block, without a value at first.
#define BLOCK_SHARED(T, name) __shared__ T name
#endif
