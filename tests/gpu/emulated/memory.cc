#include "tests/gpu/emulated/memory.h"

#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

namespace emulated_gpu {
namespace {

constexpr size_t kAlignment = 512;  // of blocks; CUDA promises 256
constexpr size_t kZone = 512;       // on either side of a block
constexpr unsigned char kZoneByte = 0xcb;
constexpr int kNanByte = 0xff;
constexpr size_t kPage = 4096;
constexpr unsigned char kRead = 1, kWritten = 2;  // of a page

size_t RoundUp(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Returns memory of the block's zones and of itself.
size_t Reserved(size_t bytes) { return RoundUp(bytes) + 2 * kZone; }

char* PageOf(char* address) {
  return reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(address) / kPage * kPage);
}

char* Map(size_t bytes) {
  void* const base = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                          /*fd=*/-1, /*offset=*/0);
  if (base == MAP_FAILED) Fail("no addresses for the devices' memory");
  return static_cast<char*>(base);
}

// Names the device memory that the host, or a kernel by an address that its launch did not know,
// touches. What it calls is not safe in a signal handler: the process ends either way.
const Memory* guarded = nullptr;

void NameFault(int signal, siginfo_t* info, void* context) {
  constexpr greg_t kWrites = 2;  // of the error code of a page fault
  const greg_t error = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR];
  if (guarded != nullptr && guarded->NoteTouch(info->si_addr, (error & kWrites) != 0)) return;
  std::signal(signal, SIG_DFL);  // for any other fault: the access is repeated
  if (guarded == nullptr || !guarded->OnDevice(info->si_addr)) return;
  const BlockPointer block = guarded->Find(info->si_addr);
  if (block == nullptr) Fail("device memory is touched outside of any block");
  Fail("an address in " + block->Text() +
       (block->freed || block->free_queued ? ", which was freed before, is touched"
                                           : " is touched by the host"));
}

}  // namespace

void Fail(const std::string& why) {
  std::fprintf(stderr, "emulated GPU: %s\n", why.c_str());
  std::fflush(stderr);
  std::abort();
}

std::string Block::Text() const {
  return "block " + std::to_string(number) + " (" + std::to_string(bytes) + " B of " +
         (device < 0 ? "pinned host memory)" : "device " + std::to_string(device) + ")");
}

Memory::Memory(int devices, size_t bytes_per_device)
    : span_(RoundUp(2 * bytes_per_device + (size_t{64} << 20))), spaces_(devices) {
  if (devices == 0) return;
  // Their distance is a multiple of 2^32, so that only the upper half of a word changes between
  // them: a number of 32 bits whose padding holds half of an old address keeps its value
  // (ArgumentView).
  const size_t distance = (devices * span_ + (size_t{1} << 32) - 1) >> 32 << 32;
  device_base_ = Map(distance + devices * span_);
  view_base_ = device_base_ + distance;
  for (int device = 0; device < devices; ++device) {
    const int file = memfd_create("emulated_gpu", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(span_)) != 0) Fail("no device memory");
    for (const bool view : {false, true}) {
      char* const at = (view ? view_base_ : device_base_) + device * span_;
      void* const mapped = mmap(at, span_, view ? PROT_READ | PROT_WRITE : PROT_NONE,
                                MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file, /*offset=*/0);
      if (mapped == MAP_FAILED) Fail("device memory cannot be mapped");
    }
    close(file);
    spaces_[device].free[0] = span_;
    spaces_[device].limit = bytes_per_device;
  }
  guarded = this;
  struct sigaction action = {};
  action.sa_sigaction = NameFault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
}

Memory::~Memory() {
  if (guarded == this) guarded = nullptr;
  for (const auto& [address, block] : pinned_) {
    if (block->owned) std::free(block->address);
  }
  if (device_base_ == nullptr) return;
  for (size_t device = 0; device < spaces_.size(); ++device) {
    ASAN_UNPOISON_MEMORY_REGION(view_base_ + device * span_, spaces_[device].top);
  }
  munmap(device_base_, view_base_ - device_base_ + spaces_.size() * span_);
}

size_t Memory::OffsetOf(int device, const void* pointer) const {
  return static_cast<const char*>(pointer) - device_base_ - device * span_;
}

std::map<size_t, size_t>::const_iterator Memory::Fit(const Space& space, size_t reserved) const {
  return std::find_if(space.free.begin(), space.free.end(),
                      [&](const auto& piece) { return piece.second >= reserved; });
}

bool Memory::Grows(int device, size_t bytes) const {
  const Space& space = spaces_[device];
  const auto piece = Fit(space, Reserved(bytes));
  return piece != space.free.end() && piece->first + Reserved(bytes) > space.top;
}

