// Measures the bytes of tensors, which a plan's figures are compared with.
//
// On a CPU, LibTorch's allocator is wrapped in one that adds up what it hands out, by the calling
// thread: a rank is a thread, whether it has a process of its own or not. On another device the
// caching allocator counts already. Packed weights and scratch of kernels are counted by
// DeviceSession::OwnBytes; memory outside of the plan (the corpus, text, MPI) is not counted.
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

  // Counts what the calling thread allocates from now on, wherever it is freed, until the thread
  // makes another TensorMemory. `device` is "cpu" or a kind of device that this process has; the
  // thread's current one is measured.
  explicit TensorMemory(const std::string& device);

  // The most bytes of tensors at a time that were allocated since counting began; after ForgetPeak
  // the most since then, of all that are alive.
  int64_t peak_bytes() const;
  void ForgetPeak();

 private:
  std::shared_ptr<Counts> counts_;  // null: the device counts
};

// Returns the bytes of the calling thread's current GPU that nobody has, once this process has its
// context there. Throws what LibTorch throws, as does the next.
int64_t FreeGpuBytes();

// Waits for the GPU, and gives back what LibTorch's allocator keeps and no tensor has.
void FreeCachedGpuBytes();

}  // namespace deepnet
