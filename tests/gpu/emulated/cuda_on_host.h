// Stands in for nvcc where a kernel source (.cu) is compiled for the host: included before its
// first line (-include; deepnet_cuda_library). A thread of a block is a fiber of one
// thread of the operating system; blocks run one after another.
//
// Mistakes end the process with a text that starts with "emulated GPU: kernel NAME":
//   - barriers, shuffles and votes that not all threads reach, or reach at different places;
//   - a thread that leaves while others wait for it; a shuffle that reads a lane outside the mask;
//   - more shared memory than a block has.
// Shared memory is NaN (bytes 0xff) at the start of a block. With AddressSanitizer, accesses
// outside of it are found; with ThreadSanitizer, accesses that no barrier orders, of threads of a
// block and of blocks (half a millisecond for each thread: tiny shapes).
//
// Threads run in one of three orders, which no result may depend on: SetThreadOrder, or the
// environment variable DEEPNET_EMULATED_ORDER: forward, backward, or shuffled:SEED.
#pragma once

// CUDA's own headers first: they define what is redefined below.
#include <cuda_runtime.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "tests/gpu/emulated/device.h"

namespace emulated_gpu {

inline constexpr int kWarpLanes = 32;
inline constexpr int kMaxBlockThreads = 1024;
inline constexpr size_t kMaxSharedBytes = 48 << 10;

enum class ThreadOrder { kForward, kBackward, kShuffled };

// For kernels that start from now on. `seed` is read where the order is shuffled.
void SetThreadOrder(ThreadOrder order, uint64_t seed = 0);

// Runs thread() once for every thread of every block and returns when all have left. One kernel at
// a time: another caller waits.
void RunKernel(const char* name, dim3 grid, dim3 block, size_t shared_bytes,
               const std::function<void()>& thread);

// Threads and switches between fibers so far, of all kernels.
struct KernelStats {
  uint64_t threads = 0;
  uint64_t switches = 0;
};
KernelStats ReadKernelStats();

namespace internal {

// A place in a kernel source.
struct Place {
  const char* operation;
  const char* file;
  int line;
};

struct BlockState {
  dim3 grid, block;
  uint3 block_index;
};
extern BlockState block_state;
extern const uint3* thread_index;  // of the thread that runs

// The same by value: ThreadSanitizer must not see where the scheduler writes them.
uint3 ThreadIndex();
BlockState State();

void BlockBarrier(const Place& place);

enum class WarpOperation : uint8_t { kBarrier, kShuffle, kAny, kAll, kBallot };

// Waits for all lanes of `mask`. kShuffle returns the `value` of lane `source`, the others nothing
// or the vote over (value != 0).
uint64_t ExchangeInWarp(WarpOperation operation, uint32_t mask, uint64_t value, int source,
                        const Place& place);
int Lane();

void* DynamicShared();

// One shared variable of a kernel; all threads of a block get the same memory.
class SharedVariable {
 public:
  void* Get(size_t bytes);

