#include "tests/gpu/emulated/torch_device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include "tests/gpu/emulated/machine.h"

namespace emulated_gpu {
namespace {

constexpr size_t kRound = 512;                // sizes of blocks
constexpr size_t kSegment = size_t{2} << 20;  // what is taken from the device at least

void Must(const char* call, cudaError_t error) {
  TORCH_CHECK(error == cudaSuccess, "CUDA error: ", cudaGetErrorString(error), " (", call, ")");
}

size_t RoundUp(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

cudaStream_t& ThreadsStream(int device = CurrentDevice()) {
  thread_local std::map<int, cudaStream_t> streams;
  return streams[device];
}

// Part of a segment that cudaMalloc gave.
struct Piece {
  char* segment = nullptr;
  size_t bytes = 0;
  cudaStream_t stream = nullptr;
  bool free = false;
};

// The memory of tensors on one device. Devices wait for nothing of each other, as cudaFree may wait
// for another rank.
class Pool {
 public:
  explicit Pool(int device) : device_(device) {}

  // Returns memory for the calling thread's stream; its device is current.
  char* Take(size_t bytes, size_t asked) {
    const std::lock_guard lock(mutex_);
    if (generation_ != TheMachine().generation) {
      pieces_.clear();
      allocated_ = peak_ = 0;
    }
    generation_ = TheMachine().generation;
    auto found = caches_ ? Fit(bytes) : pieces_.end();
    if (found == pieces_.end()) found = Grow(caches_ ? RoundUp(bytes, kSegment) : bytes, asked);
    Piece& piece = found->second;
    if (piece.bytes > bytes) {
      Piece rest = piece;
      rest.bytes -= bytes;
      pieces_[found->first + bytes] = rest;
      piece.bytes = bytes;
    }
    piece.free = false;
    allocated_ += static_cast<int64_t>(piece.bytes);
    peak_ = std::max(peak_, allocated_);
    return found->first;
  }

  void Release(char* pointer) {
    const std::lock_guard lock(mutex_);
    const auto at = pieces_.find(pointer);
    if (at == pieces_.end() || generation_ != TheMachine().generation) return;
    at->second.free = true;
    allocated_ -= static_cast<int64_t>(at->second.bytes);
    if (!caches_) return FreeSegments();
    const auto joins = [](const Pieces::iterator& first, const Pieces::iterator& second) {
      return first->second.free && second->second.free &&
             first->second.segment == second->second.segment;
    };
    const auto next = std::next(at);
    if (next != pieces_.end() && joins(at, next)) {
      at->second.bytes += next->second.bytes;
      pieces_.erase(next);
    }
    if (at == pieces_.begin()) return;
    const auto previous = std::prev(at);
    if (!joins(previous, at)) return;
    previous->second.bytes += at->second.bytes;
    pieces_.erase(at);
  }

  TensorMemory Read() const {
    const std::lock_guard lock(mutex_);
    return ReadLocked();
  }

  void EmptyCache() {
    const std::lock_guard lock(mutex_);
    if (generation_ == TheMachine().generation) FreeSegments();
  }

  // Bytes in tensors now, and most since the last ResetPeak.
  std::pair<int64_t, int64_t> ReadPeak() const {
    const std::lock_guard lock(mutex_);
    return {allocated_, peak_};
  }

  void ResetPeak() {
    const std::lock_guard lock(mutex_);
    peak_ = allocated_;
  }

 private:
  using Pieces = std::map<char*, Piece>;

  TensorMemory ReadLocked() const {
    TensorMemory memory;
    for (const auto& [address, piece] : pieces_) {
      memory.reserved += static_cast<int64_t>(piece.bytes);
      if (!piece.free) memory.allocated += static_cast<int64_t>(piece.bytes);
    }
    return memory;
  }

  // The smallest free piece that was used on this stream.
  Pieces::iterator Fit(size_t bytes) {
    auto best = pieces_.end();
    for (auto at = pieces_.begin(); at != pieces_.end(); ++at) {
      const Piece& piece = at->second;
      if (!piece.free || piece.bytes < bytes || piece.stream != ThreadsStream()) continue;
      if (best == pieces_.end() || piece.bytes < best->second.bytes) best = at;
    }
    return best;
  }

  Pieces::iterator Grow(size_t bytes, size_t asked) {
    void* segment = nullptr;
    if (cudaMalloc(&segment, bytes) != cudaSuccess) {
      cudaGetLastError();
      FreeSegments();
      const cudaError_t error = cudaMalloc(&segment, bytes);
      if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        OutOfMemory(asked);
      }
      Must("cudaMalloc", error);
    }
    const Piece piece = {static_cast<char*>(segment), bytes, ThreadsStream(), /*free=*/true};
    return pieces_.insert({static_cast<char*>(segment), piece}).first;
  }

  void OutOfMemory(size_t asked) const {
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    const TensorMemory memory = ReadLocked();
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", asked,
                     " B. GPU ", device_, " has a total capacity of ", total, " B of which ", free,
                     " B is free. Tensors hold ", memory.allocated, " B; ",
                     memory.reserved - memory.allocated, " B is reserved but unallocated.");
  }

