// Launching kernels; for kernel sources (.cu) only.
//
// Example:
//   Launch(gpu, "Add", AddKernel, blocks, kThreads, /*shared_bytes=*/0, x, y, n);
#pragma once

#include <cstdint>
#include <tuple>
#include <utility>

#include "parallel/base/check.h"
#include "trainer/kernels/cuda/device_code.h"
#include "trainer/kernels/cuda/gpu_stream.h"

namespace deepnet::cuda {

// Puts kernel(values...) on the stream.
template <typename... Parameters>
void LaunchNow(GpuStream& gpu, const char* name, void (*kernel)(Parameters...), dim3 grid,
               dim3 block, size_t shared_bytes, std::tuple<Parameters...>& values) {
  gpu.Launching();
  const cudaError_t error = std::apply(
      [&](Parameters&... value) {
#ifdef __CUDACC__
        void* pointers[] = {&value...};
        return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, pointers,
                                shared_bytes, gpu.get());
#else
        return emulated_gpu::LaunchKernel(name, kernel, grid, block, shared_bytes, gpu.get(),
                                          value...);
#endif
      },
      values);
  gpu.Launched(name, error);
}

// Puts kernel(args...) on the stream, or among what it gathers; arguments are copied now. `name` is
// a literal: errors, counts and traces show it. `shared_bytes`, of DYNAMIC_SHARED, at most 48 KiB.
template <typename... Parameters, typename... Arguments>
void Launch(GpuStream& gpu, const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            size_t shared_bytes, Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments));
  std::tuple<Parameters...> values(std::forward<Arguments>(arguments)...);
  LaunchGatherer* const graphs = gpu.graphs();
  if (graphs == nullptr) return LaunchNow(gpu, name, kernel, grid, block, shared_bytes, values);
  graphs->AddToKey(kernel);
  graphs->AddToKey(grid);
  graphs->AddToKey(block);
  graphs->AddToKey(shared_bytes);
  std::apply([&](const Parameters&... value) { (graphs->AddToKey(value), ...); }, values);
  graphs->Add(
      [=, &gpu]() mutable { LaunchNow(gpu, name, kernel, grid, block, shared_bytes, values); });
}

// The blocks that n things need, `per_block` in each.
inline unsigned BlocksOf(int64_t n, int64_t per_block) {
  const int64_t blocks = (n + per_block - 1) / per_block;
  DEEPNET_CHECK_LT(blocks, int64_t{1} << 31);
  return static_cast<unsigned>(blocks);
}

}  // namespace deepnet::cuda
