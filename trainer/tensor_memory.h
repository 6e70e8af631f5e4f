// Bytes of tensors: what a plan's figures are compared with.
//
// On a CPU, LibTorch's allocator is wrapped in one that adds up what it hands out, by the thread
// that asks: a rank is a thread, whether it has a process of its own or not. On another device its
// caching allocator counts already. What is not in tensors (packed weights, scratch of
// kernels) is Ops::OwnBytes; what belongs to no plan (the corpus, text, MPI) is counted nowhere.
//
// Example:
//   TensorMemory memory("cpu");
//   ... make a model
//   memory.ForgetPeak();
//   ... a step
//   const int64_t most = memory.peak_bytes();
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace deepnet {

class TensorMemory {
 public:
  struct Counts {
    std::atomic<int64_t> live{0}, peak{0};

    void Add(int64_t bytes);
  };

  // Counts what the calling thread allocates from now on, wherever it is freed; a later object of
  // the same thread takes over. `device`: "cpu", or one that this process has, of which the
  // thread's current one is meant.
  explicit TensorMemory(const std::string& device);

  // Of tensors made since counting began.
  int64_t live_bytes() const;
  // The most since then, or since ForgetPeak.
  int64_t peak_bytes() const;
  void ForgetPeak();

 private:
  std::shared_ptr<Counts> counts_;  // null: the device counts
};

}  // namespace deepnet
