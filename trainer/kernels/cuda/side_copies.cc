// The copy is on a stream of its own between two events: it follows what computes its values, and
// what changes them follows it.
#include "trainer/kernels/side_copies.h"

#include <cuda_runtime_api.h>

#include <string>

#include "trainer/kernels/cuda/gpu_stream.h"

namespace deepnet {
namespace {

// Does not ask which kernel was launched last, as GpuStream does: the thread may be another.
void Check(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return;
  throw cuda::GpuError(std::string("CUDA error in ") + what + " of a save: " +
                       cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")");
}

class CudaSideCopies final : public SideCopies {
 public:
  explicit CudaSideCopies(cudaStream_t computes) : computes_(computes) {
    Check("cudaGetDevice", cudaGetDevice(&device_));
    Check("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    Check("cudaEventCreateWithFlags", cudaEventCreateWithFlags(&ready_, cudaEventDisableTiming));
    // The thread that waits sleeps.
    Check("cudaEventCreateWithFlags",
          cudaEventCreateWithFlags(&ended_, cudaEventDisableTiming | cudaEventBlockingSync));
  }
  // Errors have been thrown by the calls before, or belong to a rank that ends.
  ~CudaSideCopies() override {
    cudaStreamSynchronize(stream_);
    cudaEventDestroy(ready_);
    cudaEventDestroy(ended_);
    cudaStreamDestroy(stream_);
  }
  CudaSideCopies(const CudaSideCopies&) = delete;
  CudaSideCopies& operator=(const CudaSideCopies&) = delete;

  std::shared_ptr<float[]> Pin(int64_t bytes) override {
    void* memory = nullptr;
    const cudaError_t error =
        cudaHostAlloc(&memory, static_cast<size_t>(bytes), cudaHostAllocDefault);
    if (error == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());  // told to the caller, not to the next launch
      return nullptr;
    }
    Check("cudaHostAlloc", error);
    return {static_cast<float*>(memory), [](float* p) { cudaFreeHost(p); }};
  }

  void Begin(std::span<const SideCopy> parts) override {
    Check("cudaEventRecord", cudaEventRecord(ready_, computes_));
    Check("cudaStreamWaitEvent", cudaStreamWaitEvent(stream_, ready_, 0));
    for (const SideCopy& part : parts) {
      Check("cudaMemcpyAsync",
            cudaMemcpyAsync(part.to, part.from, static_cast<size_t>(part.count) * sizeof(float),
                            cudaMemcpyDeviceToHost, stream_));
    }
    Check("cudaEventRecord", cudaEventRecord(ended_, stream_));
  }

  // Where no copy has begun yet, CUDA takes the event as one that is past.
  void HoldStream() override {
    Check("cudaStreamWaitEvent", cudaStreamWaitEvent(computes_, ended_, 0));
  }

  // A new thread has device 0.
  void Wait() override {
    Check("cudaSetDevice", cudaSetDevice(device_));
    Check("cudaEventSynchronize", cudaEventSynchronize(ended_));
  }

 private:
  const cudaStream_t computes_;
  int device_ = 0;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t ready_ = nullptr, ended_ = nullptr;
};

}  // namespace

std::unique_ptr<SideCopies> MakeSideCopies(void* stream) {
  return std::make_unique<CudaSideCopies>(static_cast<cudaStream_t>(stream));
}

}  // namespace deepnet
