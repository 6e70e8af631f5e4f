// A system that gives no more threads. Header-only.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <fstream>

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace deepnet::testing {

// While it lives, this process gets at most `count` further threads at a time: stacks of a GiB, in
// an address space that holds no more of them. Works for root, too, which no limit of processes
// binds.
class ThreadLimit {
 public:
  explicit ThreadLimit(int count) {
    EXPECT_EQ(pthread_getattr_default_np(&stack_), 0);
    EXPECT_EQ(getrlimit(RLIMIT_AS, &memory_), 0);
    constexpr rlim_t kStack = rlim_t{1} << 30;
    pthread_attr_t large = stack_;
    EXPECT_EQ(pthread_attr_setstacksize(&large, kStack), 0);
    EXPECT_EQ(pthread_setattr_default_np(&large), 0);
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limit = memory_;
    limit.rlim_cur = pages * 4096 + static_cast<rlim_t>(count) * kStack + kStack / 2;
    EXPECT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  }
  ~ThreadLimit() {
    setrlimit(RLIMIT_AS, &memory_);
    pthread_setattr_default_np(&stack_);
  }
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

 private:
  pthread_attr_t stack_;
  rlimit memory_;
};

}  // namespace deepnet::testing
