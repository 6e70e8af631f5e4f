// Jobs under mpirun that save with one layout and go on with another, on as many other ranks: one
// of each kind of schedule. "Same" is every bit of the losses and norms in metrics.jsonl and the
// hash of the weights that a run ends its log with. The same for every pair, with threads as ranks:
// tests/parity/spread_train_test.cc.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/parity/training_runs.h"
#include "tests/support/child_process.h"

namespace deepnet {
namespace {

using deepnet::testing::ChildOutcome;
using deepnet::testing::MakeCorpus;
using deepnet::testing::ReadSteps;
using deepnet::testing::RunChild;
using deepnet::testing::StepFigures;
using deepnet::testing::WeightsLine;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

constexpr int kSaved = 3, kEnd = 8;  // steps

constexpr char kRun[] = R"(# proto-file: proto/run.proto
# proto-message: deepnet.RunSpec
seed: 3
model { encoder_layers: 2 decoder_layers: 3 width: 32 ffn_width: 64 heads: 2 residual: DEEPNORM
        max_positions: 300 dropout: 0.1 attention_dropout: 0.1 activation_dropout: 0.1 }
data { folder: "corpus" max_tokens: 150 microbatches_per_step: 4
       microbatch { source_tokens: 300 target_tokens: 300 sentences: 16 } }
optim { rate: 2e-3 warmup_steps: 4 clip_norm: 1 virtual_replicas: 2 }
compute { device: "cpu" dtype: FLOAT32 threads_per_rank: 1 }
train { steps: 8 validate_every_steps: -1 log_every_steps: 1 checkpoint_every_steps: 1000 }
)";

struct Layout {
  int stages = 1, replicas = 1;
  std::string schedule = "";  // empty: the planner's choice

  int ranks() const { return stages * replicas; }
  std::string ToText() const { return absl::StrCat(stages, " x ", replicas, " ", schedule); }
};

const Layout kLayouts[] = {{1, 1, ""},     {2, 1, "gpipe"}, {2, 1, "interleaved"}, {1, 2, ""},
                           {2, 2, "1f1b"}, {4, 1, "zb-h1"}, {2, 2, "zb-v"}};

class LayoutChangeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) / absl::StrCat("deepnet_layout_change_", getpid());
    fs::create_directories(root_);
    const absl::Status made = MakeCorpus(root_, "corpus", {"de", "fr"}, 300);
    ASSERT_TRUE(made.ok()) << made;
    std::ofstream(root_ / "run.textproto") << kRun;
  }
  void TearDown() override { fs::remove_all(root_); }

  // What all ranks said.
  std::string Train(const std::string& folder, int steps, const Layout& layout) const {
    std::vector<std::string> words = {DEEPNET_PROGRAM,         "train",  "--config",
                                      root_ / "run.textproto", "--root", root_,
                                      "--log-seconds",         "0"};
    const auto set = [&words](const std::string& field, const auto& value) {
      words.insert(words.end(), {"--set", absl::StrCat(field, "=", value)});
    };
    set("folder", folder);
    set("train.steps", steps);
    set("parallel.pipeline_parallel_size", layout.stages);
    set("parallel.data_parallel_size", layout.replicas);
    if (!layout.schedule.empty()) set("parallel.schedule", layout.schedule);
    if (layout.ranks() > 1) {
      words.insert(words.begin(), {"tests/mpi/mpirun.sh", absl::StrCat(layout.ranks())});
    }
    const ChildOutcome outcome = RunChild(words);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return outcome.output;
  }

  std::vector<StepFigures> Steps(const std::string& folder) const {
    return ReadSteps(root_ / folder / "metrics.jsonl");
  }

  fs::path root_;
};

TEST_F(LayoutChangeTest, ARunGoesOnBitForBitOnOtherRanksThanItWasSavedBy) {
  const std::string whole = Train("whole", kEnd, {});
  ASSERT_EQ(Steps("whole").size(), static_cast<size_t>(kEnd));
  ASSERT_NE(WeightsLine(whole), "none");
  constexpr size_t kCount = std::size(kLayouts);
  for (size_t i = 0; i < kCount; ++i) {
    const Layout &saves = kLayouts[i], &goes_on = kLayouts[(i + 3) % kCount];
    SCOPED_TRACE(saves.ToText() + ", then " + goes_on.ToText());
    const std::string folder = absl::StrCat("run-", i);
    Train(folder, kSaved, saves);
    const std::string log = Train(folder, kEnd, goes_on);
    EXPECT_THAT(log, HasSubstr(absl::StrCat("continuing at step ", kSaved)));
    EXPECT_EQ(Steps(folder), Steps("whole"));
    EXPECT_EQ(WeightsLine(log), WeightsLine(whole));
  }
}

}  // namespace
}  // namespace deepnet