 private:
  uint64_t block_ = 0;  // that `data_` belongs to, counted through all kernels
  void* data_ = nullptr;
};

enum class ShuffleKind { kIndex, kXor, kUp, kDown };

// The lane that `lane` reads, of a group of `width` neighbours.
inline int ShuffleSource(ShuffleKind kind, int lane, int operand, int width) {
  const int first = lane & ~(width - 1);
  switch (kind) {
    case ShuffleKind::kIndex:
      return first + (operand & (width - 1));
    case ShuffleKind::kXor:
      return (lane ^ operand) < first + width ? lane ^ operand : lane;
    case ShuffleKind::kUp:
      return lane - operand >= first ? lane - operand : lane;
    case ShuffleKind::kDown:
      return lane + operand < first + width ? lane + operand : lane;
  }
  return lane;
}

template <typename T>
T Shuffle(ShuffleKind kind, uint32_t mask, T value, int operand, int width, const Place& place) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  const int source = ShuffleSource(kind, Lane(), operand, width);
  bits = ExchangeInWarp(WarpOperation::kShuffle, mask, bits, source, place);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// `value` with every aligned word that is an address of device memory replaced by the address where
// kernels find it: pointers, and pointers within structs.
template <typename T>
T Rebased(T value) {
  static_assert(std::is_trivially_copyable_v<T>, "what a kernel takes is copied by its bytes");
  if constexpr (std::is_pointer_v<T>) {
    return static_cast<T>(HostView(value));
  }
  unsigned char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  for (size_t i = 0; i + sizeof(void*) <= sizeof(T); i += sizeof(void*)) {
    void* word;
    std::memcpy(&word, bytes + i, sizeof(word));
    word = ArgumentView(word);
    std::memcpy(bytes + i, &word, sizeof(word));
  }
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// Returns what CUDA answers to a launch of this shape.
inline cudaError_t CheckLaunch(dim3 grid, dim3 block, size_t shared_bytes) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > kMaxBlockThreads || block.z > 64) {
    return cudaErrorInvalidConfiguration;
  }
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7FFFFFFFu || grid.y > 0xFFFFu ||
      grid.z > 0xFFFFu) {
    return cudaErrorInvalidConfiguration;
  }
  return shared_bytes > kMaxSharedBytes ? cudaErrorInvalidValue : cudaSuccess;
}

}  // namespace internal

// While one lives, kernels are not run: what remains of a launch is what CUDA says to its shape, so
// that shapes of real models can be tried in no time.
class OnlyCheckLaunches {
 public:
  OnlyCheckLaunches() { active = true; }
  ~OnlyCheckLaunches() { active = false; }
  OnlyCheckLaunches(const OnlyCheckLaunches&) = delete;
  OnlyCheckLaunches& operator=(const OnlyCheckLaunches&) = delete;

  static inline bool active = false;
};

// Puts kernel(arguments...) on the stream. The arguments are copied now.
template <typename... Parameters, typename... Arguments>
cudaError_t LaunchKernel(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                         size_t shared_bytes, cudaStream_t stream, Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments));
  static_assert((sizeof(Parameters) + ... + 0) <= 4096, "what CUDA takes of arguments");
  const cudaError_t error = internal::CheckLaunch(grid, block, shared_bytes);
  if (error != cudaSuccess || OnlyCheckLaunches::active) return error;
  std::tuple<Parameters...> values(std::forward<Arguments>(arguments)...);
  auto rebased = std::apply(
      [](const Parameters&... value) {
        return std::tuple<Parameters...>(internal::Rebased<Parameters>(value)...);
      },
      values);
  return Enqueue(stream, name, [=] {
    RunKernel(name, grid, block, shared_bytes, [&] { std::apply(kernel, rebased); });
  });
}

}  // namespace emulated_gpu

// --- The language of kernels ---

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __managed__
#undef __forceinline__
#undef __noinline__  // the standard library uses the word as an attribute
#undef __launch_bounds__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __shared__ static_assert(false, "use BLOCK_SHARED or DYNAMIC_SHARED");
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__

#if defined(EMULATED_GPU_TSAN)
#define threadIdx (::emulated_gpu::internal::ThreadIndex())
#define blockIdx (::emulated_gpu::internal::State().block_index)
#define blockDim (::emulated_gpu::internal::State().block)
#define gridDim (::emulated_gpu::internal::State().grid)
#else
#define threadIdx (*::emulated_gpu::internal::thread_index)
#define blockIdx (::emulated_gpu::internal::block_state.block_index)
#define blockDim (::emulated_gpu::internal::block_state.block)
#define gridDim (::emulated_gpu::internal::block_state.grid)
#endif
#define warpSize 32

#define DYNAMIC_SHARED(T, name) \
  T* const name = static_cast<T*>(::emulated_gpu::internal::DynamicShared())
