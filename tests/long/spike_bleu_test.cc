// Measures what a spoiled shard costs a model, and what is left of that with train.spike: the same
// run, for three seeds, on a clean corpus, on one whose pairs of forty steps are spoiled, and there
// with ROLL_BACK. Prints a table (docs/design/faults.md). The corpus is larger than all steps draw:
// no spoiled pair was seen in an earlier epoch, where a model would get to know it.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

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

constexpr int kPairs = 60000, kSteps = 600, kFirstPoisoned = 540, kLastPoisoned = 579;
constexpr int kSeeds = 3;
constexpr int kLeftOut = 54;  // from ten steps before the spoiled ones, in windows of 21 steps

struct Outcome {
  double bleu = 0.0, nll = 0.0;  // of the last validation
  int spikes = 0;
  int64_t left_out = 0;  // steps, from the first to the last
  std::string weights;
};

double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

class SpikeBleu : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::path(::testing::TempDir()) / "deepnet_spike_bleu";
    std::filesystem::remove_all(root_);
    ASSERT_TRUE(testing::MakeMadeUpCorpus(root_, "clean", kPairs).ok());
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  static RunSpec Run(const std::string& folder, const std::string& corpus, uint64_t seed) {
    RunSpec run;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
        R"(model { encoder_layers: 3 decoder_layers: 3 d_model: 64 ffn_dim: 256 num_heads: 4
                   residual: DEEPNORM max_positions: 200 }
           data { max_sentence_tokens: 60 global_microbatches: 2 directions: 'en-xx'
                  microbatch { max_target_tokens: 250 max_sentences: 32 } }
           optim { learning_rate: 1.5e-3 warmup_steps: 100 clip_norm: 1 }
           compute { device: 'cpu' dtype: FLOAT32 threads_per_rank: 1 }
           train { checkpoint_every_steps: 50 validate_every_steps: -1 validate_sentences: 100 }
           decode { beam_size: 4 max_tokens: 60 })",
        &run));
    run.set_seed(seed);
    run.set_folder(folder + std::to_string(seed));
    run.mutable_data()->set_folder(corpus);
    run.mutable_train()->set_steps(kSteps);
    return WithDefaults(run);
  }
  static RunSpec WithSpike(RunSpec run, SpikeSpec::Action action) {
    run.mutable_train()->mutable_spike()->set_action(action);
    run.mutable_train()->mutable_spike()->set_deviations(6);
    return WithDefaults(run);
  }

  // Spoils a copy of the corpus, whose order of pairs is that of the seed.
  std::string Poisoned(uint64_t seed) {
    const std::string folder = "poisoned" + std::to_string(seed);
    std::filesystem::copy(root_ / "clean", root_ / folder,
                          std::filesystem::copy_options::recursive);
    const RunSpec run = Run("", folder, seed);
    const absl::Status poisoned = testing::PoisonSteps((root_ / folder).string(), run.data(), seed,
                                                       kFirstPoisoned, kLastPoisoned);
    EXPECT_TRUE(poisoned.ok()) << poisoned;
    return folder;
  }

  Outcome Train(const RunSpec& run) {
    std::ostringstream log;
    Logger logger({.stream = &log});
    const absl::Status status = deepnet::Train(run, {.root = root_.string()}, logger);
    EXPECT_TRUE(status.ok()) << status << log.str();
    Outcome outcome{.weights = testing::WeightsLine(log.str())};
    int64_t first_left_out = 0;
    std::ifstream file(root_ / run.folder() / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      if (line.find(R"("kind":"spike")") != line.npos) {
        SpikeRecord spike;
        EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(line, &spike).ok()) << line;
        if (++outcome.spikes == 1) first_left_out = spike.first_left_out();
        outcome.left_out = spike.last_left_out() - first_left_out + 1;
      }
      if (line.find(R"("kind":"validation")") == line.npos) continue;
      EvalRecord last;
      EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(line, &last).ok()) << line;
      outcome.bleu = last.bleu();
      outcome.nll = last.nll();
    }
    std::printf("%-12s BLEU %5.2f  nll %.4f  spikes %d  %s\n", run.folder().c_str(), outcome.bleu,
                outcome.nll, outcome.spikes, outcome.weights.c_str());
    return outcome;
  }

  std::filesystem::path root_;
};

TEST_F(SpikeBleu, ARunThatGoesBackEndsAsGoodAsOnTheCleanCorpus) {
  std::vector<double> clean, off, back;  // BLEU
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const std::string poisoned = Poisoned(seed);
    const Outcome plain = Train(Run("clean", "clean", seed));
    const Outcome spoiled = Train(Run("off", poisoned, seed));
    RunSpec back_run = WithSpike(Run("back", poisoned, seed), SpikeSpec::ROLL_BACK);
    back_run.mutable_train()->set_steps(kSteps + kLeftOut);  // as many updates as the others
    const Outcome rolled = Train(back_run);
    EXPECT_GE(rolled.left_out, kLeftOut);
    clean.push_back(plain.bleu);
    off.push_back(spoiled.bleu);
    back.push_back(rolled.bleu);
  }
  const auto [least, most] = std::minmax_element(clean.begin(), clean.end());
  const double noise = *most - *least;  // what another seed changes
  std::printf("BLEU: clean %.2f, without train.spike %.2f, ROLL_BACK %.2f; noise %.2f\n",
              Mean(clean), Mean(off), Mean(back), noise);
  EXPECT_LE(Mean(clean) - Mean(back), noise);
  EXPECT_LT(Mean(off), Mean(back)) << "else there would be nothing to repair";
}

}  // namespace
}  // namespace deepnet
