// The memory of the emulated devices, and the host memory that CUDA has pinned.
//
// A device's memory is one file mapped twice: at the device address, where nothing may be read or
// written, and at the host view. Blocks lie apart; what lies between them is checked when they are
// freed, and AddressSanitizer knows it. A freed block is filled with NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/gpu/emulated/device.h"

namespace emulated_gpu {

// One allocation. Fields that change are the machine's, under its lock.
struct Block {
  char* address = nullptr;  // as the program sees it
  size_t bytes = 0;
  int device = -1;  // -1: pinned host memory
  int64_t number = 0;
  bool owned = false;        // pinned memory that is freed with the block
  bool free_queued = false;  // cudaFreeAsync was called
  bool freed = false;

  std::string Text() const;  // "block 3 (64 B of device 0)"
};
using BlockPointer = std::shared_ptr<Block>;

class Memory {
 public:
  Memory(int devices, size_t bytes_per_device);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Returns null where the memory's limit or its address space does not hold `bytes` (> 0) more.
  BlockPointer Allocate(int device, size_t bytes);
  // True if Allocate would take memory that was never in use before.
  bool Grows(int device, size_t bytes) const;
  // Ends the block's life; its memory is NaN, and kept from Allocate until Recycle.
  void Retire(Block& block);
  void Recycle(const BlockPointer& block);

  // `owned`: from malloc, and freed by Unpin.
  BlockPointer Pin(void* address, size_t bytes, bool owned);
  void Unpin(const BlockPointer& block);

  // Needs no lock.
  bool OnDevice(const void* pointer) const;
  char* View(const void* pointer) const;    // of device memory
  int DeviceOf(const void* pointer) const;  // of device memory

  // The block, or the pinned memory, that holds `pointer` or ends there; living or retired and not
  // yet reused. Null where there is none.
  BlockPointer Find(const void* pointer) const;

  // Between the two, the host's view of these blocks notes which of their pages are touched.
  // Nothing else may work on them.
  void Watch(std::vector<BlockPointer> blocks);
  Touched Unwatch();
  // Notes the touch of a watched page, which may go on; false: it is none.
  bool NoteTouch(void* address, bool writes) const;

  size_t limit(int device) const { return spaces_[device].limit; }
  void SetLimit(int device, size_t bytes) { spaces_[device].limit = bytes; }
  size_t used(int device) const { return spaces_[device].used; }
  // Memory of a library, without addresses; false: there is not so much.
  bool Take(int device, size_t bytes) {
    if (spaces_[device].used + bytes > spaces_[device].limit) return false;
    spaces_[device].used += bytes;
    return true;
  }
  void GiveBack(int device, size_t bytes) { spaces_[device].used -= bytes; }

 private:
  struct Space {
    std::map<size_t, size_t> free;               // offset to length
    std::map<const char*, BlockPointer> blocks;  // by address
    size_t limit = 0;                            // of `used`
    size_t used = 0;
    size_t top = 0;  // nothing behind it was ever in use
  };

  size_t OffsetOf(int device, const void* pointer) const;
  std::map<size_t, size_t>::const_iterator Fit(const Space& space, size_t reserved) const;
  void CheckSurroundings(const Block& block) const;

  const size_t span_;  // of a device's addresses
  char* device_base_ = nullptr;
  char* view_base_ = nullptr;
  std::vector<Space> spaces_;
  std::map<const char*, BlockPointer> pinned_;  // by address
  int64_t num_blocks_ = 0;

  void ProtectWatched(int protection) const;

  std::vector<BlockPointer> watched_;
  mutable std::map<char*, unsigned char> touches_;  // by page of the view: kRead, kWritten
};

// Prints "emulated GPU: <why>" and aborts.
[[noreturn]] void Fail(const std::string& why);

}  // namespace emulated_gpu
