// What a spoiled shard costs a model, and what is left of that with train.spike: the same run on a
// clean corpus, on one whose pairs of some steps are spoiled, and there with ROLL_BACK. Prints a
// table (docs/benchmarks).
//
// Environment: DEEPNET_SPIKE_CORPUS, a prepared corpus to take instead of a made-up one, with
// DEEPNET_SPIKE_DIRECTION ("en-es"), DEEPNET_SPIKE_STEPS and DEEPNET_SPIKE_POISON (first step, of
// forty).
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <google/protobuf/text_format.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "parallel/base/logging.h"
#include "proto/report.pb.h"
#include "tests/parity/poisoned_corpus.h"
#include "tests/parity/training_runs.h"
#include "trainer/trainer.h"

namespace deepnet {
namespace {

constexpr int kPoisonedSteps = 40;

std::string Setting(const char* name, const std::string& otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? text : otherwise;
}

class SpikeBleu : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::path(::testing::TempDir()) / "deepnet_spike_bleu";
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
    const std::string given = Setting("DEEPNET_SPIKE_CORPUS", "");
    if (given.empty()) {
      ASSERT_TRUE(testing::MakeMadeUpCorpus(root_, "clean", 15000).ok());
    } else {
      std::filesystem::copy(given, root_ / "clean", std::filesystem::copy_options::recursive);
    }
    std::filesystem::copy(root_ / "clean", root_ / "poisoned",
                          std::filesystem::copy_options::recursive);
    const RunSpec run = Run("", "poisoned");
    const int64_t first = std::stoll(Setting("DEEPNET_SPIKE_POISON", "300"));
    const absl::Status poisoned = testing::PoisonSteps(
        (root_ / "poisoned").string(), run.data(), run.seed(), first, first + kPoisonedSteps - 1);
    ASSERT_TRUE(poisoned.ok()) << poisoned;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  static RunSpec Run(const std::string& folder, const std::string& corpus) {
    RunSpec run;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
        R"(seed: 3
           model { encoder_layers: 3 decoder_layers: 3 d_model: 64 ffn_dim: 256 num_heads: 4
                   residual: DEEPNORM max_positions: 200 }
           data { max_sentence_tokens: 60 global_microbatches: 2
                  microbatch { max_target_tokens: 250 max_sentences: 32 } }
           optim { learning_rate: 3e-3 warmup_steps: 100 clip_norm: 1 }
           compute { device: 'cpu' dtype: FLOAT32 threads_per_rank: 1 }
           train { checkpoint_every_steps: 50 validate_every_steps: -1 validate_sentences: 100 }
           decode { beam_size: 4 max_tokens: 60 })",
        &run));
    run.mutable_data()->add_directions(Setting("DEEPNET_SPIKE_DIRECTION", "en-xx"));
    run.set_folder(folder);
    run.mutable_data()->set_folder(corpus);
    run.mutable_train()->set_steps(std::stoll(Setting("DEEPNET_SPIKE_STEPS", "400")));
    return WithDefaults(run);
  }

  // Trains to the end and returns the last validation.
  EvalRecord Train(const RunSpec& run) {
    std::ostringstream log;
    Logger logger({.stream = &log});
    const absl::Status status = deepnet::Train(run, {.root = root_.string()}, logger);
    EXPECT_TRUE(status.ok()) << status << log.str();
    EvalRecord last;
    std::ifstream file(root_ / run.folder() / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      if (line.find(R"("kind":"spike")") != line.npos) std::printf("%s\n", line.c_str());
      if (line.find(R"("kind":"validation")") == line.npos) continue;
      EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(line, &last).ok()) << line;
    }
    std::printf("%-10s BLEU %.2f  nll %.3f  %s\n", run.folder().c_str(), last.bleu(), last.nll(),
                testing::WeightsLine(log.str()).c_str());
    return last;
  }

  std::filesystem::path root_;
};

TEST_F(SpikeBleu, ARunThatGoesBackEndsAsGoodAsOnTheCleanCorpus) {
  const EvalRecord clean = Train(Run("clean-run", "clean"));
  Train(Run("off", "poisoned"));
  RunSpec run = Run("roll-back", "poisoned");
  SpikeSpec& spike = *run.mutable_train()->mutable_spike();
  spike.set_action(SpikeSpec::ROLL_BACK);
  spike.set_deviations(6);
  const EvalRecord back = Train(WithDefaults(run));
  // Runs of so few steps that see other pairs differ by three BLEU.
  EXPECT_NEAR(back.bleu(), clean.bleu(), 3);
  EXPECT_NEAR(back.nll(), clean.nll(), 0.05);
}

}  // namespace
}  // namespace deepnet
