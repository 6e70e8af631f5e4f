#include "trainer/kernels/cuda/host_copies.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "parallel/base/check.h"

namespace deepnet::cuda {
namespace {

constexpr int64_t kFirstResultBytes = int64_t{1} << 20;

}  // namespace

struct UploadBlock::Memory {
  Memory(GpuStream& gpu, int64_t bytes) : capacity(bytes), device(gpu.Allocate(bytes)) {
    gpu.Check("cudaMallocHost", cudaMallocHost(&pinned, static_cast<size_t>(bytes)));
    gpu.Check("cudaEventCreateWithFlags",
              cudaEventCreateWithFlags(&copied, cudaEventDisableTiming));
  }
  ~Memory() {
    cudaEventDestroy(copied);
    cudaFreeHost(pinned);
  }

  const int64_t capacity;
  const std::shared_ptr<void> device;
  void* pinned = nullptr;
  cudaEvent_t copied = nullptr;
};

const void* UploadBlock::AddBytes(const void* host, int64_t bytes) {
  const int64_t offset = used_;
  used_ += Padded(bytes);
  DEEPNET_CHECK_LE(used_, room_) << "bytes of arrays in an upload";
  if (bytes > 0) {
    std::memcpy(static_cast<char*>(memory_->pinned) + offset, host, static_cast<size_t>(bytes));
  }
  return static_cast<const char*>(memory_->device.get()) + offset;
}

void UploadPool::Reserve(int count, int64_t bytes) {
  block_bytes_ = std::max(block_bytes_, bytes);
  for (int i = 0; i < count; ++i) {
    free_->push_back(std::make_shared<UploadBlock::Memory>(gpu_, block_bytes_));
  }
}

// The pinned half of a free block may still be read by its last copy; the device's half is used in
// the stream's order in any case.
UploadBlock UploadPool::Begin(int64_t bytes) {
  for (auto block = free_->begin(); block != free_->end(); ++block) {
    if ((*block)->capacity < bytes || cudaEventQuery((*block)->copied) != cudaSuccess) continue;
    UploadBlock found(std::move(*block), bytes);
    free_->erase(block);
    return found;
  }
  block_bytes_ = std::max(block_bytes_, bytes);
  return {std::make_shared<UploadBlock::Memory>(gpu_, block_bytes_), bytes};
}

std::shared_ptr<const void> UploadPool::Send(UploadBlock block) {
  const UploadBlock::Memory& memory = *block.memory_;
  gpu_.Launching();
  gpu_.Launched("Upload", cudaMemcpyAsync(memory.device.get(), memory.pinned,
                                          static_cast<size_t>(block.used_), cudaMemcpyHostToDevice,
                                          gpu_.get()));
  gpu_.Check("cudaEventRecord", cudaEventRecord(memory.copied, gpu_.get()));
  const void* const device = memory.device.get();
  return {device, [free = free_, sent = std::move(block.memory_)](const void*) mutable {
            free->push_back(std::move(sent));
          }};
}

ResultQueue::ResultQueue(GpuStream& gpu) : gpu_(gpu) { Grow(kFirstResultBytes); }

ResultQueue::~ResultQueue() { cudaFreeHost(pinned_); }

void ResultQueue::Reserve(int64_t bytes) {
  if (used_ + bytes <= capacity_) return;
  Wait();
  if (bytes > capacity_) Grow(bytes);
}

void* ResultQueue::AddBytes(void* host, int64_t bytes) {
  const int64_t padded = UploadBlock::Padded(bytes);
  Reserve(padded);
  char* const result = static_cast<char*>(device_.get()) + used_;
  gpu_.Launching();
  gpu_.Launched("Zero", cudaMemsetAsync(result, 0, static_cast<size_t>(bytes), gpu_.get()));
  pending_.push_back({host, used_, bytes});
  used_ += padded;
  return result;
}

// Nothing is under way.
void ResultQueue::Grow(int64_t bytes) {
  cudaFreeHost(pinned_);
  pinned_ = nullptr;
  capacity_ = std::max(bytes, 2 * capacity_);
  device_ = gpu_.Allocate(capacity_);
  gpu_.Check("cudaMallocHost",
             cudaMallocHost(reinterpret_cast<void**>(&pinned_), static_cast<size_t>(capacity_)));
}

void ResultQueue::Wait() {
  if (used_ > 0) {
    gpu_.Launching();
    gpu_.Launched("ReadBack", cudaMemcpyAsync(pinned_, device_.get(), static_cast<size_t>(used_),
                                              cudaMemcpyDeviceToHost, gpu_.get()));
  }
  gpu_.Wait();
  for (const Pending& one : pending_) {
    std::memcpy(one.host, pinned_ + one.offset, static_cast<size_t>(one.bytes));
  }
  pending_.clear();
  used_ = 0;
}

}  // namespace deepnet::cuda
