// Kernels on a CPU work with a Cpu, as those on a GPU do with a GpuStream.
#pragma once

#include <cstdint>

#include "trainer/kernels/native/isa.h"
#include "trainer/kernels/native/scratch.h"
#include "trainer/kernels/native/thread_pool.h"

namespace deepnet::native {

struct Cpu {
  // `isa` must be supported here.
  explicit Cpu(int num_threads, Isa isa = BestIsa()) : pool(num_threads), table(Table(isa)) {}

  ThreadPool pool;
  const KernelTable& table;
  const ElementwiseTable& kernels = table.elementwise;
  Scratch scratch;
};

// Calls kernel(arguments..., begin, end) for [0, n) in blocks of `size`.
template <typename... Parameters, typename... Arguments>
void RunBlocks(Cpu& cpu, int64_t n, int64_t size, void (*kernel)(Parameters...),
               const Arguments&... arguments) {
  ForBlocks(cpu.pool, n, size,
            [&](int64_t begin, int64_t end, int) { kernel(arguments..., begin, end); });
}

}  // namespace deepnet::native
