#include "trainer/doctor/host_check.h"

#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/memory_file_system.h"
#include "tests/trainer/data/temp_folder.h"

namespace deepnet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TEST(HostCheck, DescribesThisProcess) {
  const DoctorRank rank = DescribeHost();
  EXPECT_FALSE(rank.host().empty());
  EXPECT_GE(rank.cores(), 1);
  EXPECT_GE(rank.host_cores(), rank.cores());
  EXPECT_GT(rank.memory_bytes(), 0);
  EXPECT_EQ(rank.build().size(), 8u);
}

TEST(HostCheck, AFolderOfThisMachineCanDoAllAndIsLeftEmpty) {
  const testing::TempFolder folder;
  const auto files = MakePosixFileSystem();
  DoctorRank rank;
  CheckFolder({.files = files.get()}, folder.path(), "probe", rank);
  EXPECT_THAT(rank.folder_failures(), IsEmpty());
  EXPECT_GT(rank.free_bytes(), 0);
  EXPECT_GT(rank.sync_seconds(), 0.0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(HostCheck, TheNearestFolderIsTheOneThatExists) {
  const testing::TempFolder folder;
  const auto files = MakePosixFileSystem();
  EXPECT_EQ(NearestFolder(*files, folder.path()), folder.path());
  EXPECT_EQ(NearestFolder(*files, JoinPath(folder.path(), "runs/a")), folder.path());
}

// Each of these folders lacks something, which is named, and nothing else.
class CrippledFolder : public ::testing::Test {
 protected:
  auto Failures(const FolderAccess& access) {
    DoctorRank rank;
    CheckFolder(access, "/", "probe", rank);
    return rank.folder_failures();
  }
  FolderAccess Access(FileSystem& files) {
    return {.files = &files,
            .free_bytes = [](const std::string&) { return int64_t{1}; },
            .check_locks = [](const std::string&) { return absl::OkStatus(); }};
  }
  testing::MemoryFileSystem memory_;
};

class WithoutRename : public FileSystem {
 public:
  explicit WithoutRename(FileSystem& inner) : inner_(inner) {}
  absl::StatusOr<std::unique_ptr<AppendFile>> OpenForAppend(const std::string& path) override {
    return inner_.OpenForAppend(path);
  }
  absl::StatusOr<std::unique_ptr<AppendFile>> CreateNew(const std::string& path) override {
    return inner_.OpenForAppend(path);  // as if nobody else had created it
  }
  absl::StatusOr<int64_t> ReadAt(const std::string& path, int64_t offset,
                                 std::span<char> buffer) override {
    return inner_.ReadAt(path, offset, buffer);
  }
  absl::StatusOr<int64_t> Size(const std::string& path) override { return inner_.Size(path); }
  absl::StatusOr<FileType> TypeOf(const std::string& path) override { return inner_.TypeOf(path); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    return inner_.List(folder);
  }
  absl::Status Rename(const std::string&, const std::string&) override {
    return absl::UnimplementedError("not supported");
  }
  absl::Status Delete(const std::string& path) override { return inner_.Delete(path); }
  absl::Status DeleteTree(const std::string& path) override { return inner_.DeleteTree(path); }
  absl::Status MakeFolder(const std::string& path) override { return inner_.MakeFolder(path); }
  absl::Status SyncFolder(const std::string& path) override { return inner_.SyncFolder(path); }

 private:
  FileSystem& inner_;
};

TEST_F(CrippledFolder, WithoutRenameOrExclusiveCreation) {
  EXPECT_THAT(Failures(Access(memory_)), IsEmpty());
  WithoutRename files(memory_);
  EXPECT_THAT(Failures(Access(files)),
              ElementsAre("rename: not supported", StartsWith("create exclusively: ")));
}

// Says that it has renamed, and has not.
class RenamingNothing final : public WithoutRename {
 public:
  using WithoutRename::WithoutRename;
  absl::Status Rename(const std::string&, const std::string&) override { return absl::OkStatus(); }
};

TEST_F(CrippledFolder, WhereTheRenamedFileDoesNotTakeTheOthersPlace) {
  RenamingNothing files(memory_);
  EXPECT_THAT(Failures(Access(files)),
              ElementsAre("rename: '/probe.renamed' has other bytes than were written",
                          StartsWith("create exclusively: ")));
}

TEST_F(CrippledFolder, WithoutLocksOrFigures) {
  FolderAccess access = Access(memory_);
  access.check_locks = [](const std::string& path) {
    return absl::InternalError("'" + path + "' can be locked twice");
  };
  access.free_bytes = [](const std::string&) -> absl::StatusOr<int64_t> {
    return absl::NotFoundError("gone");
  };
  EXPECT_THAT(Failures(access),
              ElementsAre("free space: gone", HasSubstr("flock: '/probe' can be locked twice")));
}

TEST_F(CrippledFolder, ThatCannotBeWritten) {
  memory_.StopAfter(0);
  EXPECT_THAT(Failures(Access(memory_)), ElementsAre(StartsWith("write and fsync: ")));
}

}  // namespace
}  // namespace deepnet
