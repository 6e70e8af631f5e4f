#include "trainer/named_files.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/base/exit_code.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;

RunSpec Asks(const std::string& schedule) {
  RunSpec run;
  run.mutable_parallel()->set_schedule(schedule);
  return run;
}

RunSpec On(const std::string& device_model) {
  RunSpec run;
  run.mutable_cluster()->set_device_model(device_model);
  return run;
}

TEST(NamedFiles, AScheduleIsReadFromTheRoot) {
  const std::string root = ::testing::TempDir();
  std::ofstream(std::filesystem::path(root) / "by_hand.txt") << "rank 0: 0F0 0B0\n";
  RunSpec run = Asks("by_hand.txt");
  ASSERT_TRUE(ReadNamedFiles(root, &run).ok());
  EXPECT_EQ(run.parallel().schedule(), "rank 0: 0F0 0B0\n");
}

TEST(NamedFiles, NamesAndTextsStay) {
  for (const std::string schedule : {"", "1f1b", "trivial", "rank 0: 0F0 0B0"}) {
    RunSpec run = Asks(schedule);
    EXPECT_TRUE(ReadNamedFiles("/", &run).ok());
    EXPECT_EQ(run.parallel().schedule(), schedule);
  }
  for (const std::string device : {"", "A100", "h100", "name: 'a new one'"}) {
    RunSpec run = On(device);
    EXPECT_TRUE(ReadNamedFiles("/", &run).ok());
    EXPECT_EQ(run.cluster().device_model(), device);
  }
}

TEST(NamedFiles, AModelOfADeviceIsReadFromTheRoot) {
  const std::string root = ::testing::TempDir();
  std::ofstream(std::filesystem::path(root) / "own.textproto") << "name: 'own'\n";
  RunSpec run = On("own.textproto");
  ASSERT_TRUE(ReadNamedFiles(root, &run).ok());
  EXPECT_EQ(run.cluster().device_model(), "name: 'own'\n");
}

TEST(NamedFiles, AFileOfAnotherKindOrSizeIsRefused) {
  const std::filesystem::path root = ::testing::TempDir();
  std::ofstream(root / "huge.txt") << "rank 0: 0F0 0B0";
  std::filesystem::resize_file(root / "huge.txt", uintmax_t{64} << 30);
  for (const std::string path : {"huge.txt", "/dev/zero", "."}) {
    for (RunSpec run : {Asks(path), On(path)}) {
      const absl::Status refused = ReadNamedFiles(root, &run);
      EXPECT_EQ(GetExitCode(refused), ExitCode::kBadConfig);
      EXPECT_THAT(std::string(refused.message()), HasSubstr("is not one that can be read: "));
    }
  }
}

TEST(NamedFiles, AnEmptyFileIsRefused) {
  const std::filesystem::path root = ::testing::TempDir();
  std::ofstream(root / "empty.txt").flush();
  for (RunSpec run : {Asks("empty.txt"), On("empty.txt")}) {
    const absl::Status refused = ReadNamedFiles(root, &run);
    EXPECT_EQ(GetExitCode(refused), ExitCode::kBadConfig);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("is not one that can be read"));
  }
}

TEST(NamedFiles, AFileThatIsMissingIsNamed) {
  RunSpec run = Asks("no_such_schedule.txt");
  const absl::Status status = ReadNamedFiles(::testing::TempDir(), &run);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetExitCode(status), ExitCode::kBadConfig);
  EXPECT_THAT(std::string(status.message()), HasSubstr("parallel.schedule"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("no_such_schedule.txt"));
  run = On("H10");
  EXPECT_THAT(std::string(ReadNamedFiles("/", &run).message()),
              HasSubstr("cluster.device_model: 'H10' is none of A100, "));
}

}  // namespace
}  // namespace deepnet
