#include "parallel/base/host.h"

#include <sched.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <sys/utsname.h>

#include "parallel/base/crc32c.h"
#include "parallel/base/exit_code.h"
#include "tests/support/resident_memory.h"
#include "tests/support/thread_limit.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kNode = int64_t{64} << 30;  // bytes of the host in these tests

// A file system in a folder, with the files that tell a process its limits.
class FakeRoot {
 public:
  FakeRoot() : root_(std::filesystem::path(::testing::TempDir()) / "host_test_root") {
    std::filesystem::remove_all(root_);
    Write("proc/meminfo", absl::StrCat("MemTotal:       ", kNode / 1024, " kB\nMemFree: 1 kB\n"));
  }
  ~FakeRoot() { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  int64_t Available() const { return AvailableMemoryBytes(root_.string()); }
  int64_t Bytes() const { return UsableMemoryBytes(root_.string()); }

 private:
  std::filesystem::path root_;
};

TEST(UsableMemory, IsAllOfTheHostWithoutControlGroups) { EXPECT_EQ(FakeRoot().Bytes(), kNode); }

TEST(AvailableMemory, IsWhatTheHostSays) {
  FakeRoot root;
  root.Write("proc/meminfo", "MemTotal:  67108864 kB\nMemFree: 1 kB\nMemAvailable:  2048 kB\n");
  EXPECT_EQ(root.Available(), int64_t{2} << 20);
}

TEST(UsableMemory, IsTheLowestLimitOfTheGroupAndThoseAbove) {
  FakeRoot root;
  root.Write("proc/self/cgroup", "0::/job_7/step_0/task\n");
  root.Write("sys/fs/cgroup/job_7/memory.max", "8589934592\n");
  root.Write("sys/fs/cgroup/job_7/step_0/memory.max", "max\n");
  root.Write("sys/fs/cgroup/job_7/step_0/task/memory.max", "17179869184\n");
  EXPECT_EQ(root.Bytes(), int64_t{8} << 30);
  root.Write("sys/fs/cgroup/job_7/step_0/task/memory.max", "4294967296\n");
  EXPECT_EQ(root.Bytes(), int64_t{4} << 30);
}

TEST(UsableMemory, OfAContainerThatSeesItsOwnGroupAsTheRoot) {
  FakeRoot root;
  root.Write("proc/self/cgroup", "0::/\n");
  root.Write("sys/fs/cgroup/memory.max", "2147483648\n");
  EXPECT_EQ(root.Bytes(), int64_t{2} << 30);
  root.Write("proc/self/cgroup", "0::/docker/of/the/host\n");  // whose folders are not there
  EXPECT_EQ(root.Bytes(), int64_t{2} << 30);
}

TEST(UsableMemory, FollowsTheMemoryControllerOfVersionOne) {
  FakeRoot root;
  root.Write("proc/self/cgroup",
             "12:cpuset:/other\n5:hugetlb,memory:/slurm/job_7/step_0\n0::/elsewhere\n");
  root.Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  root.Write("sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes", "1073741824\n");
  root.Write("sys/fs/cgroup/memory/slurm/job_7/step_0/memory.limit_in_bytes", "3221225472\n");
  EXPECT_EQ(root.Bytes(), int64_t{1} << 30);
}

TEST(UsableMemory, IsNoMoreThanTheHostHas) {
  FakeRoot root;
  root.Write("proc/self/cgroup", "0::/\n");
  root.Write("sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(root.Bytes(), kNode);
  root.Write("sys/fs/cgroup/memory.max", "1099511627776\n");
  EXPECT_EQ(root.Bytes(), kNode);
}

int Threads(const std::vector<std::string>& lists, const std::string& own) {
  return ThreadsPerRank(lists, own);
}

TEST(ThreadsPerRank, RanksOfACpusetSmallerThanTheNodeShareIt) {
  const std::string eight = "8,9,10,11,12,13,14,15";  // of a node of 64
  EXPECT_EQ(Threads({eight, eight, eight, eight}, eight), 2);
  EXPECT_EQ(Threads({eight, eight, eight}, eight), 2);
  EXPECT_EQ(Threads({eight}, eight), 8);
}

TEST(ThreadsPerRank, RanksThatAreBoundApartHaveAllOfTheirCores) {
  EXPECT_EQ(Threads({"0,1,2", "3,4,5"}, "0,1,2"), 3);
  EXPECT_EQ(Threads({"0,1,2,3", "0,1,2,3", "4,5,6,7", "4,5,6,7"}, "4,5,6,7"), 2);
}

TEST(ThreadsPerRank, IsAtLeastOne) { EXPECT_EQ(Threads({"0", "0", "0"}, "0"), 1); }

TEST(ProgramFingerprint, IsTheChecksumOfTheWholeProgram) {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  EXPECT_GT(bytes.str().size(), 1u << 20);  // more than one block
  EXPECT_EQ(ProgramFingerprint(), absl::StrFormat("%08x", Crc32c(bytes.str())));
}

TEST(HostName, IsTheSystems) {
  utsname system{};
  ASSERT_EQ(uname(&system), 0);
  EXPECT_EQ(HostName(), system.nodename);
}

TEST(UsableCores, AreAsManyAsTheList) {
  EXPECT_EQ(ThreadsPerRank(std::vector<std::string>{UsableCoreList()}, UsableCoreList()),
            UsableCores());
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  EXPECT_EQ(UsableCores(), CPU_COUNT(&set));
  EXPECT_EQ(CPU_ISSET(0, &set), (UsableCoreList() + ",").starts_with("0,"));
}

constexpr int64_t kBlock = 64 << 20;
// Bytes that the rest of the process may give back or take meanwhile; the kernel's counters lag
// too.
constexpr int64_t kSlack = 8 << 20;

TEST(BorrowedCores, AreGivenBack) {
  const std::string all = UsableCoreList();
  const std::string one = all.substr(0, all.find(','));
  std::thread([&] {
    const BorrowedCores bound_to_none(std::vector<std::string>{});
    EXPECT_EQ(UsableCoreList(), all);
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(std::stoi(one), &set);
    ASSERT_EQ(sched_setaffinity(0, sizeof(set), &set), 0);
    {
      const BorrowedCores borrowed(std::vector<std::string>{one, all, "no core"});
      EXPECT_EQ(UsableCoreList(), all);
    }
    EXPECT_EQ(UsableCoreList(), one);
  }).join();
}

TEST(ProcessMemory, CountsMemoryThatIsWritten) {
  const int64_t before = testing::ResidentBytes();
  const std::vector<char> block(kBlock, 1);
  EXPECT_GT(before, 0);
  EXPECT_GE(testing::ResidentBytes(), before + kBlock - kSlack)
      << static_cast<int>(block[kBlock / 2]);
}

TEST(ProcessMemory, ThePeakStaysWhenMemoryIsGivenBack) {
  const int64_t before = testing::ResidentBytes();
  { const std::vector<char> block(kBlock, 1); }
  EXPECT_GE(PeakResidentBytes(), before + kBlock - kSlack);
  EXPECT_GE(PeakResidentBytes(), testing::ResidentBytes() - kSlack);
}

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
