// The program's tools on a checkpoint four times as large as the memory they may take.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/file_system.h"
#include "tests/support/child_process.h"
#include "tests/support/large_checkpoint.h"
#include "tests/trainer/interop/large_model.h"

namespace deepnet {
namespace {

using deepnet::testing::ChildOutcome;
using deepnet::testing::RunChild;
using deepnet::testing::SaveLargeCheckpoint;
using deepnet::testing::SaveLargeModel;

constexpr int64_t kMemory = int64_t{40} << 20;
constexpr char kMemoryFlag[] = "--memory=40MiB";

// Beyond --memory, of which there is always some: pages of the program that only work touches.
constexpr double kTolerance = 1.2;

class CheckpointMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    fs_->DeleteTree(folder_).IgnoreError();
    for (const int64_t step : {1, 2}) {
      ASSERT_TRUE(
          SaveLargeCheckpoint(*fs_, Run(),
                              {.bytes = 4 * kMemory, .block_bytes = int64_t{4} << 20, .step = step})
              .ok());
    }
    idle_bytes_ = RunChild({DEEPNET_PROGRAM, "checkpoint", "--help"}).peak_bytes;
  }
  void TearDown() override { ASSERT_TRUE(fs_->DeleteTree(folder_).ok()); }

  std::string Run() const { return JoinPath(folder_, "run"); }

  // Runs a tool with `words`; it exits with `code` and keeps to the memory.
  void ExpectFits(std::vector<std::string> words, int code) {
    words.insert(words.begin(), {DEEPNET_PROGRAM, "checkpoint"});
    words.emplace_back(kMemoryFlag);
    const ChildOutcome outcome = RunChild(words);
    EXPECT_EQ(outcome.code, code) << outcome.output;
    const double taken = static_cast<double>(outcome.peak_bytes - idle_bytes_);
    EXPECT_LE(taken, kTolerance * static_cast<double>(kMemory)) << words[2];
    std::printf("%-8s %.2f of --memory\n", words[2].c_str(), taken / static_cast<double>(kMemory));
  }

  const std::unique_ptr<FileSystem> fs_ = MakePosixFileSystem();
  const std::string folder_ = JoinPath(::testing::TempDir(), "checkpoint-memory");
  int64_t idle_bytes_ = 0;
};

TEST_F(CheckpointMemory, OfEveryToolIsBounded) {
  const std::string output = JoinPath(folder_, "output"), mean = JoinPath(folder_, "mean");
  ExpectFits({"list", Run(), "--verify"}, 0);
  ExpectFits({"inspect", Run()}, 0);
  ExpectFits({"verify", Run()}, 0);
  ExpectFits({"reshard", Run(), "--files=3", "--output", output}, 0);
  ExpectFits({"diff", Run(), output}, 0);
  ExpectFits({"average", Run(), "--last=2", "--output", mean}, 0);
  ExpectFits({"verify", mean}, 0);
  ExpectFits({"prune", Run(), "--keep=1"}, 0);
}

// `script` is a terminal to what it runs.
TEST_F(CheckpointMemory, ABarIsShownOnATerminalAndOnlyThere) {
  const std::string tool = absl::StrCat(DEEPNET_PROGRAM, " checkpoint verify ", Run());
  const ChildOutcome shown = RunChild({"script", "-qec", tool, "/dev/null"});
  EXPECT_EQ(shown.code, 0) << shown.output;
  EXPECT_THAT(shown.output, ::testing::HasSubstr("verify [####"));
  EXPECT_THAT(shown.output, ::testing::ContainsRegex("100%[^\n]*\n[^\n]*step-00000001: intact"));
  const ChildOutcome piped = RunChild({"bash", "-c", tool});
  EXPECT_EQ(piped.code, 0) << piped.output;
  EXPECT_THAT(piped.output, ::testing::Not(::testing::HasSubstr("%")));
}

// An export is as large as the weights, of which there are four times --memory too.
TEST_F(CheckpointMemory, OfExportsAndImportsIsBounded) {
  const std::string model = JoinPath(folder_, "model"), again = JoinPath(folder_, "again");
  const absl::Status saved =
      SaveLargeModel(*fs_, model, {.bytes = 4 * kMemory, .block_bytes = int64_t{4} << 20});
  ASSERT_TRUE(saved.ok()) << saved;
  const std::string hf = JoinPath(folder_, "hf"), bf16 = JoinPath(folder_, "bf16");
  ExpectFits({"export", model, "--output", hf, "--max-shard-size=64MiB"}, 0);
  ExpectFits({"export", model, "--output", bf16, "--dtype=bfloat16"}, 0);
  ExpectFits({"export", model, "--output", JoinPath(folder_, "marian"), "--format=marian"}, 0);
  ExpectFits({"import", hf, "--output", again}, 0);
  ExpectFits({"diff", model, again}, 0);
  ExpectFits({"import", bf16, "--output", JoinPath(folder_, "rounded")}, 0);
}

}  // namespace
}  // namespace deepnet