#define BLOCK_SHARED(T, name)                                    \
  static ::emulated_gpu::internal::SharedVariable name##_shared; \
  T& name = *static_cast<T*>(name##_shared.Get(sizeof(T)))

// Where a barrier or an exchange stands in the source: of the caller, as default arguments are.
#define EMULATED_GPU_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(EMULATED_GPU_PLACE) {
  ::emulated_gpu::internal::BlockBarrier({"__syncthreads", file, line});
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, EMULATED_GPU_PLACE) {
  using namespace ::emulated_gpu::internal;
  ExchangeInWarp(WarpOperation::kBarrier, mask, 0, 0, {"__syncwarp", file, line});
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, EMULATED_GPU_PLACE) {
  using namespace ::emulated_gpu::internal;
  return Shuffle(ShuffleKind::kIndex, mask, value, source, width, {"__shfl_sync", file, line});
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, EMULATED_GPU_PLACE) {
  using namespace ::emulated_gpu::internal;
  return Shuffle(ShuffleKind::kXor, mask, value, lanes, width, {"__shfl_xor_sync", file, line});
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, EMULATED_GPU_PLACE) {
  using namespace ::emulated_gpu::internal;
  return Shuffle(ShuffleKind::kUp, mask, value, static_cast<int>(by), width,
                 {"__shfl_up_sync", file, line});
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, EMULATED_GPU_PLACE) {
  using namespace ::emulated_gpu::internal;
  return Shuffle(ShuffleKind::kDown, mask, value, static_cast<int>(by), width,
                 {"__shfl_down_sync", file, line});
}

inline int __any_sync(unsigned mask, int predicate, EMULATED_GPU_PLACE) {
  using namespace ::emulated_gpu::internal;
  return static_cast<int>(
      ExchangeInWarp(WarpOperation::kAny, mask, predicate != 0, 0, {"__any_sync", file, line}));
}
inline int __all_sync(unsigned mask, int predicate, EMULATED_GPU_PLACE) {
  using namespace ::emulated_gpu::internal;
  return static_cast<int>(
      ExchangeInWarp(WarpOperation::kAll, mask, predicate != 0, 0, {"__all_sync", file, line}));
}
inline unsigned __ballot_sync(unsigned mask, int predicate, EMULATED_GPU_PLACE) {
  using namespace ::emulated_gpu::internal;
  return static_cast<unsigned>(ExchangeInWarp(WarpOperation::kBallot, mask, predicate != 0, 0,
                                              {"__ballot_sync", file, line}));
}
#undef EMULATED_GPU_PLACE

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// Atomics are for integers: sums of floating-point numbers would depend on the order of threads.
template <typename T>
concept AtomicInteger = std::is_integral_v<T> && sizeof(T) >= 4;

template <AtomicInteger T>
T atomicAdd(T* to, std::type_identity_t<T> value) {
  return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}
template <AtomicInteger T>
T atomicExch(T* to, std::type_identity_t<T> value) {
  return __atomic_exchange_n(to, value, __ATOMIC_RELAXED);
}
template <AtomicInteger T>
T atomicOr(T* to, std::type_identity_t<T> value) {
  return __atomic_fetch_or(to, value, __ATOMIC_RELAXED);
}
template <AtomicInteger T>
T atomicCAS(T* to, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  __atomic_compare_exchange_n(to, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
template <AtomicInteger T>
T atomicMax(T* to, std::type_identity_t<T> value) {
  T old = __atomic_load_n(to, __ATOMIC_RELAXED);
  while (old < value &&
         !__atomic_compare_exchange_n(to, &old, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}
template <AtomicInteger T>
T atomicMin(T* to, std::type_identity_t<T> value) {
  T old = __atomic_load_n(to, __ATOMIC_RELAXED);
  while (value < old &&
         !__atomic_compare_exchange_n(to, &old, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}

template <typename T>
T __ldg(const T* p) {
  return *p;
}

inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(uint64_t{a} * b >> 32);
}
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }

inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

// CUDA has these in the global namespace, for arguments of one type.
template <typename T>
requires std::is_arithmetic_v<T>
constexpr T min(T a, T b) { return b < a ? b : a; }
template <typename T>
requires std::is_arithmetic_v<T>
constexpr T max(T a, T b) { return a < b ? b : a; }