  // Segments that are free as a whole.
  void FreeSegments() {
    for (auto at = pieces_.begin(); at != pieces_.end();) {
      const Piece& piece = at->second;
      const auto next = std::next(at);
      const bool whole = piece.free && at->first == piece.segment &&
                         (next == pieces_.end() || next->second.segment != piece.segment);
      if (whole) Must("cudaFree", cudaFree(at->first));
      at = whole ? pieces_.erase(at) : next;
    }
  }

  const int device_;
  // As for LibTorch's own allocator; every tensor is then a block of its own.
  const bool caches_ = std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") == nullptr;
  mutable std::mutex mutex_;
  Pieces pieces_;  // by address
  int64_t allocated_ = 0;
  int64_t peak_ = 0;
  int generation_ = -1;
};

class CachingAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device = TorchDevice(CurrentDevice());
    if (bytes == 0) return {nullptr, nullptr, &Delete, device};
    char* const pointer = PoolOf(CurrentDevice()).Take(RoundUp(bytes, kRound), bytes);
    MakeNan(pointer, bytes);
    return {pointer, pointer, &Delete, device};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &Delete; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    Must("cudaMemcpyAsync",
         cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, ThreadsStream()));
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { EmptyCache(); }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto& bytes = stats.allocated_bytes[kAll];
    std::tie(bytes.current, bytes.peak) = PoolOf(device).ReadPeak();
    return stats;
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const c10::DeviceGuard guard(TorchDevice(device));
    size_t free = 0, total = 0;
    Must("cudaMemGetInfo", cudaMemGetInfo(&free, &total));
    return {free, total};
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override { PoolOf(device).ResetPeak(); }

  static Pool& PoolOf(int device) {
    static std::mutex* const mutex = new std::mutex;
    static auto* const pools = new std::map<int, std::unique_ptr<Pool>>;
    const std::lock_guard lock(*mutex);
    auto& pool = (*pools)[device];
    if (pool == nullptr) pool = std::make_unique<Pool>(device);
    return *pool;
  }

 private:
  static void Delete(void* pointer) {
    if (!TheMachine().memory.OnDevice(pointer)) return;  // of a machine before Restart
    PoolOf(TheMachine().memory.DeviceOf(pointer)).Release(static_cast<char*>(pointer));
  }

  // Bookkeeping of the emulation: no copy that a GPU would make, and not counted as one.
  static void MakeNan(char* pointer, size_t bytes) {
    Machine& machine = TheMachine();
    Machine::Lock lock(machine.mutex);
    CUstream_st* const on = machine.Find(ThreadsStream());
    TORCH_CHECK(on != nullptr, "emulated GPU: the current stream is gone");
    // LibTorch would give its memory to another tensor while the graph still writes there.
    if (on->capture != nullptr) Fail("a new tensor in the capture of " + on->Name());
    Work work = {.name = "new tensor"};
    std::string why;
    char* const view = machine.Resolve(pointer, bytes, work, why);
    TORCH_CHECK(view != nullptr, "emulated GPU: ", why);
    work.run = [=] { std::memset(view, 0xff, bytes); };
    work.hurries = true;
    machine.Push(lock, *on, Kind::kOther, std::move(work));
  }
};

