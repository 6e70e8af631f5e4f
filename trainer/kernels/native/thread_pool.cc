// A loop is published by storing its chunk count in unclaimed_; a thread claims a chunk by
// decrementing it. The claim's acquire pairs with the publishing release, and a claimed chunk keeps
// the loop alive, so the loop's description needs no lock. A worker that wakes too late finds
// nothing to claim, or claims from a later loop, which is as good: no thread waits for a sleeper.
#include "trainer/kernels/native/thread_pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "parallel/base/check.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/host.h"

namespace deepnet::native {
namespace {

// About 40 microseconds where a pause takes 40 ns (Intel), less elsewhere.
constexpr int kSpins = 1000;

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  DEEPNET_CHECK(num_threads >= 1) << num_threads << " threads";
  workers_.reserve(num_threads - 1);
  for (int thread = 1; thread < num_threads; ++thread) {
    absl::StatusOr<std::thread> worker = StartThread([this, thread] { RunWorker(thread); });
    if (!worker.ok()) {
      status_ =
          WithPrefix(absl::StrCat(thread, " of ", num_threads, " threads run"), worker.status());
      return;
    }
    workers_.push_back(*std::move(worker));
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  loop_.fetch_add(1, std::memory_order_release);
  loop_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::ParallelFor(int64_t num_chunks, Body body) {
  if (num_chunks <= 0) return;
  DEEPNET_CHECK(!busy_.exchange(true, std::memory_order_acquire)) << "nested ParallelFor";
  if (num_chunks == 1 || workers_.empty()) {
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) body(chunk, 0);
  } else {
    body_ = &body;
    num_chunks_ = num_chunks;
    done_.store(0, std::memory_order_relaxed);
    unclaimed_.store(num_chunks, std::memory_order_release);
    loop_.fetch_add(1, std::memory_order_release);
    loop_.notify_all();
    RunChunks(0);
    AwaitAll(num_chunks);
  }
  busy_.store(false, std::memory_order_release);
}

void ThreadPool::RunWorker(int thread) {
  uint32_t seen = 0;
  while (true) {
    for (int i = 0; i < kSpins && loop_.load(std::memory_order_acquire) == seen; ++i) Pause();
    loop_.wait(seen, std::memory_order_acquire);
    seen = loop_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    RunChunks(thread);
  }
}

void ThreadPool::RunChunks(int thread) {
  int64_t num_run = 0;
  while (true) {
    const int64_t left = unclaimed_.fetch_sub(1, std::memory_order_acq_rel);
    if (left <= 0) break;
    (*body_)(num_chunks_ - left, thread);
    ++num_run;
  }
  if (num_run == 0) return;
  // Notifies always, which costs a load when no thread sleeps: only the caller ever waits here.
  done_.fetch_add(num_run, std::memory_order_acq_rel);
  done_.notify_one();
}

void ThreadPool::AwaitAll(int64_t num_chunks) {
  for (int i = 0; i < kSpins; ++i) {
    if (done_.load(std::memory_order_acquire) == num_chunks) return;
    Pause();
  }
  while (true) {
    const int64_t done = done_.load(std::memory_order_acquire);
    if (done == num_chunks) return;
    done_.wait(done, std::memory_order_acquire);
  }
}

}  // namespace deepnet::native