BlockPointer Memory::Allocate(int device, size_t bytes) {
  Space& space = spaces_[device];
  if (bytes > space.limit || space.used + RoundUp(bytes) > space.limit) return nullptr;
  const size_t reserved = Reserved(bytes);
  const auto piece = Fit(space, reserved);
  if (piece == space.free.end()) return nullptr;
  const auto [offset, length] = *piece;
  space.free.erase(piece);
  if (length > reserved) space.free[offset + reserved] = length - reserved;
  space.used += RoundUp(bytes);
  space.top = std::max(space.top, offset + reserved);

  auto block = std::make_shared<Block>();
  block->address = device_base_ + device * span_ + offset + kZone;
  block->bytes = bytes;
  block->device = device;
  block->number = ++num_blocks_;
  char* const view = View(block->address) - kZone;
  ASAN_UNPOISON_MEMORY_REGION(view, reserved);
  std::memset(view, kZoneByte, reserved);
  std::memset(view + kZone, kNanByte, bytes);
  ASAN_POISON_MEMORY_REGION(view, kZone);
  ASAN_POISON_MEMORY_REGION(view + kZone + bytes, reserved - kZone - bytes);
  space.blocks[block->address] = block;
  return block;
}

void Memory::CheckSurroundings(const Block& block) const {
  const char* const begin = View(block.address);
  const auto written = [](char byte) { return static_cast<unsigned char>(byte) != kZoneByte; };
  const char* const end = begin + RoundUp(block.bytes) + kZone;
  const char* at = std::find_if(begin - kZone, begin, written);
  if (at == begin) at = std::find_if(begin + block.bytes, end, written);
  if (at == end) return;
  Fail("a kernel has written outside of " + block.Text() + ", at byte " +
       std::to_string(at - begin));
}

void Memory::Retire(Block& block) {
  char* const view = View(block.address) - kZone;
  const size_t reserved = Reserved(block.bytes);
  ASAN_UNPOISON_MEMORY_REGION(view, reserved);
  CheckSurroundings(block);
  std::memset(view, kNanByte, reserved);
  ASAN_POISON_MEMORY_REGION(view, reserved);
  block.freed = true;
  spaces_[block.device].used -= RoundUp(block.bytes);
}

void Memory::Recycle(const BlockPointer& block) {
  Space& space = spaces_[block->device];
  size_t offset = OffsetOf(block->device, block->address) - kZone;
  size_t length = Reserved(block->bytes);
  space.blocks.erase(block->address);
  const auto next = space.free.upper_bound(offset);
  if (next != space.free.end() && next->first == offset + length) {
    length += next->second;
    space.free.erase(next);
  }
  const auto after = space.free.upper_bound(offset);
  if (after != space.free.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      before->second += length;
      return;
    }
  }
  space.free[offset] = length;
}

void Memory::ProtectWatched(int protection) const {
  for (const BlockPointer& block : watched_) {
    char* const begin = PageOf(View(block->address));
    char* const end = PageOf(View(block->address) + block->bytes + kPage - 1);
    mprotect(begin, end - begin, protection);
  }
}

void Memory::Watch(std::vector<BlockPointer> blocks) {
  std::erase_if(blocks, [](const BlockPointer& block) { return block->device < 0; });
  watched_ = std::move(blocks);
  touches_.clear();
  ProtectWatched(PROT_NONE);
}

Touched Memory::Unwatch() {
  ProtectWatched(PROT_READ | PROT_WRITE);
  watched_.clear();
  Touched bytes;
  for (const auto& [page, touch] : touches_) {
    if (touch & kRead) bytes.read += kPage;
    if (touch & kWritten) bytes.written += kPage;
  }
  return bytes;
}

bool Memory::NoteTouch(void* address, bool writes) const {
  char* const page = PageOf(static_cast<char*>(address));
  const auto watched = [&](const BlockPointer& block) {
    char* const begin = View(block->address);
    return page + kPage > begin && page < begin + block->bytes;
  };
  if (std::none_of(watched_.begin(), watched_.end(), watched)) return false;
  touches_[page] |= writes ? kWritten : kRead;
  mprotect(page, kPage, writes ? PROT_READ | PROT_WRITE : PROT_READ);
  return true;
}

BlockPointer Memory::Pin(void* address, size_t bytes, bool owned) {
  auto block = std::make_shared<Block>();
  block->address = static_cast<char*>(address);
  block->bytes = bytes;
  block->owned = owned;
  block->number = ++num_blocks_;
  pinned_[block->address] = block;
  return block;
}

void Memory::Unpin(const BlockPointer& block) {
  block->freed = true;
  pinned_.erase(block->address);
  if (block->owned) std::free(block->address);
}

bool Memory::OnDevice(const void* pointer) const {
  const char* const at = static_cast<const char*>(pointer);
  return device_base_ != nullptr && at >= device_base_ &&
         at < device_base_ + spaces_.size() * span_;
}

char* Memory::View(const void* pointer) const {
  return view_base_ + (static_cast<const char*>(pointer) - device_base_);
}

int Memory::DeviceOf(const void* pointer) const {
  return static_cast<int>((static_cast<const char*>(pointer) - device_base_) / span_);
}

BlockPointer Memory::Find(const void* pointer) const {
  const char* const at = static_cast<const char*>(pointer);
  const auto& blocks = OnDevice(pointer) ? spaces_[DeviceOf(pointer)].blocks : pinned_;
  const auto after = blocks.upper_bound(at);
  if (after == blocks.begin()) return nullptr;
  const BlockPointer& block = std::prev(after)->second;
  return at <= block->address + block->bytes ? block : nullptr;
}

}  // namespace emulated_gpu