// Host memory of cudaMallocHost, for LibTorch's pinned tensors.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* pointer = nullptr;
    Must("cudaMallocHost", cudaMallocHost(&pointer, bytes));
    return {pointer, pointer, &Delete, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &Delete; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

 private:
  static void Delete(void* pointer) { cudaFreeHost(pointer); }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return TheMachine().num_devices() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void* pointer) const override {
    cudaPointerAttributes attributes;
    return cudaPointerGetAttributes(&attributes, pointer) == cudaSuccess &&
           attributes.type == cudaMemoryTypeHost;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static auto* const allocator = new PinnedAllocator;
    return allocator;
  }
};

CachingAllocator& TheAllocator() {
  static CachingAllocator* const allocator = new CachingAllocator;
  return *allocator;
}

// ---- Operations

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor Empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> type,
                 std::optional<at::Layout>, std::optional<at::Device> device,
                 std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pinned.value_or(false), "emulated GPU: pinned memory is the host's");
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &TheAllocator(), kKeys,
                                   c10::dtype_or_default(type), format);
}

at::Tensor EmptyStrided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                        std::optional<at::ScalarType> type, std::optional<at::Layout>,
                        std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size),
                                           C10_AS_INTARRAYREF_SLOW(stride), &TheAllocator(), kKeys,
                                           c10::dtype_or_default(type));
}

// A tensor as rows of bytes; nothing where its rows are not contiguous or not evenly spaced.
struct Rows {
  int64_t count = 1;
  int64_t width = 0;
  int64_t pitch = 0;
};

std::optional<Rows> RowsOf(const at::Tensor& tensor) {
  const auto element = static_cast<int64_t>(tensor.element_size());
  if (tensor.is_contiguous()) {
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    return Rows{1, bytes, bytes};
  }
  // Dimensions of one element have any stride.
  std::vector<std::pair<int64_t, int64_t>> dims;  // size, stride
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) != 1) dims.emplace_back(tensor.size(dim), tensor.stride(dim));
  }
  Rows rows = {1, element, 0};
  while (!dims.empty() && dims.back().second * element == rows.width) {  // contiguous so far
    rows.width *= dims.back().first;
    dims.pop_back();
  }
  if (dims.empty()) return std::nullopt;
  rows.pitch = dims.back().second * element;
  if (rows.pitch < rows.width) return std::nullopt;
  while (!dims.empty() && dims.back().second * element == rows.count * rows.pitch) {
    rows.count *= dims.back().first;
    dims.pop_back();
  }
  return dims.empty() ? std::optional(rows) : std::nullopt;
}

// Cuts the rows of the one that has longer rows, so that both have equal ones.
bool Align(Rows& rows, Rows& other) {
  if (rows.width > other.width) return Align(other, rows);
  if (rows.width == 0 || other.width % rows.width != 0) return rows.width == other.width;
  const int64_t parts = other.width / rows.width;
  if (parts == 1) return rows.count == other.count;
  if (other.count != 1) return false;
  other = {parts, rows.width, rows.width};
  return rows.count == other.count;
}

