// Scratch memory that kernels use during one call and that the next call uses again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace deepnet::native {

// One buffer per thread of a pool and one for the whole call, each 64-byte aligned and grown when
// needed, never shrunk. Contents do not outlive the kernel that asked. One caller at a time; within
// a ParallelFor body only ForThread(own thread) may be read, and nothing may be reserved.
class Scratch {
 public:
  // num_floats for the whole call; valid until the next Reserve or the end of this object.
  float* Reserve(int64_t num_floats);

  // Makes ForThread(t) hold num_floats for every t < num_threads.
  void ReservePerThread(int num_threads, int64_t num_floats);
  float* ForThread(int thread) { return per_thread_[thread].data.get(); }

  // Bytes held now.
  int64_t num_bytes() const;

 private:
  struct Free {
    void operator()(float* p) const;
  };
  struct Buffer {
    std::unique_ptr<float, Free> data;
    int64_t num_floats = 0;
  };

  static void Grow(Buffer& buffer, int64_t num_floats);

  Buffer shared_;
  std::vector<Buffer> per_thread_;
};

}  // namespace deepnet::native
