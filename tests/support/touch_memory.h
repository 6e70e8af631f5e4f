// Memory as a machine of one's own has it, for benchmarks on rented ones. Header-only.
#pragma once

#include <cstddef>
#include <cstdint>

#include <sys/mman.h>

#include "parallel/base/check.h"

namespace deepnet::testing {

// Makes the machine have `bytes` of memory that are free and its own. A virtual machine may have
// given free pages back to its host, and gets them again at up to 3 s a GiB, which is paid by
// whoever is the first to use them.
inline void TouchMemory(int64_t bytes) {
  const size_t size = static_cast<size_t>(bytes);
  void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  DEEPNET_CHECK(memory != MAP_FAILED && munmap(memory, size) == 0);
}

}  // namespace deepnet::testing
