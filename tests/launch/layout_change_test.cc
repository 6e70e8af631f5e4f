// Jobs under mpirun that save with one layout and go on with another, on as many other ranks: one
// of each kind of schedule, placement, recomputation and, where the test is root, number of hosts.
// "Same" is every bit of the losses and norms in metrics.jsonl and the hash of the weights that a
// run ends its log with. Every kind with threads as ranks: tests/parity/spread_train_test.cc.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <span>
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
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

namespace fs = std::filesystem;

constexpr int kLink = 5;  // steps that a layout takes before the next one goes on

constexpr char kRun[] = R"(# proto-file: proto/run.proto
# proto-message: deepnet.RunSpec
seed: 3
model { encoder_layers: 2 decoder_layers: 3 d_model: 32 ffn_dim: 64 num_heads: 2 residual: DEEPNORM
        max_positions: 300 dropout: 0.1 attention_dropout: 0.1 activation_dropout: 0.1 }
data { folder: "corpus" max_sentence_tokens: 150 global_microbatches: 4
       microbatch { max_source_tokens: 300 max_target_tokens: 300 max_sentences: 16 } }
optim { learning_rate: 2e-3 warmup_steps: 4 clip_norm: 1 virtual_replicas: 2 }
compute { device: "cpu" dtype: FLOAT32 threads_per_rank: 1 }
train { validate_every_steps: -1 validate_sentences: 1 log_every_steps: 1
        checkpoint_every_steps: 1000 }
decode { beam_size: 1 max_tokens: 2 }
)";

struct Layout {
  int stages = 1, replicas = 1;
  std::string schedule = "";   // empty: the planner's choice
  std::string recompute = "";  // likewise
  int hosts = 1;               // a rank on each, if more than one

  int ranks() const { return stages * replicas; }
  std::string ToText() const {
    return absl::StrCat(stages, " x ", replicas, " ", schedule, " ", recompute, " on ", hosts);
  }
};

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

  // Everything that the ranks printed.
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
    if (!layout.recompute.empty()) set("parallel.recompute", layout.recompute);
    if (layout.hosts > 1) {
      words.insert(words.begin(), {"tests/mpi/testhosts.sh", "with", absl::StrCat(layout.hosts),
                                   "-n", absl::StrCat(layout.ranks())});
    } else if (layout.ranks() > 1) {
      words.insert(words.begin(), {"tests/mpi/mpirun.sh", absl::StrCat(layout.ranks())});
    }
    const ChildOutcome outcome = RunChild(words);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return outcome.output;
  }

  std::vector<StepFigures> Steps(const std::string& folder) const {
    return ReadSteps(root_ / folder / "metrics.jsonl");
  }

  // Each layout goes on with what the one before it has saved: all together are the run that one
  // rank does at once.
  void ExpectOneRun(std::span<const Layout> layouts) const {
    const int end = kLink * static_cast<int>(layouts.size());
    const std::string whole = Train("whole", end, {});
    const std::vector<StepFigures> expected = Steps("whole");
    ASSERT_EQ(expected.size(), static_cast<size_t>(end));
    ASSERT_NE(WeightsLine(whole), "none");
    std::string log;
    for (size_t i = 0; i < layouts.size(); ++i) {
      SCOPED_TRACE(absl::StrCat("link ", i, ": ", layouts[i].ToText()));
      const int begin = kLink * static_cast<int>(i);
      log = Train("links", begin + kLink, layouts[i]);
      if (i > 0) {
        ASSERT_THAT(log, HasSubstr(absl::StrCat("continuing at step ", begin)));
      }
      ASSERT_EQ(Steps("links"),
                std::vector<StepFigures>(expected.begin(), expected.begin() + begin + kLink));
    }
    EXPECT_EQ(WeightsLine(log), WeightsLine(whole));
  }

  fs::path root_;
};

TEST_F(LayoutChangeTest, ARunGoesOnBitForBitOnOtherRanksThanItWasSavedBy) {
  const Layout layouts[] = {{1, 1, "", "FULL"},
                            {2, 1, "gpipe"},
                            {4, 1, "zb-h1"},
                            {1, 2, "", "SELECTIVE_FFN"},
                            {2, 2, "zb-v", "NONE"},
                            {2, 1, "interleaved"},
                            {2, 2, "1f1b", "SELECTIVE_GEMM"},
                            {1, 1}};
  ExpectOneRun(layouts);
}

// README.md promises one hash of this command.
TEST_F(LayoutChangeTest, TheQuickStartGivesOneHashOnAnyNumberOfRanks) {
  std::set<std::string> hashes;
  for (const std::string ranks : {"1", "2", "4, 2 stages"}) {
    std::vector<std::string> words = {
        DEEPNET_PROGRAM, "train",    "--root",
        root_,           "--config", fs::absolute("launch/recipes/quickstart.textproto")};
    for (const std::string& setting :
         {absl::StrCat("folder=on ", ranks), std::string("data.folder=corpus"),
          std::string("compute.device=cpu"), std::string("compute.dtype=FLOAT32"),
          std::string("model.encoder_layers=2"), std::string("model.decoder_layers=2"),
          std::string("train.steps=2"), std::string("train.validate_every_steps=0")}) {
      words.insert(words.end(), {"--set", setting});
    }
    if (ranks.size() > 1) {
      words.insert(words.end(), {"--set", "parallel.pipeline_parallel_size=2"});
    }
    if (ranks != "1") words.insert(words.begin(), {"tests/mpi/mpirun.sh", ranks.substr(0, 1)});
    const ChildOutcome outcome = RunChild(words);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    hashes.insert(WeightsLine(outcome.output));
  }
  EXPECT_THAT(hashes, ElementsAre(StartsWith("weights ")));
}

// Pretend hosts, which need root.
TEST_F(LayoutChangeTest, ARunGoesOnBitForBitOnOtherHostsThanItWasSavedBy) {
  const Layout one = {2, 1, "1f1b"}, two = {2, 1, "1f1b", "", 2}, four = {2, 2, "1f1b", "", 4};
  const Layout layouts[] = {one, two, four, one};
  ExpectOneRun(layouts);
}

}  // namespace
}  // namespace deepnet
