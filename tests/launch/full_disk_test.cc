// A run on a disk of 64 MiB, a real one: a tmpfs that only this process and its children see, and
// that goes with them. Needs root (label `root`).
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include "tests/parity/training_runs.h"
#include "tests/support/child_process.h"

namespace deepnet {
namespace {

using deepnet::testing::ChildOutcome;
using deepnet::testing::MakeCorpus;
using deepnet::testing::ReadSteps;
using deepnet::testing::RunChild;
using deepnet::testing::WeightsLine;
using ::testing::HasSubstr;
using ::testing::Not;

namespace fs = std::filesystem;

constexpr int kSteps = 6;
constexpr int kCheckpointCode = 5;

// 18 MB a checkpoint: three of them fit, the fourth does not.
constexpr char kRun[] = R"(# proto-file: proto/run.proto
# proto-message: deepnet.RunSpec
seed: 3
model { encoder_layers: 3 decoder_layers: 3 d_model: 128 ffn_dim: 512 num_heads: 2 residual: DEEPNORM
        max_positions: 300 dropout: 0.1 }
data { folder: "corpus" max_sentence_tokens: 150
       microbatch { max_source_tokens: 300 max_target_tokens: 300 max_sentences: 16 } }
optim { learning_rate: 2e-3 warmup_steps: 4 }
compute { device: "cpu" dtype: FLOAT32 threads_per_rank: 1 }
train { steps: 6 validate_every_steps: -1 log_every_steps: 1 checkpoint_every_steps: 1
        keep_checkpoints: 10 }
)";

class FullDiskTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) / absl::StrCat("deepnet_full_disk_", getpid());
    fs::create_directories(root_ / "disk");
    ASSERT_EQ(unshare(CLONE_NEWNS), 0) << "needs root";
    ASSERT_EQ(mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
    ASSERT_EQ(mount("tmpfs", Disk().c_str(), "tmpfs", 0, "size=64m"), 0);
    const absl::Status made = MakeCorpus(root_, "corpus", {"de", "fr"}, 300);
    ASSERT_TRUE(made.ok()) << made;
    std::ofstream(root_ / "run.textproto") << kRun;
  }
  void TearDown() override {
    umount(Disk().c_str());
    fs::remove_all(root_);
  }

  std::string Disk() const { return root_ / "disk"; }

  // Under the shell's command `limit`, if any.
  ChildOutcome Train(const std::string& folder, const std::string& limit = "true") const {
    return RunChild({"bash", "-c", limit + "; exec \"$@\"", "bash", DEEPNET_PROGRAM, "train",
                     "--config", root_ / "run.textproto", "--root", root_, "--log-seconds", "0",
                     "--set", absl::StrCat("folder=", folder)});
  }

  fs::path root_;
};

TEST_F(FullDiskTest, CostsCheckpointsNotStepsAndEndsWithTheCodeOfCheckpoints) {
  const std::string undisturbed = WeightsLine(Train("roomy").output);
  ASSERT_NE(undisturbed, "none");

  const ChildOutcome full = Train("disk/run");
  EXPECT_EQ(full.code, kCheckpointCode) << full.output;
  EXPECT_THAT(full.output, HasSubstr("saved step 3:"));
  EXPECT_THAT(full.output, HasSubstr("step 4 could not be saved (1 so far)"));
  EXPECT_THAT(full.output, HasSubstr("step 5 could not be saved (2 so far)"));
  EXPECT_THAT(full.output, HasSubstr("No space left on device"));
  for (int step = 1; step <= kSteps; ++step) {  // the record of one may not have fitted
    EXPECT_THAT(full.output, HasSubstr(absl::StrCat("step ", step, "  loss")));
  }

  const ChildOutcome older = RunChild({DEEPNET_PROGRAM, "checkpoint", "verify", Disk() + "/run"});
  EXPECT_EQ(older.code, 0) << older.output;
  for (const char* step :
       {"step-00000001: intact", "step-00000002: intact", "step-00000003: intact"}) {
    EXPECT_THAT(older.output, HasSubstr(step));
  }
  for (const auto& entry : fs::directory_iterator(Disk() + "/run")) {
    EXPECT_THAT(entry.path().string(), Not(HasSubstr("deepnet-")));
  }

  // There is room again: the same command goes on and gets to the same weights.
  ASSERT_EQ(mount("tmpfs", Disk().c_str(), "tmpfs", MS_REMOUNT, "size=256m"), 0);
  const ChildOutcome next = Train("disk/run");
  EXPECT_EQ(next.code, 0) << next.output;
  EXPECT_THAT(next.output, HasSubstr("continuing at step 3"));
  EXPECT_EQ(WeightsLine(next.output), undisturbed);
  EXPECT_EQ(ReadSteps(root_ / "disk/run/metrics.jsonl").size(), static_cast<size_t>(kSteps));
}

TEST_F(FullDiskTest, AFileThatMayNotGrowCostsItsCheckpointAndNotTheRun) {
  const ChildOutcome limited = Train("limited", "ulimit -f 4096");
  EXPECT_EQ(limited.code, kCheckpointCode) << limited.output;
  EXPECT_THAT(limited.output, HasSubstr("step 1 could not be saved (1 so far)"));
  EXPECT_THAT(limited.output, HasSubstr("File too large"));
  EXPECT_THAT(limited.output, HasSubstr(absl::StrCat("step ", kSteps, "  loss")));
}

}  // namespace
}  // namespace deepnet
