// The wrapper stays installed for the rest of the process: tensors outlive the TensorMemory that
// counts them, and LibTorch never frees its allocators.
#include "trainer/telemetry/tensor_memory.h"

#include <map>
#include <new>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include <ATen/DeviceAccelerator.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

namespace deepnet {
namespace {

// Precedes every block. It is in front of the memory, not beside it, because LibTorch also asks for
// raw memory, which is freed by its address alone.
struct alignas(64) Header {  // as LibTorch's own blocks are aligned
  c10::DataPtr data;
  int64_t bytes;
  std::shared_ptr<TensorMemory::Counts> counts;  // null: nobody counts the thread that asked

  static void Free(void* memory) {
    Header* const header = static_cast<Header*>(memory) - 1;
    if (header->counts != nullptr) header->counts->Add(-header->bytes);
    const c10::DataPtr last = std::move(header->data);  // which holds the header too
    header->~Header();
  }
};

class CountingAllocator : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return inner_->allocate(0);
    c10::DataPtr data = inner_->allocate(sizeof(Header) + bytes);
    const c10::Device device = data.device();
    void* const start = data.get();
    auto* const header =
        new (start) Header{std::move(data), static_cast<int64_t>(bytes), CountsOfThisThread()};
    if (header->counts != nullptr) header->counts->Add(header->bytes);
    void* const memory = header + 1;
    return {memory, memory, &Header::Free, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Header::Free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  void CountThisThread(const std::shared_ptr<TensorMemory::Counts>& counts) {
    const absl::MutexLock lock(&mutex_);
    counts_[std::this_thread::get_id()] = counts;
  }

 private:
  // Entries outlive their threads. They take a few bytes, and a later thread with the same id is
  // counted for an object that is no longer asked.
  std::shared_ptr<TensorMemory::Counts> CountsOfThisThread() const {
    const absl::ReaderMutexLock lock(&mutex_);
    const auto found = counts_.find(std::this_thread::get_id());
    return found == counts_.end() ? nullptr : found->second;
  }

  c10::Allocator* inner_;
  mutable absl::Mutex mutex_;
  std::map<std::thread::id, std::shared_ptr<TensorMemory::Counts>> counts_ ABSL_GUARDED_BY(mutex_);
};

// Returns the wrapper of LibTorch's own allocator; the first call installs it.
CountingAllocator& Installed() {
  static CountingAllocator* const counting = [] {
    auto* const made = new CountingAllocator(c10::GetCPUAllocator());
    c10::SetCPUAllocator(made);  // which is its owner from now on
    return made;
  }();
  return *counting;
}

c10::DeviceIndex CurrentIndex() { return at::accelerator::getDeviceIndex(); }

}  // namespace

void TensorMemory::Counts::Add(int64_t bytes) {
  const int64_t now = live.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t most = peak.load(std::memory_order_relaxed);
  while (now > most && !peak.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
  }
}

TensorMemory::TensorMemory(const std::string& device) {
  if (device != "cpu") return;
  counts_ = std::make_shared<Counts>();
  Installed().CountThisThread(counts_);
}

int64_t TensorMemory::peak_bytes() const {
  if (counts_ != nullptr) return counts_->peak.load();
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);  // pools
  return at::accelerator::getDeviceStats(CurrentIndex()).allocated_bytes[kAll].peak;
}

void TensorMemory::ForgetPeak() {
  if (counts_ != nullptr) {
    counts_->peak = counts_->live.load();
  } else {
    at::accelerator::resetPeakStats(CurrentIndex());
  }
}

int64_t FreeGpuBytes() {
  return static_cast<int64_t>(at::accelerator::getMemoryInfo(CurrentIndex()).first);
}

void FreeCachedGpuBytes() { at::accelerator::emptyCache(); }

}  // namespace deepnet
