#include "trainer/kernels/cuda/gpu_stream.h"

#include <utility>

namespace deepnet::cuda {

// cudaFree waits for the kernels that use what is given back.
GpuStream::GpuStream(bool check_launches, Allocate allocate)
    : check_launches_(check_launches), allocate_(std::move(allocate)) {
  if (!allocate_) {
    allocate_ = [this](int64_t bytes) {
      void* memory = nullptr;
      Check("cudaMalloc", cudaMalloc(&memory, static_cast<size_t>(bytes)));
      return std::shared_ptr<void>(memory, [](void* p) { cudaFree(p); });
    };
  }
  Check("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

// Errors have been thrown by the calls before, or belong to a rank that ends.
GpuStream::~GpuStream() {
  cudaStreamSynchronize(stream_);
  scratch_ = nullptr;
  cudaStreamDestroy(stream_);
}

void* GpuStream::Scratch(int64_t bytes) {
  if (bytes > scratch_bytes_) {
    scratch_ = nullptr;
    scratch_bytes_ = 0;
    scratch_ = Take(bytes);
    scratch_bytes_ = bytes;
  }
  return scratch_.get();
}

void GpuStream::Wait() {
  ++waits_;
  Check("cudaStreamSynchronize", cudaStreamSynchronize(stream_));
}

void GpuStream::Launched(const char* what, cudaError_t error) {
  Check(what, error);
  ++launches_;
  last_ = what;
  if (!check_launches_) return;
  ++waits_;
  Check(what, cudaStreamSynchronize(stream_));
}

void GpuStream::Check(const char* what, cudaError_t error) const {
  if (error == cudaSuccess) return;
  throw GpuError(std::string("CUDA error in ") + what + ": " + cudaGetErrorString(error) + " (" +
                 cudaGetErrorName(error) + "); last launched before: " + last_);
}

}  // namespace deepnet::cuda
