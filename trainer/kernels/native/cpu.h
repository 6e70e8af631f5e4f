// Kernels on a CPU work with a Cpu, as those on a GPU do with a GpuStream.
#pragma once

#include "trainer/kernels/native/isa.h"
#include "trainer/kernels/native/scratch.h"
#include "trainer/kernels/native/thread_pool.h"

namespace deepnet::native {

struct Cpu {
  // `isa` must be supported here.
  explicit Cpu(int num_threads, Isa isa = BestIsa()) : pool(num_threads), table(Table(isa)) {}

  ThreadPool pool;
  const KernelTable& table;
  Scratch scratch;
};

}  // namespace deepnet::native