at::Tensor CopyFrom(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  TORCH_CHECK(from.scalar_type() == to.scalar_type(), "emulated GPU: aten::copy_ from ",
              from.scalar_type(), " to ", to.scalar_type(), ": only Ops converts");
  TORCH_CHECK(from.sizes() == to.sizes(), "emulated GPU: aten::copy_ from ", from.sizes(), " to ",
              to.sizes(), ": only equal shapes");
  if (from.numel() == 0) return to;
  auto source = RowsOf(from), target = RowsOf(to);
  TORCH_CHECK(source.has_value() && target.has_value() && Align(*source, *target),
              "emulated GPU: aten::copy_ from ", from.sizes(), " with strides ", from.strides(),
              " to strides ", to.strides(), ": only contiguous rows");
  const c10::OptionalDeviceGuard guard(to.is_cpu() ? from.device() : to.device());
  const auto kind = from.is_cpu() ? cudaMemcpyHostToDevice
                    : to.is_cpu() ? cudaMemcpyDeviceToHost
                                  : cudaMemcpyDeviceToDevice;
  Must("cudaMemcpy2DAsync",
       cudaMemcpy2DAsync(to.data_ptr(), target->pitch, from.data_ptr(), source->pitch,
                         source->width, source->count, kind, ThreadsStream()));
  if (kind != cudaMemcpyDeviceToDevice && !non_blocking) {
    Must("cudaStreamSynchronize", cudaStreamSynchronize(ThreadsStream()));
  }
  return to;
}

at::Tensor& Zero(at::Tensor& tensor) {
  if (tensor.numel() == 0) return tensor;
  const auto rows = RowsOf(tensor);
  TORCH_CHECK(rows.has_value(), "emulated GPU: aten::zero_ of strides ", tensor.strides(),
              ": only contiguous rows");
  const c10::OptionalDeviceGuard guard(tensor.device());
  Must("cudaMemset2DAsync", cudaMemset2DAsync(tensor.data_ptr(), rows->pitch, 0, rows->width,
                                              rows->count, ThreadsStream()));
  return tensor;
}

void RefuseOperation(const c10::OperatorHandle& operation, c10::DispatchKeySet,
                     torch::jit::Stack*) {
  TORCH_CHECK(false, "emulated GPU: ", operation.schema().operator_name(),
              " is no operation of this device: arithmetic goes through Ops");
}

class Guard final : public c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::PrivateUse1> {
 public:
  c10::DeviceIndex deviceCount() const noexcept override {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? static_cast<c10::DeviceIndex>(count) : 0;
  }
  c10::Device getDevice() const override { return TorchDevice(CurrentDevice()); }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  void setDevice(c10::Device device) const override {
    if (device.index() >= 0) Must("cudaSetDevice", cudaSetDevice(device.index()));
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) cudaSetDevice(device.index());
  }
  c10::Stream getStream(c10::Device device) const noexcept override {
    return StreamOf(device, ThreadsStream());
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return StreamOf(device, nullptr);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    TORCH_CHECK(false, "emulated GPU: LibTorch's pool would make streams beside those of lanes");
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    return StreamOf(stream.device(),
                    std::exchange(ThreadsStream(), reinterpret_cast<cudaStream_t>(stream.id())));
  }
  void* getStreamNativeHandle(c10::Stream stream) const override {
    return reinterpret_cast<void*>(stream.id());
  }

 private:
  static c10::Stream StreamOf(c10::Device device, cudaStream_t stream) {
    return c10::Stream(c10::Stream::UNSAFE, device, reinterpret_cast<c10::StreamId>(stream));
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", TORCH_FN(Empty));
  library.impl("empty_strided", TORCH_FN(EmptyStrided));
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("_copy_from", TORCH_FN(CopyFrom));
  library.impl("zero_", TORCH_FN(Zero));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&RefuseOperation>());
}

const bool kRegistered = [] {
  c10::register_privateuse1_backend("cuda_emulated");
  c10::SetAllocator(c10::DeviceType::PrivateUse1, &TheAllocator());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

void SetCurrentStream(cudaStream_t stream) {
  Machine& machine = TheMachine();
  const Machine::Lock lock(machine.mutex);
  const CUstream_st* const found = machine.Find(stream);
  TORCH_CHECK(found != nullptr, "emulated GPU: no such stream");
  ThreadsStream(found->device) = stream;
}

cudaStream_t CurrentStream() { return ThreadsStream(); }

c10::Device TorchDevice(int index) {
  return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

TensorMemory ReadTensorMemory(int device) { return CachingAllocator::PoolOf(device).Read(); }

void EmptyCache() {
  for (int device = 0; device < TheMachine().num_devices(); ++device) {
    CachingAllocator::PoolOf(device).EmptyCache();
  }
}

}  // namespace emulated_gpu
