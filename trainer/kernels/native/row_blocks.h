// How the kernels cut their work: blocks of a fixed number of rows or elements, whatever the number
// of threads, so that every sum is made in the same order.
#pragma once

#include <algorithm>
#include <cstdint>

#include "trainer/kernels/native/thread_pool.h"

namespace deepnet::native {

inline constexpr int64_t kRowsPerBlock = 32;
inline constexpr int64_t kElementsPerBlock = 1 << 14;

// body(begin, end, thread) for [0, n) in blocks of `size`.
template <typename Body>
void ForBlocks(ThreadPool& pool, int64_t n, int64_t size, const Body& body) {
  pool.ParallelFor((n + size - 1) / size, [&](int64_t block, int thread) {
    body(block * size, std::min(n, (block + 1) * size), thread);
  });
}

template <typename Body>
void ForRowBlocks(ThreadPool& pool, int64_t rows, const Body& body) {
  ForBlocks(pool, rows, kRowsPerBlock, body);
}

}  // namespace deepnet::native
