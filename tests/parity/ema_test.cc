// The exponential moving average of the weights in whole training runs: to the bit what a plain
// loop makes of the weights of all steps, on every layout and after a stop; and the run has the
// weights of one without it.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/logging.h"
#include "tests/parity/train_in_threads.h"
#include "tests/parity/training_runs.h"
#include "tests/support/load_model.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/tools/rewrite.h"
#include "trainer/trainer.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;

constexpr int kSteps = 8;
constexpr double kDecay = 0.9;

using Tensors = std::map<std::string, std::vector<float>>;  // by parameter

class EmaTest : public testing::CorpusTest {
 protected:
  static RunSpec Run(const std::string& folder, double decay, int steps = kSteps) {
    RunSpec run;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
        R"(seed: 3
           model { encoder_layers: 2 decoder_layers: 2 d_model: 16 ffn_dim: 32 num_heads: 2
                   residual: DEEPNORM max_positions: 300 dropout: 0.1 }
           data { folder: 'corpus' max_sentence_tokens: 150 global_microbatches: 4
                  microbatch { max_source_tokens: 160 max_target_tokens: 160 max_sentences: 8 } }
           optim { learning_rate: 1e-2 warmup_steps: 2 virtual_replicas: 2 weight_decay: 0.01 }
           compute { device: 'cpu' dtype: FLOAT32 threads_per_rank: 1 }
           train { checkpoint_every_steps: 1 keep_checkpoints: 100 validate_every_steps: -1
                   validate_sentences: 2 }
           decode { beam_size: 1 max_tokens: 5 })",
        &run));
    run.set_folder(folder);
    run.mutable_optim()->set_ema_decay(decay);
    run.mutable_train()->set_steps(steps);
    return WithDefaults(run);
  }
  static RunSpec On(int stages, int replicas, RunSpec run) {
    run.mutable_parallel()->set_pipeline_parallel_size(stages);
    run.mutable_parallel()->set_data_parallel_size(replicas);
    return run;
  }
  static std::string MustTrain(const RunSpec& run) {
    return testing::WeightsLine(testing::MustTrainInThreads(run, {.root = root_.string()}));
  }
  // A run that is stopped before its first step saves the weights it begins with.
  static void SaveStart(const RunSpec& run) {
    std::atomic<int> stop{kStopRequest};
    std::ostringstream log;
    Logger logger({.stream = &log});
    const absl::Status status = Train(run, {.root = root_.string(), .request = &stop}, logger);
    EXPECT_EQ(GetExitCode(status), ExitCode::kSavedRunAgain) << status << log.str();
  }

  // Returns the tensors of one kind in a checkpoint.
  static Tensors Read(const std::filesystem::path& folder, const std::string& prefix) {
    const auto fs = MakePosixFileSystem();
    const auto manifest = ReadManifest(*fs, folder.string());
    EXPECT_TRUE(manifest.ok()) << manifest.status();
    Tensors tensors;
    std::map<std::string, MutableNamedTensor> views;
    for (const ShardFile& file : manifest->files()) {
      for (const TensorExtent& extent : file.extents()) {
        if (!absl::StartsWith(extent.name(), prefix)) continue;
        size_t elements = 1;
        for (const int64_t size : extent.shape()) elements *= static_cast<size_t>(size);
        std::vector<float>& data = tensors[extent.name().substr(prefix.size())];
        data.resize(elements);
        views[extent.name()] = {
            extent.name(), {extent.shape().begin(), extent.shape().end()}, data};
      }
    }
    std::vector<MutableNamedTensor> all;
    for (auto& [name, view] : views) all.push_back(std::move(view));
    const absl::Status read = ReadTensors(*fs, folder.string(), *manifest, all);
    EXPECT_TRUE(read.ok()) << read;
    return tensors;
  }
  static Tensors Read(const RunSpec& run, int step, const std::string& prefix) {
    return Read(root_ / run.folder() / CheckpointName(step), prefix);
  }

  // The slow twin: from the weights of `first`, over those of every step to `last`.
  static Tensors PlainAverage(const RunSpec& run, int first, int last) {
    const float decay = kDecay, rest = 1.0 - kDecay;
    Tensors average = Read(run, first, kWeightPrefix);
    for (int step = first + 1; step <= last; ++step) {
      for (const auto& [name, weights] : Read(run, step, kWeightPrefix)) {
        std::vector<float>& values = average[name];
        for (size_t i = 0; i < weights.size(); ++i) {
          const float kept = decay * values[i], added = rest * weights[i];
          values[i] = kept + added;
        }
      }
    }
    return average;
  }
};

