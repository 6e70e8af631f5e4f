#include "trainer/schedule_file.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/base/exit_code.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;

ParallelSpec Asks(const std::string& schedule) {
  ParallelSpec parallel;
  parallel.set_schedule(schedule);
  return parallel;
}

TEST(ScheduleFile, IsReadFromTheRoot) {
  const std::string root = ::testing::TempDir();
  std::ofstream(std::filesystem::path(root) / "by_hand.txt") << "rank 0: 0F0 0B0\n";
  ParallelSpec parallel = Asks("by_hand.txt");
  ASSERT_TRUE(ReadScheduleFile(root, &parallel).ok());
  EXPECT_EQ(parallel.schedule(), "rank 0: 0F0 0B0\n");
}

TEST(ScheduleFile, NamesAndTextsStay) {
  for (const std::string schedule : {"", "1f1b", "trivial", "rank 0: 0F0 0B0"}) {
    ParallelSpec parallel = Asks(schedule);
    EXPECT_TRUE(ReadScheduleFile("/", &parallel).ok());
    EXPECT_EQ(parallel.schedule(), schedule);
  }
}

TEST(ScheduleFile, ThatIsMissingIsNamed) {
  ParallelSpec parallel = Asks("no_such_schedule.txt");
  const absl::Status status = ReadScheduleFile(::testing::TempDir(), &parallel);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetExitCode(status), ExitCode::kBadConfig);
  EXPECT_THAT(std::string(status.message()), HasSubstr("parallel.schedule"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("no_such_schedule.txt"));
}

}  // namespace
}  // namespace deepnet
