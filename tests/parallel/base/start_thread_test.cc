#include "parallel/base/start_thread.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"
#include "tests/support/thread_limit.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;

TEST(StartThread, RunsTheWorkBesideItsCaller) {
  int value = 0;
  absl::StatusOr<std::thread> thread = StartThread([&] { value = 7; });
  ASSERT_TRUE(thread.ok()) << thread.status();
  thread->join();
  EXPECT_EQ(value, 7);
}

TEST(StartThread, WhatTheSystemRefusesIsAnErrorWithItsCode) {
  const testing::ThreadLimit none(0);
  const absl::Status refused = StartThread([] {}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(GetExitCode(refused), ExitCode::kDoesNotFit);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("refuses another thread"));
}

TEST(StartThread, ManyAreTriedAtOnce) {
  EXPECT_TRUE(TryThreads(1).ok());
  EXPECT_TRUE(TryThreads(3).ok());
  const testing::ThreadLimit one(1);
  const absl::Status refused = TryThreads(3);
  EXPECT_EQ(GetExitCode(refused), ExitCode::kDoesNotFit);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("2 of 3 threads run: the system refuses"));
}

}  // namespace
}  // namespace deepnet
