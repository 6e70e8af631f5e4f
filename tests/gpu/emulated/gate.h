// Work that holds a stream up for as long as a test wants.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>

#include "tests/gpu/emulated/device.h"

namespace emulated_gpu {

// A kernel that ends when the gate is opened, at the latest with this object.
class Gate {
 public:
  explicit Gate(cudaStream_t stream) {
    error_ = Enqueue(stream, "Gate", [open = open_] { open->wait(false); });
  }
  ~Gate() { Open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  cudaError_t error() const { return error_; }  // of the launch

  void Open() {
    *open_ = true;
    open_->notify_all();
  }

 private:
  const std::shared_ptr<std::atomic<bool>> open_ = std::make_shared<std::atomic<bool>>(false);
  cudaError_t error_ = cudaSuccess;
};

}  // namespace emulated_gpu
