// `checkpoint verify|reshard|average|export` as ranks under mpirun: the output of one process, to
// the byte.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/file_system.h"
#include "tests/support/child_process.h"
#include "tests/support/large_checkpoint.h"

namespace deepnet {
namespace {

using deepnet::testing::RunChild;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

namespace fs = std::filesystem;

class CheckpointRanksTest : public ::testing::Test {
 protected:
  // Two checkpoints of some 24 MiB in blocks of 1 MiB, over 3 files.
  void SetUp() override {
    fs::create_directories(root_);
    const auto files = MakePosixFileSystem(Durability::kProcessEnd);
    for (const int64_t step : {1, 2}) {
      const auto saved = deepnet::testing::SaveLargeCheckpoint(
          *files, Path("run"),
          {.bytes = 24 << 20, .num_files = 3, .block_bytes = 1 << 20, .step = step});
      ASSERT_TRUE(saved.ok()) << saved;
    }
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string Path(const std::string& name) const { return (root_ / name).string(); }

  static std::string Read(const fs::path& file) {
    std::ostringstream text;
    text << std::ifstream(file, std::ios::binary).rdbuf();
    return text.str();
  }

  // Returns the exit code of `deepnet checkpoint`, as one process or as ranks; its outputs are in
  // files.
  int Start(int ranks, const std::string& arguments) const {
    const std::string launcher =
        absl::StrCat("MPIEXEC_TIMEOUT=120 tests/mpi/mpirun.sh ", ranks, " ");
    return RunChild({"bash", "-c",
                     absl::StrCat(ranks > 1 ? launcher : "", DEEPNET_PROGRAM, " checkpoint ",
                                  arguments, " > ", Path("out"), " 2> ", Path("err"))})
        .code;
  }

  // Returns the files that the command writes to its --output, by name.
  std::map<std::string, std::string> Write(int ranks, const std::string& arguments) const {
    const fs::path folder = Path(absl::StrCat("on", ranks));
    fs::remove_all(folder);
    EXPECT_EQ(Start(ranks, absl::StrCat(arguments, " --no-sync --output ", folder.string())), 0)
        << arguments << "\n"
        << Read(Path("err"));
    EXPECT_THAT(Read(Path("out")), HasSubstr(folder.string()));
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file()) {
        files[fs::relative(entry.path(), folder).string()] = Read(entry.path());
      }
    }
    return files;
  }

  const fs::path root_ =
      fs::path(::testing::TempDir()) / absl::StrCat("deepnet_checkpoint_ranks_", getpid());
};

TEST_F(CheckpointRanksTest, AReshardedCheckpointIsThatOfOneProcess) {
  const std::string reshard = absl::StrCat("reshard ", Path("run"), " --files 4");
  const auto one = Write(1, reshard);
  EXPECT_THAT(one, SizeIs(6));  // manifest.pb and `latest`
  for (const int ranks : {3, 6}) EXPECT_TRUE(Write(ranks, reshard) == one) << ranks;
}

TEST_F(CheckpointRanksTest, AMeanIsThatOfOneProcess) {
  const std::string average = absl::StrCat("average ", Path("run"), " --last 2 --memory 24MiB");
  const auto one = Write(1, average);
  for (const int ranks : {2, 3}) EXPECT_TRUE(Write(ranks, average) == one) << ranks;
}

TEST_F(CheckpointRanksTest, AnExportIsThatOfOneProcess) {
  const std::string flags = "export tests/golden/run-v1/run --max-shard-size 10kB --output ";
  ASSERT_EQ(Start(1, flags + Path("one")), 0) << Read(Path("err"));
  ASSERT_EQ(Start(3, flags + Path("three")), 0) << Read(Path("err"));
  int num_files = 0;
  for (const auto& entry : fs::directory_iterator(Path("one"))) {
    const std::string name = entry.path().filename().string();
    num_files += absl::StartsWith(name, "model-") ? 1 : 0;
    EXPECT_TRUE(Read(entry.path()) == Read(fs::path(Path("three")) / name)) << name;
  }
  EXPECT_GT(num_files, 3);
}

TEST_F(CheckpointRanksTest, DamageIsNamedInTheSameWordsWhicheverRankFoundIt) {
  const std::string folder = Path("run/step-00000002");
  EXPECT_EQ(Start(3, "verify " + folder), 0) << Read(Path("err"));
  for (const char* name : {"/tensors-00000-of-00003.bin", "/tensors-00002-of-00003.bin"}) {
    std::fstream file(folder + name, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(3 << 20);
    file.put('x');
  }
  fs::remove(folder + "/tensors-00001-of-00003.bin");
  ASSERT_EQ(Start(1, "verify " + Path("run")), 5) << Read(Path("err"));
  const std::string one = Read(Path("out"));
  EXPECT_THAT(one, HasSubstr("tensors-00001-of-00003.bin"));
  EXPECT_THAT(one, HasSubstr("DAMAGED in 3 places"));
  for (const int ranks : {2, 5}) {
    EXPECT_EQ(Start(ranks, "verify " + Path("run")), 5) << Read(Path("err"));
    EXPECT_EQ(Read(Path("out")), one) << ranks;
  }
}

TEST_F(CheckpointRanksTest, AnErrorEndsAllWithItsCodeAndIsSaidOnce) {
  std::fstream(Path("run/step-00000002/tensors-00002-of-00003.bin"),
               std::ios::in | std::ios::out | std::ios::binary)
      .put('x');
  const auto expect = [&](int code, const std::string& arguments, const std::string& error) {
    EXPECT_EQ(Start(3, absl::StrCat(arguments, " --output ", Path("new"))), code);
    const std::string said = Read(Path("err"));
    EXPECT_THAT(said, HasSubstr(error));
    EXPECT_EQ(said.find("error: ", said.find("error: ") + 1), said.npos) << said;
    EXPECT_FALSE(fs::exists(Path("new/step-00000002"))) << arguments;
    EXPECT_FALSE(fs::exists(Path("new/step-00000002.deepnet-unfinished"))) << arguments;
    fs::remove_all(Path("new"));
  };
  expect(2, "reshard " + Path("run"), "--files: required");
  expect(5, "reshard --files 3 " + Path("run"), "damaged in block 0");
  expect(5, "average --last 2 " + Path("run"), "damaged in block 0");
  expect(5, "average --last 3 " + Path("run"), "has 2 checkpoints; --last asks for 3");
}

}  // namespace
}  // namespace deepnet
