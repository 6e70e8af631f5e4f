// The contract of FileSystem, kept by both implementations; and what a crash may take, which only
// the one in memory can show.
#include "parallel/base/file_system.h"

#include <sched.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "tests/support/memory_file_system.h"

namespace deepnet {
namespace {

using deepnet::testing::CrashKind;
using deepnet::testing::MemoryFileSystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

void Write(FileSystem& fs, const std::string& path, std::string_view bytes, bool sync = true) {
  const auto file = fs.OpenForAppend(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->Append(bytes).ok());
  if (sync) {
    ASSERT_TRUE((*file)->Sync().ok());
  }
  ASSERT_TRUE((*file)->Close().ok());
}

std::string Read(FileSystem& fs, const std::string& path) {
  const auto contents = ReadWholeFile(fs, path, 1000);
  return contents.ok() ? *contents : contents.status().ToString();
}

struct Implementation {
  std::string name;
  std::function<std::unique_ptr<FileSystem>()> make;
};

class FileSystemContract : public ::testing::TestWithParam<Implementation> {
 protected:
  void SetUp() override {
    fs_ = GetParam().make();
    const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    for (char& c : folder_ = absl::StrCat("fs-", getpid(), "-", name)) c = c == '/' ? '-' : c;
    folder_ = JoinPath(::testing::TempDir(), folder_);
    ASSERT_TRUE(fs_->MakeFolder(folder_).ok());
  }
  void TearDown() override { EXPECT_TRUE(fs_->DeleteTree(folder_).ok()); }

  std::string Path(std::string_view name) const { return JoinPath(folder_, name); }

  void MakeLink(const std::string& target, const std::string& path) {
    auto* const memory = dynamic_cast<MemoryFileSystem*>(fs_.get());
    if (memory != nullptr) return memory->MakeLink(target, path);
    ASSERT_EQ(symlink(target.c_str(), path.c_str()), 0);
  }

