// The copy is on a stream of its own between two events: it follows what computes its values, and
// what changes them follows it.
#include "trainer/kernels/side_copies.h"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include <sys/mman.h>

#include "parallel/base/host.h"
#include "trainer/kernels/cuda/gpu_stream.h"
#include "trainer/kernels/native/thread_pool.h"

namespace deepnet {
namespace {

// Does not ask which kernel was launched last, as GpuStream does: the thread may be another.
void Check(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return;
  throw cuda::GpuError(std::string("CUDA error in ") + what + " of a save: " +
                       cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")");
}

constexpr int64_t kTouched = int64_t{256} << 20;  // bytes that a thread takes at a time

// Returns memory whose pages exist, or null: it stops before the host has none left, as a process
// that asks for more is ended.
std::shared_ptr<float[]> MakePages(int64_t bytes, int threads) {
  if (bytes > UsableMemoryBytes()) return nullptr;
  const auto size = static_cast<size_t>(bytes);
  void* const begin =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (begin == MAP_FAILED) return nullptr;
  std::shared_ptr<float[]> memory(static_cast<float*>(begin),
                                  [size](float* p) { munmap(p, size); });
  madvise(begin, size, MADV_HUGEPAGE);  // a host without them has small ones
  const int64_t page = sysconf(_SC_PAGESIZE);
  std::atomic<bool> ended{false};
  native::ThreadPool pool(threads);
  native::ForBlocks(pool, bytes, kTouched, [&](int64_t first, int64_t end, int) {
    if (ended || AvailableMemoryBytes() < end - first) {
      ended = true;
      return;
    }
    for (int64_t i = first; i < end; i += page) static_cast<volatile char*>(begin)[i] = 0;
  });
  return ended ? nullptr : memory;
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

  // The pages are there before CUDA pins them: cudaHostAlloc would make them by one thread.
  std::shared_ptr<float[]> Pin(int64_t bytes, int threads) override {
    bytes = std::max<int64_t>(1, bytes);
    std::shared_ptr<float[]> memory = MakePages(bytes, threads);
    if (memory == nullptr) return nullptr;
    const cudaError_t error =
        cudaHostRegister(memory.get(), static_cast<size_t>(bytes), cudaHostRegisterDefault);
    if (error == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());  // told to the caller, not to the next launch
      return nullptr;
    }
    Check("cudaHostRegister", error);
    float* const pinned = memory.get();
    return {pinned, [memory = std::move(memory)](float* p) { cudaHostUnregister(p); }};
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
