// A device of the emulated GPU without streams of its own: every call has happened when it returns,
// and device memory is memory of the heap, so that sanitizers see the bounds of each allocation.
// Tests of kernels link it; what depends on order is tested with the device of streams instead.
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "tests/gpu/emulated/device.h"

// When it was recorded.
struct CUevent_st {
  std::chrono::steady_clock::time_point at;
};

namespace emulated_gpu {
namespace {

struct Failure {
  int64_t calls_left = 0;
  int error = 0;
};

struct State {
  std::mutex mutex;
  Counters counters;
  std::map<std::string, int64_t> launches;
  std::map<std::string, Failure> failures;
};

State& state() {
  static State* const one = new State;
  return *one;
}

// The error that FailAt has set for this call, or cudaSuccess.
cudaError_t Injected(const char* call) {
  State& s = state();
  std::lock_guard lock(s.mutex);
  const auto found = s.failures.find(call);
  if (found == s.failures.end() || --found->second.calls_left > 0) return cudaSuccess;
  const auto error = static_cast<cudaError_t>(found->second.error);
  s.failures.erase(found);
  return error;
}

}  // namespace

cudaError_t Enqueue(cudaStream_t, const char* name, std::function<void()> work) {
  const cudaError_t error = Injected(name);
  if (error != cudaSuccess) return error;
  {
    State& s = state();
    std::lock_guard lock(s.mutex);
    ++s.counters.launches;
    ++s.launches[name];
  }
  work();
  return cudaSuccess;
}

void* HostView(const void* pointer) { return const_cast<void*>(pointer); }
void* ArgumentView(const void* word) { return const_cast<void*>(word); }

Counters ReadCounters() {
  std::lock_guard lock(state().mutex);
  return state().counters;
}

std::map<std::string, int64_t> ReadLaunches() {
  std::lock_guard lock(state().mutex);
  return state().launches;
}

void FailAt(const std::string& call, int64_t nth, int error) {
  std::lock_guard lock(state().mutex);
  state().failures[call] = {nth, error};
}

}  // namespace emulated_gpu

using emulated_gpu::Injected;
using emulated_gpu::state;

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  const cudaError_t error = Injected("cudaMalloc");
  if (error != cudaSuccess) return error;
  *pointer = nullptr;
  if (bytes > 0) {
    if (posix_memalign(pointer, 256, bytes) != 0) return cudaErrorMemoryAllocation;
    std::memset(*pointer, 0xff, bytes);
  }
  std::lock_guard lock(state().mutex);
  ++state().counters.allocations;
  state().counters.allocated_bytes += static_cast<int64_t>(bytes);
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  std::free(pointer);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  if (bytes > 0) std::memmove(to, from, bytes);
  std::lock_guard lock(state().mutex);
  ++state().counters.copies;
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  std::memset(to, value, bytes);
  std::lock_guard lock(state().mutex);
  ++state().counters.copies;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = static_cast<cudaStream_t>(std::malloc(1));
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::free(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) {
  {
    std::lock_guard lock(state().mutex);
    ++state().counters.waits;
  }
  return Injected("cudaStreamSynchronize");
}

// No stream, no graphs.
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  return cudaErrorNotSupported;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*) { return cudaErrorNotSupported; }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t*, cudaGraph_t, unsigned long long) {
  return cudaErrorNotSupported;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaErrorNotSupported; }
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaErrorNotSupported; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return cudaErrorNotSupported; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaErrorNotSupported; }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  event->at = std::chrono::steady_clock::now();
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  *milliseconds = std::chrono::duration<float, std::milli>(to->at - from->at).count();
  return cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    default:
      return "another error";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    default:
      return "see the runtime's documentation";
  }
}

}  // extern "C"

// Tests of kernels need no products. A linker that takes in linear.cc all the same (ASan's builds)
// finds the names of cuBLASLt here; calling one ends the test.
extern "C" {
[[noreturn]] void cublasLtCreate() { std::abort(); }
[[noreturn]] void cublasLtDestroy() { std::abort(); }
[[noreturn]] void cublasLtGetStatusString() { std::abort(); }
[[noreturn]] void cublasLtMatmul() { std::abort(); }
[[noreturn]] void cublasLtMatmulAlgoGetHeuristic() { std::abort(); }
[[noreturn]] void cublasLtMatmulDescCreate() { std::abort(); }
[[noreturn]] void cublasLtMatmulDescDestroy() { std::abort(); }
[[noreturn]] void cublasLtMatmulDescSetAttribute() { std::abort(); }
[[noreturn]] void cublasLtMatmulPreferenceCreate() { std::abort(); }
[[noreturn]] void cublasLtMatmulPreferenceDestroy() { std::abort(); }
[[noreturn]] void cublasLtMatmulPreferenceSetAttribute() { std::abort(); }
[[noreturn]] void cublasLtMatrixLayoutCreate() { std::abort(); }
[[noreturn]] void cublasLtMatrixLayoutDestroy() { std::abort(); }
}
