// Buffers of one shape that are handed out and come back by themselves.
//
// Example:
//   at::Tensor rows = pool.Claim();   // ... the last handle goes, and the buffer is the pool's
//   again
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

namespace deepnet {

// A buffer is in use as long as anybody but the pool has a handle of it; views are no handles. Used
// by one thread.
class StreamPool {
 public:
  StreamPool(int64_t rows, int64_t width, at::TensorOptions options)
      : rows_(rows), width_(width), options_(options) {}

  // [rows, width]; contents are those of an earlier use.
  at::Tensor Claim() {
    for (const at::Tensor& buffer : buffers_) {
      if (buffer.use_count() == 1) return buffer;
    }
    return buffers_.emplace_back(at::zeros({rows_, width_}, options_));
  }

  int size() const { return static_cast<int>(buffers_.size()); }  // the most ever in use

 private:
  int64_t rows_, width_;
  at::TensorOptions options_;
  std::vector<at::Tensor> buffers_;
};

}  // namespace deepnet
