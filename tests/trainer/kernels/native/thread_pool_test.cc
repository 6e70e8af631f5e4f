#include "trainer/kernels/native/thread_pool.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"
#include "tests/support/thread_limit.h"

namespace deepnet::native {
namespace {

TEST(ThreadPool, RunsEveryChunkOnce) {
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (const int64_t chunks : {0, 1, 2, 3, 100}) {
      std::vector<int> runs(chunks, 0);  // each element is written by one thread
      pool.ParallelFor(chunks, [&](int64_t chunk, int) { ++runs[chunk]; });
      EXPECT_EQ(runs, std::vector<int>(chunks, 1));
    }
  }
}

TEST(ThreadPool, SaysWhyItHasFewerThreadsAndWorksWithThose) {
  const testing::ThreadLimit limit(2);
  ThreadPool pool(8);
  EXPECT_EQ(GetExitCode(pool.status()), ExitCode::kDoesNotFit);
  EXPECT_THAT(std::string(pool.status().message()), ::testing::HasSubstr("of 8 threads run"));
  EXPECT_LT(pool.num_threads(), 8);
  std::vector<int> runs(100, 0);
  pool.ParallelFor(100, [&](int64_t chunk, int) { ++runs[chunk]; });
  EXPECT_EQ(runs, std::vector<int>(100, 1));
}

TEST(ThreadPool, NamesTheThreadThatRuns) {
  ThreadPool pool(3);
  std::vector<std::atomic<int>> inside(3);
  std::atomic<bool> shared = false;
  pool.ParallelFor(1000, [&](int64_t, int thread) {
    if (inside[thread].fetch_add(1) != 0) shared = true;
    inside[thread].fetch_sub(1);
  });
  EXPECT_FALSE(shared);
}

TEST(ThreadPool, EndsALoopBeforeItStartsTheNext) {
  ThreadPool pool(4);
  std::vector<int64_t> values(64, 0);
  for (int loop = 0; loop < 2000; ++loop) {
    // Reads what other threads wrote in the loop before.
    std::vector<int64_t> next(values.size());
    const int64_t size = static_cast<int64_t>(values.size());
    pool.ParallelFor(size, [&](int64_t i, int) { next[i] = values[(i + 1) % size] + 1; });
    values = next;
  }
  EXPECT_EQ(values, std::vector<int64_t>(64, 2000));
}

TEST(ThreadPool, WakesWorkersThatSleep) {
  ThreadPool pool(2);
  // Longer than workers spin; the body waits until both threads are in, so it needs the worker.
  for (int round = 0; round < 3; ++round) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
    while (std::chrono::steady_clock::now() < until) {
    }
    std::atomic<int> inside = 0;
    pool.ParallelFor(2, [&](int64_t, int) {
      inside.fetch_add(1);
      while (inside.load() < 2) std::this_thread::yield();
    });
    EXPECT_EQ(inside.load(), 2);
  }
}

TEST(ThreadPool, StopsWhetherItsWorkersWorkOrSleep) {
  for (int round = 0; round < 50; ++round) {
    auto pool = std::make_unique<ThreadPool>(3);
    if (round % 2 == 0) pool->ParallelFor(3, [](int64_t, int) {});
    pool.reset();
  }
}

TEST(ThreadPoolDeathTest, RefusesALoopInsideALoop) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        ThreadPool pool(2);
        pool.ParallelFor(1, [&](int64_t, int) { pool.ParallelFor(1, [](int64_t, int) {}); });
      },
      "nested ParallelFor");
}

}  // namespace
}  // namespace deepnet::native
