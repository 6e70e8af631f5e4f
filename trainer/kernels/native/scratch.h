// Scratch memory that kernels use during one call and that the next call uses again.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace deepnet::native {

// Memory on a cache line's boundary. Movable.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(int64_t num_floats);

  float* floats() const { return data_.get(); }
  int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(float* p) const;
  };
  std::unique_ptr<float, Free> data_;
  int64_t bytes_ = 0;
};

// One buffer per thread of a pool and one for the whole call, each 64-byte aligned and grown when
// needed, never shrunk. Contents do not outlive the kernel that asked. One caller at a time; within
// a ParallelFor body only ForThread(own thread) may be read, and nothing may be reserved.
class Scratch {
 public:
  // num_floats for the whole call; valid until the next Reserve or the end of this object.
  float* Reserve(int64_t num_floats);

  // Makes ForThread(t) hold num_floats for every t < num_threads.
  void ReservePerThread(int num_threads, int64_t num_floats);
  float* ForThread(int thread) { return per_thread_[thread].floats(); }

  // Bytes held now.
  int64_t num_bytes() const;

 private:
  AlignedBuffer shared_;
  std::vector<AlignedBuffer> per_thread_;
};

}  // namespace deepnet::native