TEST_F(EmaTest, HasTheBitsOfAPlainLoopOverSavedWeightsOnEveryLayout) {
  const std::string without = MustTrain(Run("without", 0.0));
  EXPECT_TRUE(Read(Run("without", 0.0), kSteps, kEmaPrefix).empty());
  const RunSpec alone = Run("alone", kDecay);
  SaveStart(alone);
  EXPECT_EQ(MustTrain(alone), without);
  const Tensors average = PlainAverage(alone, 0, kSteps);
  EXPECT_NE(average, Read(alone, kSteps, kWeightPrefix));
  EXPECT_EQ(Read(alone, kSteps, kEmaPrefix), average);
  for (const auto& [stages, replicas] : {std::pair(2, 1), std::pair(1, 2), std::pair(2, 2)}) {
    SCOPED_TRACE(std::to_string(stages) + "x" + std::to_string(replicas));
    const RunSpec run =
        On(stages, replicas, Run(std::to_string(stages) + "x" + std::to_string(replicas), kDecay));
    EXPECT_EQ(MustTrain(run), without);
    EXPECT_EQ(Read(run, kSteps, kEmaPrefix), average);
  }
  // A run that goes on with other layouts.
  MustTrain(On(2, 1, Run("resumed", kDecay, 3)));
  MustTrain(On(1, 2, Run("resumed", kDecay, 5)));
  MustTrain(Run("resumed", kDecay));
  EXPECT_EQ(Read(Run("resumed", 0.0), kSteps, kEmaPrefix), average);
}

TEST_F(EmaTest, ARunThatTurnsItOnLaterBeginsWithTheWeightsOfThatStep) {
  MustTrain(Run("later", 0.0, 3));
  EXPECT_TRUE(Read(Run("later", 0.0), 3, kEmaPrefix).empty());
  MustTrain(On(1, 2, Run("later", kDecay, 6)));
  EXPECT_EQ(Read(Run("later", kDecay), 6, kEmaPrefix), PlainAverage(Run("later", kDecay), 3, 6));
  MustTrain(Run("later", 0.0, 7));
  EXPECT_TRUE(Read(Run("later", 0.0), 7, kEmaPrefix).empty());
}

TEST_F(EmaTest, ExtractedItIsACheckpointLikeAnyOther) {
  RunSpec run = Run("whole", kDecay, 3);
  run.mutable_compute()->set_dtype(BFLOAT16);  // of the products alone
  MustTrain(run);
  const auto fs = MakePosixFileSystem();
  const std::vector<std::string> source = {(root_ / "whole" / CheckpointName(3)).string()};
  const std::string output = (root_ / "extracted").string();
  const auto folder = AverageCheckpoints(*fs, source, output, {}, kEmaPrefix);
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ(Read(*folder, kWeightPrefix), Read(run, 3, kEmaPrefix));
  EXPECT_TRUE(ReadManifest(*fs, *folder)->averaged(0).ema());
  EXPECT_TRUE(LoadModel(output, ComputeSpec()).ok());

  MustTrain(Run("plain", 0.0, 3));
  const std::vector<std::string> plain = {(root_ / "plain" / CheckpointName(3)).string()};
  const absl::Status refused =
      AverageCheckpoints(*fs, plain, output + "2", {}, kEmaPrefix).status();
  EXPECT_EQ(GetExitCode(refused), ExitCode::kCheckpoint);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("optim.ema_decay was off"));
}

}  // namespace
}  // namespace deepnet