  std::unique_ptr<FileSystem> fs_;
  std::string folder_;
};

INSTANTIATE_TEST_SUITE_P(
    All, FileSystemContract,
    ::testing::Values(Implementation{"Posix", [] { return MakePosixFileSystem(); }},
                      Implementation{"PosixThatDoesNotWait",
                                     [] { return MakePosixFileSystem(Durability::kProcessEnd); }},
                      Implementation{"Memory",
                                     [] { return std::make_unique<MemoryFileSystem>(); }}),
    [](const auto& info) { return info.param.name; });

TEST_P(FileSystemContract, AppendsToWhatIsThere) {
  Write(*fs_, Path("a"), "one");
  Write(*fs_, Path("a"), " two");
  EXPECT_EQ(Read(*fs_, Path("a")), "one two");
  EXPECT_EQ(*fs_->Size(Path("a")), 7);
}

TEST_P(FileSystemContract, ReadsFewerBytesOnlyAtTheEnd) {
  Write(*fs_, Path("a"), "0123456789");
  std::string buffer(4, '?');
  EXPECT_EQ(*fs_->ReadAt(Path("a"), 3, buffer), 4);
  EXPECT_EQ(buffer, "3456");
  EXPECT_EQ(*fs_->ReadAt(Path("a"), 8, buffer), 2);
  EXPECT_EQ(buffer.substr(0, 2), "89");
  EXPECT_EQ(*fs_->ReadAt(Path("a"), 20, buffer), 0);
}

TEST_P(FileSystemContract, WhatIsThereIsNotCreatedAnew) {
  Write(*fs_, Path("a"), "kept");
  EXPECT_TRUE(absl::IsAlreadyExists(fs_->CreateNew(Path("a")).status()));
  EXPECT_EQ(Read(*fs_, Path("a")), "kept");
}

TEST_P(FileSystemContract, WhatIsNotThereNeedNotBeDeleted) {
  EXPECT_TRUE(DeleteIfThere(*fs_, Path("none")).ok());
  ASSERT_TRUE(fs_->MakeFolder(Path("tree/deep")).ok());
  EXPECT_TRUE(DeleteIfThere(*fs_, Path("tree")).ok());
  EXPECT_TRUE(fs_->List(folder_)->empty());
}

TEST_P(FileSystemContract, MissingFileIsNotFoundAndNamed) {
  EXPECT_EQ(fs_->Size(Path("none")).status().code(), absl::StatusCode::kNotFound);
  std::string buffer(1, '?');
  const absl::Status status = fs_->ReadAt(Path("none"), 0, buffer).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(Path("none")));
  EXPECT_EQ(fs_->Delete(Path("none")).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(fs_->Rename(Path("none"), Path("b")).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(fs_->List(Path("none")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(*Exists(*fs_, Path("none")));
  EXPECT_EQ(fs_->DeleteTree(Path("none")).code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(fs_->OpenForAppend(Path("none/a")).ok());
}

TEST_P(FileSystemContract, MakesFoldersWithThoseAbove) {
  EXPECT_TRUE(fs_->MakeFolder(Path("x/y/z")).ok());
  EXPECT_TRUE(fs_->MakeFolder(Path("x/y/z")).ok());
  EXPECT_TRUE(*Exists(*fs_, Path("x/y/z")));
  Write(*fs_, Path("x/file"), "");
  EXPECT_FALSE(fs_->MakeFolder(Path("x/file")).ok());
  EXPECT_THAT(*fs_->List(Path("x")), ElementsAre("file", "y"));
}

TEST_P(FileSystemContract, RenamingReplacesAFile) {
  Write(*fs_, Path("a"), "new");
  Write(*fs_, Path("b"), "old");
  EXPECT_TRUE(fs_->Rename(Path("a"), Path("b")).ok());
  EXPECT_TRUE(fs_->SyncFolder(folder_).ok());
  EXPECT_EQ(Read(*fs_, Path("b")), "new");
  EXPECT_THAT(*fs_->List(folder_), ElementsAre("b"));
}

TEST_P(FileSystemContract, RenamingDoesNotReplaceAFullFolder) {
  EXPECT_TRUE(fs_->MakeFolder(Path("a")).ok());
  EXPECT_TRUE(fs_->MakeFolder(Path("b")).ok());
  Write(*fs_, Path("b/file"), "kept");
  EXPECT_FALSE(fs_->Rename(Path("a"), Path("b")).ok());
  EXPECT_FALSE(fs_->Delete(Path("b")).ok());
  EXPECT_EQ(Read(*fs_, Path("b/file")), "kept");
  EXPECT_TRUE(fs_->Rename(Path("b"), Path("a")).ok());
  EXPECT_EQ(Read(*fs_, Path("a/file")), "kept");
}

TEST_P(FileSystemContract, WholeFileBeyondTheLimitIsRefused) {
  Write(*fs_, Path("a"), "0123456789");
  const auto contents = ReadWholeFile(*fs_, Path("a"), 9);
  EXPECT_THAT(std::string(contents.status().message()), HasSubstr("has 10 bytes; at most 9"));
  EXPECT_EQ(*ReadWholeFile(*fs_, Path("a"), 10), "0123456789");
}

TEST_P(FileSystemContract, ReplaceFileLeavesNothingElseAndTouchesNothingElse) {
  Write(*fs_, Path("a.tmp"), "somebody's");
  EXPECT_TRUE(ReplaceFile(*fs_, Path("a"), "1").ok());
  EXPECT_TRUE(ReplaceFile(*fs_, Path("a"), "2").ok());
  EXPECT_EQ(Read(*fs_, Path("a")), "2");
  EXPECT_EQ(Read(*fs_, Path("a.tmp")), "somebody's");
  { const auto given_up = FileReplacement::Begin(*fs_, Path("a")); }
  EXPECT_THAT(*fs_->List(folder_), ElementsAre("a", "a.tmp"));
}

TEST_P(FileSystemContract, TellsALinkFromWhatItLeadsTo) {
  ASSERT_TRUE(fs_->MakeFolder(Path("folder")).ok());
  Write(*fs_, Path("file"), "text");
  for (const char* target : {"folder", "file", "none"}) {
    const std::string link = Path(absl::StrCat(target, "-link"));
    MakeLink(Path(target), link);
    EXPECT_EQ(*fs_->TypeOf(link), FileType::kLink) << target;
    EXPECT_TRUE(*Exists(*fs_, link)) << target;
  }
  EXPECT_EQ(*fs_->TypeOf(Path("folder")), FileType::kFolder);
  EXPECT_EQ(*fs_->TypeOf(Path("folder-link/none")), FileType::kNone);
  EXPECT_EQ(Read(*fs_, Path("file-link")), "text");
  EXPECT_TRUE(fs_->List(Path("folder-link"))->empty());
}

TEST_P(FileSystemContract, NothingIsWrittenThroughALink) {
  Write(*fs_, Path("theirs"), "theirs");
  ASSERT_TRUE(fs_->MakeFolder(Path("folder")).ok());
  MakeLink(Path("theirs"), Path("full"));
  MakeLink(Path("none"), Path("dangling"));
  MakeLink(Path("folder"), Path("folder-link"));
  for (const char* link : {"full", "dangling"}) {
    EXPECT_FALSE(fs_->OpenForAppend(Path(link)).ok()) << link;
    EXPECT_TRUE(absl::IsAlreadyExists(fs_->CreateNew(Path(link)).status())) << link;
    EXPECT_THAT(std::string(ReplaceFile(*fs_, Path(link), "ours").message()),
                HasSubstr("is a symbolic link"))
        << link;
  }
  EXPECT_FALSE(MakeOwnFolder(*fs_, Path("folder-link")).ok());
  EXPECT_FALSE(MakeOwnFolder(*fs_, Path("dangling")).ok());
  EXPECT_EQ(Read(*fs_, Path("theirs")), "theirs");
  EXPECT_THAT(*fs_->List(folder_),
              ElementsAre("dangling", "folder", "folder-link", "full", "theirs"));
}

TEST_P(FileSystemContract, DeletesATreeAndNothingThatItsLinksLeadTo) {
  ASSERT_TRUE(fs_->MakeFolder(Path("theirs")).ok());
  Write(*fs_, Path("theirs/thesis"), "years of work");
  ASSERT_TRUE(fs_->MakeFolder(Path("tree/deep")).ok());
  Write(*fs_, Path("tree/deep/file"), "");
  MakeLink(Path("theirs"), Path("tree/deep/folder-link"));
  MakeLink(Path("theirs/thesis"), Path("tree/file-link"));
  MakeLink(Path("tree"), Path("tree-link"));
  EXPECT_TRUE(fs_->DeleteTree(Path("tree-link")).ok());
  EXPECT_EQ(*fs_->Size(Path("tree/deep/file")), 0);
  EXPECT_TRUE(fs_->DeleteTree(Path("tree")).ok());
  EXPECT_EQ(Read(*fs_, Path("theirs/thesis")), "years of work");
  EXPECT_THAT(*fs_->List(folder_), ElementsAre("theirs"));
}

// None of these can be made durable, nor the first be filled.
TEST(PosixFileSystem, SaysWhatTheDiskRefused) {
  const auto fs = MakePosixFileSystem(), hasty = MakePosixFileSystem(Durability::kProcessEnd);
  const auto full = fs->OpenForAppend("/dev/full"), null = hasty->OpenForAppend("/dev/null");
  ASSERT_TRUE(full.ok() && null.ok());
  EXPECT_EQ((*full)->Append("x").message(), "cannot write to '/dev/full': No space left on device");
  EXPECT_EQ((*full)->Sync().message(), "cannot sync '/dev/full': Invalid argument");
  EXPECT_TRUE((*full)->Close().ok());
  EXPECT_EQ((*full)->Close().message(), "cannot close '/dev/full': Bad file descriptor");
  EXPECT_TRUE((*null)->Sync().ok());
  EXPECT_EQ(fs->SyncFolder("/proc").message(), "cannot sync the folder '/proc': Invalid argument");
  EXPECT_EQ(fs->SyncFolder("/none").message(),
            "cannot open the folder '/none': No such file or directory");
  EXPECT_TRUE(hasty->SyncFolder("/proc").ok());
  EXPECT_EQ(fs->MakeFolder("/dev/full/a").message(),
            "cannot make the folder '/dev/full/a': Not a directory");
  std::string buffer(1, '?');
  EXPECT_EQ(fs->ReadAt(::testing::TempDir(), 0, buffer).status().message(),
            absl::StrCat("cannot read '", ::testing::TempDir(), "': Is a directory"));
}

TEST(PosixFileSystem, WhatIsNoFileIsNotReplacedAndAPipeThatNobodyReadsIsNotWaitedFor) {
  const auto fs = MakePosixFileSystem();
  const std::string pipe = JoinPath(::testing::TempDir(), absl::StrCat("unread-", getpid()));
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(*fs->TypeOf(pipe), FileType::kOther);
  EXPECT_EQ(ReplaceFile(*fs, pipe, "text").message(),
            absl::StrCat("'", pipe, "' is no regular file"));
  EXPECT_EQ(fs->OpenForAppend(pipe).status().message(),
            absl::StrCat("cannot open for appending '", pipe, "': No such device or address"));
  EXPECT_EQ(*fs->TypeOf(pipe), FileType::kOther);
  unlink(pipe.c_str());
}

// As root alone; others cannot mount, and the kernel keeps them from deleting a mount point.
TEST(PosixFileSystem, DeletesNothingWhereAMountPointIsInTheTree) {
  if (unshare(CLONE_NEWNS) != 0) return;
  ASSERT_EQ(mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
  const auto fs = MakePosixFileSystem();
  const std::string folder = JoinPath(::testing::TempDir(), absl::StrCat("mounted-", getpid()));
  ASSERT_TRUE(fs->MakeFolder(folder + "/theirs").ok());
  Write(*fs, folder + "/theirs/thesis", "years of work");
  ASSERT_TRUE(fs->MakeFolder(folder + "/tree/b/mounted").ok());
  Write(*fs, folder + "/tree/a", "");
  const std::string mounted = folder + "/tree/b/mounted";
  ASSERT_EQ(mount((folder + "/theirs").c_str(), mounted.c_str(), nullptr, MS_BIND, nullptr), 0);
  for (const char* tree : {"/tree", "/tree/b/mounted"}) {
    EXPECT_THAT(std::string(fs->DeleteTree(folder + tree).message()),
                HasSubstr("tree/b/mounted' is a mount point"));
  }
  EXPECT_THAT(*fs->List(folder + "/tree"), ElementsAre("a", "b"));
  EXPECT_EQ(Read(*fs, folder + "/theirs/thesis"), "years of work");
  EXPECT_TRUE(IsMountPoint(mounted));
  EXPECT_FALSE(IsMountPoint(folder + "/tree"));
  EXPECT_FALSE(IsMountPoint(folder + "/none"));
  ASSERT_EQ(umount(mounted.c_str()), 0);
  EXPECT_TRUE(fs->DeleteTree(folder).ok());
}

TEST(Paths, AFolderHoldsWhatLiesInItHoweverItIsSpelled) {
  const auto fs = MakePosixFileSystem();
  const std::string folder = JoinPath(::testing::TempDir(), absl::StrCat("lies-", getpid()));
  ASSERT_TRUE(fs->MakeFolder(folder + "/a/b").ok());
  Write(*fs, folder + "/a/b/file", "");
  ASSERT_EQ(symlink((folder + "/a").c_str(), (folder + "/link").c_str()), 0);
  EXPECT_TRUE(LiesIn(folder + "/a/b/file", folder + "/a"));
  EXPECT_TRUE(LiesIn(folder + "/link/b/../b/file", folder + "/a/"));
  EXPECT_TRUE(LiesIn(folder + "/a", folder + "/link"));
  EXPECT_FALSE(LiesIn(folder + "/ab", folder + "/a"));
  EXPECT_FALSE(LiesIn(folder, folder + "/a"));
  EXPECT_TRUE(fs->DeleteTree(folder).ok());
}

// Links of a test that is over are gone with the folder.
class OwnLinks : public ::testing::Test {
 protected:
  OwnLinks() { EXPECT_TRUE(fs_->MakeFolder(folder_ + "/room").ok()); }
  ~OwnLinks() override { EXPECT_TRUE(fs_->DeleteTree(folder_).ok()); }

  void Link(const std::string& target, const std::string& name) const {
    ASSERT_EQ(symlink(target.c_str(), (folder_ + name).c_str()), 0);
  }
  // The folder is left out of the answer, and of what is wrong.
  std::string Follow(const std::string& name) const {
    const auto path = FollowOwnLinks(folder_ + name);
    const std::string text = path.ok() ? *path : std::string(path.status().message());
    return absl::StrReplaceAll(text, {{folder_, ""}});
  }

  const std::unique_ptr<FileSystem> fs_ = MakePosixFileSystem();
  const std::string folder_ = JoinPath(::testing::TempDir(), absl::StrCat("own-links-", getpid()));
};

TEST_F(OwnLinks, AreFollowedToTheirEnd) {
  Link("room", "/relative");
  Link(folder_ + "/room/new/", "/dangling");
  Link("room/../relative", "/chain");
  EXPECT_EQ(Follow("/none"), "/none");
  EXPECT_EQ(Follow("/room//"), "/room");
  EXPECT_EQ(Follow("/relative"), "/room");
  EXPECT_EQ(Follow("/relative/"), "/room");
  EXPECT_EQ(Follow("/dangling"), "/room/new");
  EXPECT_EQ(Follow("/chain"), "/room");
  EXPECT_EQ(*FollowOwnLinks("/"), "/");
}

TEST_F(OwnLinks, FortyAreFollowedAndNoMore) {
  Link("room", "/0");
  for (int i = 1; i <= 40; ++i) Link(absl::StrCat(i - 1), absl::StrCat("/", i));
  Link("self", "/self");
  EXPECT_EQ(Follow("/39"), "/room");
  EXPECT_EQ(Follow("/self"), "'/self' is a symbolic link to itself");
  EXPECT_EQ(Follow("/40"), "'/0' is a symbolic link to itself");
}

// As root alone, who can give links away.
TEST_F(OwnLinks, OfAnotherUserAreNotFollowedButRootsAre) {
  if (geteuid() != 0) return;
  constexpr uid_t kOwn = 54321, kOther = 54322;
  for (const auto& [name, user] :
       {std::pair("/root", uid_t{0}), {"/own", kOwn}, {"/other", kOther}}) {
    Link("room", name);
    ASSERT_EQ(lchown((folder_ + name).c_str(), user, 0), 0);
  }
  const std::string refused = "'/other' is a symbolic link that another user made";
  EXPECT_EQ(Follow("/root"), "/room");
  EXPECT_EQ(Follow("/own"), "'/own' is a symbolic link that another user made");
  EXPECT_EQ(Follow("/other"), refused);
  ASSERT_EQ(seteuid(kOwn), 0);
  EXPECT_EQ(Follow("/root"), "/room");
  EXPECT_EQ(Follow("/own"), "/room");
  EXPECT_EQ(Follow("/other"), refused);
  ASSERT_EQ(seteuid(0), 0);
}

// What looks like one is deleted as what a crash has left.
TEST(UnusedName, IsKnownAgainAndNoOtherNameIs) {
  const std::string name = UnusedName();
  EXPECT_TRUE(IsUnusedName(name)) << name;
  EXPECT_NE(UnusedName(), name);
  EXPECT_TRUE(IsUnusedName(".deepnet-0123456789abcdef"));
  for (const char* other :
       {"", ".deepnet-", ".deepnet-0123456789abcde", ".deepnet-0123456789abcdef0",
        ".deepnet-0123456789abcdeg", "deepnet-0123456789abcdef", ".deepnet_0123456789abcdef",
        "x.deepnet-0123456789abcde"}) {
    EXPECT_FALSE(IsUnusedName(other)) << other;
  }
}

TEST(Paths, AreJoinedAndCut) {
  EXPECT_EQ(JoinPath("a/", "b"), "a/b");
  EXPECT_EQ(JoinPath("a", "b"), "a/b");
  EXPECT_EQ(JoinPath("", "b"), "b");
  EXPECT_EQ(JoinPath("/", "b"), "/b");
  EXPECT_EQ(ParentFolder("a/b"), "a");
  EXPECT_EQ(ParentFolder("/b"), "/");
  EXPECT_EQ(ParentFolder("b"), ".");
}

TEST(Crash, TakesWhatWasNotSynced) {
  MemoryFileSystem fs;
  ASSERT_TRUE(fs.MakeFolder("d").ok());
  Write(fs, "d/kept", "all");
  ASSERT_TRUE(fs.SyncFolder("d").ok());
  Write(fs, "d/kept", " and more", /*sync=*/false);
  Write(fs, "d/name-not-synced", "all");
  fs.Crash(CrashKind::kLoseUnsynced);
  EXPECT_EQ(Read(fs, "d/kept"), "all");
  EXPECT_THAT(*fs.List("d"), ElementsAre("kept"));
}

TEST(Crash, UndoesARenamingWhoseFolderWasNotSynced) {
  MemoryFileSystem fs;
  Write(fs, "a", "new");
  Write(fs, "b", "old");
  ASSERT_TRUE(fs.SyncFolder(".").ok());
  ASSERT_TRUE(fs.Rename("a", "b").ok());
  EXPECT_EQ(Read(fs, "b"), "new");
  fs.Crash(CrashKind::kLoseUnsynced);
  EXPECT_EQ(Read(fs, "a"), "new");
  EXPECT_EQ(Read(fs, "b"), "old");
}

TEST(Crash, OfTheProcessAloneTakesNothing) {
  MemoryFileSystem fs;
  Write(fs, "a", "all", /*sync=*/false);
  fs.Crash(CrashKind::kKeepAll);
  EXPECT_EQ(Read(fs, "a"), "all");
}

TEST(Crash, AtAnyMomentOfReplaceFileLeavesTheOldOrTheNewOne) {
  bool finished = false;
  for (int64_t calls = 0; !finished; ++calls) {
    for (const CrashKind kind :
         {CrashKind::kKeepAll, CrashKind::kLoseUnsynced, CrashKind::kLoseSome}) {
      for (uint64_t seed = 0; seed < 20; ++seed) {
        MemoryFileSystem fs;
        ASSERT_TRUE(ReplaceFile(fs, "file", "old").ok());
        fs.StopAfter(calls);
        finished = ReplaceFile(fs, "file", "new").ok();
        fs.Crash(kind, seed);
        const std::string contents = Read(fs, "file");
        EXPECT_TRUE(contents == "new" || (!finished && contents == "old")) << calls << contents;
        EXPECT_TRUE(ReplaceFile(fs, "file", "newer").ok());
        EXPECT_EQ(Read(fs, "file"), "newer");
      }
    }
  }
}

// Opened for reading, a pipe without a writer waits for one: for ever.
TEST(ReadWholeFile, RefusesPipesDevicesAndFoldersWithoutOpeningThem) {
  const auto fs = MakePosixFileSystem();
  const std::string pipe = JoinPath(::testing::TempDir(), absl::StrCat("pipe-", getpid()));
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, std::string("/dev/zero"), ::testing::TempDir()}) {
    const absl::Status refused = ReadWholeFile(*fs, path, 1000).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(path));
  }
  unlink(pipe.c_str());
}

TEST(IsFileName, OfWhatStandsInAFolderAndNowhereElse) {
  for (const char* name : {"a", "a.b", "..a", "a b", "\u00e4"})
    EXPECT_TRUE(IsFileName(name)) << name;
  for (const char* name : {"", ".", "..", "a/b", "/a", "../a", "a\n", "\x1b[2J", "a\x7f"}) {
    EXPECT_FALSE(IsFileName(name)) << name;
  }
}

TEST(ReadFileOrPipe, ReadsFilesAndPipesUpToTheLimit) {
  const std::string path = JoinPath(::testing::TempDir(), absl::StrCat("file-", getpid()));
  const auto fs = MakePosixFileSystem();
  const std::string text(150'000, 'x');
  Write(*fs, path, text);
  EXPECT_EQ(*ReadFileOrPipe(path, 150'000), text);
  const absl::Status refused = ReadFileOrPipe(path, 149'999).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_EQ(refused.message(), absl::StrCat("'", path,
                                            "' has more than 149999 bytes, the most that "
                                            "make sense"));
  EXPECT_TRUE(fs->Delete(path).ok());
  EXPECT_TRUE(absl::IsNotFound(ReadFileOrPipe(path, 1000).status()));

  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  std::thread writer([&] {
    std::ofstream pipe(path);
    pipe << text << std::flush << text;  // in pieces
  });
  EXPECT_EQ(*ReadFileOrPipe(path, 1'000'000), text + text);
  writer.join();
  EXPECT_TRUE(fs->Delete(path).ok());

  EXPECT_TRUE(absl::IsFailedPrecondition(ReadFileOrPipe("/dev/zero", 1'000'000).status()));
  EXPECT_FALSE(ReadFileOrPipe(::testing::TempDir(), 1000).ok());
}

TEST(ObservedFileSystem, TellsOfEveryCallThatHasEndedAndPassesAnswersOn) {
  MemoryFileSystem memory;
  std::vector<std::string> told;
  const auto observed =
      MakeObservedFileSystem(memory, [&](const std::string& path) { told.push_back(path); });
  FileSystem& fs = *observed;
  ASSERT_TRUE(fs.MakeFolder("run").ok());
  {
    const auto file = fs.OpenForAppend("run/a");
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE((*file)->Append("text").ok());
    ASSERT_TRUE((*file)->Sync().ok());
    ASSERT_TRUE((*file)->Close().ok());
  }
  ASSERT_TRUE(fs.CreateNew("run/b").ok());
  char bytes[4];
  EXPECT_EQ(*fs.ReadAt("run/a", 1, bytes), 3);
  EXPECT_EQ(*fs.Size("run/a"), 4);
  EXPECT_EQ(*fs.TypeOf("run/a"), FileType::kFile);
  EXPECT_EQ(fs.List("run")->size(), 2u);
  ASSERT_TRUE(fs.Rename("run/a", "run/c").ok());
  ASSERT_TRUE(fs.SyncFolder("run").ok());
  ASSERT_TRUE(fs.Delete("run/c").ok());
  EXPECT_TRUE(absl::IsNotFound(fs.Size("run/a").status()));
  ASSERT_TRUE(fs.DeleteTree("run").ok());
  EXPECT_EQ(told, (std::vector<std::string>{"run", "run/a", "run/a", "run/a", "run/a", "run/b",
                                            "run/a", "run/a", "run/a", "run", "run/a", "run",
                                            "run/c", "run/a", "run"}));
}

}  // namespace
}  // namespace deepnet
