// A fixed set of threads for loops of a few microseconds.
//
// Example:
//   ThreadPool pool(2);
//   pool.ParallelFor(num_blocks, [&](int64_t block, int thread) { Work(block, scratch[thread]); });
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace deepnet::native {

// The caller is thread 0 and works too. Idle workers spin for some tens of microseconds, so that
// loops in a row start in well under a microsecond, then sleep. One ParallelFor at a time, always
// from one thread at a time, never from inside a body.
class ThreadPool {
 public:
  // num_threads >= 1; starts num_threads - 1, or as many as the system gives.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Says why there are fewer threads than asked for (ExitCode::kDoesNotFit); the pool works with
  // those.
  const absl::Status& status() const { return status_; }

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(chunk, thread) once for every chunk in [0, num_chunks) and returns when all are
  // done. Threads take the next chunk when they are free: which of the num_threads threads runs a
  // chunk differs from call to call and must not change the result. A thread runs one chunk at a
  // time.
  void ParallelFor(int64_t num_chunks, absl::FunctionRef<void(int64_t chunk, int thread)> body);

 private:
  using Body = absl::FunctionRef<void(int64_t, int)>;

  void RunWorker(int thread);
  void RunChunks(int thread);
  void AwaitAll(int64_t num_chunks);

  // The loop that runs now. Plain fields: whoever has claimed a chunk may read them, because the
  // loop cannot end before that chunk is done.
  const Body* body_ = nullptr;
  int64_t num_chunks_ = 0;

  alignas(64) std::atomic<int64_t> unclaimed_{0};  // <= 0: nothing to claim
  alignas(64) std::atomic<int64_t> done_{0};       // chunks finished
  alignas(64) std::atomic<uint32_t> loop_{0};      // counts loops; what idle workers watch
  std::atomic<bool> busy_{false};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
  absl::Status status_;
};

// Kernels cut their work into blocks of a fixed number of rows or elements, whatever the number of
// threads, so that every sum is made in the same order.
inline constexpr int64_t kRowsPerBlock = 32;
inline constexpr int64_t kElementsPerBlock = 1 << 14;

// body(begin, end, thread) for [0, n) in blocks of `size`.
template <typename Body>
void ForBlocks(ThreadPool& pool, int64_t n, int64_t size, const Body& body) {
  pool.ParallelFor((n + size - 1) / size, [&](int64_t block, int thread) {
    body(block * size, std::min(n, (block + 1) * size), thread);
  });
}

}  // namespace deepnet::native
