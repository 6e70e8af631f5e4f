// Small data that goes between the host and a GPU during a step without stopping either.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "trainer/kernels/cuda/gpu_stream.h"

namespace deepnet::cuda {

// Arrays on their way to the device: what Add takes lies in pinned memory until UploadPool::Send
// copies all of it at once.
class UploadBlock {
 public:
  // Copies `host` and returns where it will be on the device, aligned to 16 bytes.
  template <typename T>
  const T* Add(std::span<const T> host) {
    return static_cast<const T*>(AddBytes(host.data(), static_cast<int64_t>(host.size_bytes())));
  }

  // The bytes that an array takes in a block.
  static int64_t Padded(int64_t bytes) { return (bytes + 15) / 16 * 16; }

 private:
  friend class UploadPool;
  struct Memory;

  UploadBlock(std::shared_ptr<Memory> memory, int64_t room)
      : memory_(std::move(memory)), room_(room) {}
  const void* AddBytes(const void* host, int64_t bytes);

  std::shared_ptr<Memory> memory_;
  int64_t room_;
  int64_t used_ = 0;
};

// Blocks come back to the pool when the last handle of what was sent is dropped. A new one is as
// large as the largest that was asked for or reserved, so that it serves every later one.
class UploadPool {
 public:
  explicit UploadPool(GpuStream& gpu) : gpu_(gpu) {}  // it must outlive the pool and all handles
  UploadPool(const UploadPool&) = delete;
  UploadPool& operator=(const UploadPool&) = delete;

  // Makes blocks for `count` uploads at a time of at most `bytes` each.
  void Reserve(int count, int64_t bytes);
  // Returns an empty block with room for `bytes`, padded sizes of arrays summed.
  UploadBlock Begin(int64_t bytes);
  // Puts the copy on the stream. The device's arrays live as long as the result.
  std::shared_ptr<const void> Send(UploadBlock block);

 private:
  using Blocks = std::vector<std::shared_ptr<UploadBlock::Memory>>;
  GpuStream& gpu_;
  const std::shared_ptr<Blocks> free_ = std::make_shared<Blocks>();
  int64_t block_bytes_ = 16;  // of a new block
};

// Results on their way to the host: kernels write them to device memory, and one copy and one wait
// fetch all that were asked for.
class ResultQueue {
 public:
  explicit ResultQueue(GpuStream& gpu);  // which must outlive it; there is room for 1 MiB
  ~ResultQueue();
  ResultQueue(const ResultQueue&) = delete;
  ResultQueue& operator=(const ResultQueue&) = delete;

  // Makes room for `bytes`, padded sizes of arrays summed: Add does not wait until so much is
  // taken.
  void Reserve(int64_t bytes);

  // Returns device memory for `host.size()` values, zeros at first; the next Wait copies them to
  // `host`. Where there is no room it waits as Wait does.
  template <typename T>
  T* Add(std::span<T> host) {
    return static_cast<T*>(AddBytes(host.data(), static_cast<int64_t>(host.size_bytes())));
  }

  // Waits for everything on the stream and fills the host memory of all that was added since the
  // last Wait.
  void Wait();

 private:
  struct Pending {
    void* host;
    int64_t offset, bytes;
  };

  void* AddBytes(void* host, int64_t bytes);
  void Grow(int64_t bytes);

  GpuStream& gpu_;
  std::shared_ptr<void> device_;
  char* pinned_ = nullptr;
  int64_t capacity_ = 0;
  int64_t used_ = 0;
  std::vector<Pending> pending_;
};

}  // namespace deepnet::cuda
