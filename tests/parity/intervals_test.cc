// Runs that validate, save and end by tokens, epochs and patience: at the same steps on every
// layout and after a stop.
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/logging.h"
#include "proto/report.pb.h"
#include "tests/parity/train_in_threads.h"
#include "tests/parity/training_runs.h"
#include "trainer/trainer.h"

namespace deepnet {
namespace {

using testing::ActingBuffer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class IntervalsTest : public testing::CorpusTest {
 protected:
  // A run that learns nothing: its rate is too small to change a float32, so that no validation
  // after the first is better.
  static RunSpec Run(const std::string& folder, const std::string& train) {
    RunSpec run;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
        R"(seed: 3
           model { encoder_layers: 1 decoder_layers: 1 d_model: 16 ffn_dim: 32 num_heads: 2
                   residual: DEEPNORM max_positions: 300 }
           data { folder: 'corpus' max_sentence_tokens: 150 global_microbatches: 2
                  microbatch { max_source_tokens: 160 max_target_tokens: 160 max_sentences: 8 } }
           optim { learning_rate: 1e-30 initial_learning_rate: 1e-30 warmup_steps: 1
                   virtual_replicas: 2 }
           compute { device: 'cpu' dtype: FLOAT32 threads_per_rank: 1 }
           train { steps: 16 checkpoint_every_steps: 1000 validate_sentences: 2
                   keep_checkpoints: 100 log_every_steps: 1 )" +
            train + "} decode { beam_size: 1 max_tokens: 5 }",
        &run));
    run.set_folder(folder);
    return WithDefaults(run);
  }
  static RunSpec On(int stages, int replicas, RunSpec run) {
    run.set_folder(run.folder() + "-" + std::to_string(stages) + "x" + std::to_string(replicas));
    run.mutable_parallel()->set_pipeline_parallel_size(stages);
    run.mutable_parallel()->set_data_parallel_size(replicas);
    return run;
  }
  static std::string MustTrain(const RunSpec& run) {
    return testing::MustTrainInThreads(run, {.root = root_.string()});
  }
  // Trains until the log says `text`, then saves and stops.
  static void StopAt(const std::string& text, const RunSpec& run) {
    std::atomic<int> request{0};
    ActingBuffer log(text, [&] { request = kStopRequest; });
    std::ostream stream(&log);
    Logger logger({.stream = &stream});
    const absl::Status status = Train(run, {.root = root_.string(), .request = &request}, logger);
    EXPECT_EQ(GetExitCode(status), ExitCode::kSavedRunAgain) << status << log.str();
  }
  static std::vector<int64_t> ValidatedSteps(const RunSpec& run) {
    std::ifstream file(root_ / run.folder() / "metrics.jsonl");
    std::vector<int64_t> steps;
    for (std::string line; std::getline(file, line);) {
      if (line.find(R"("kind":"validation")") == line.npos) continue;
      EvalRecord record;
      EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(line, &record).ok()) << line;
      steps.push_back(record.step());
    }
    return steps;
  }
  static std::vector<int64_t> SavedSteps(const RunSpec& run) {
    std::vector<int64_t> steps;
    for (int64_t step = 1; step <= 16; ++step) {
      std::ostringstream name;
      name << "step-" << std::string(step < 10 ? "0000000" : "000000") << step;
      if (std::filesystem::exists(root_ / run.folder() / name.str())) steps.push_back(step);
    }
    return steps;
  }
};

TEST_F(IntervalsTest, TheLogSaysWhenTheNextValidationAndTheEndAreExpected) {
  const RunSpec run = Run("next", "validate_every_steps: 4");
  const std::string log = MustTrain(run);
  std::vector<StepRecord> records;
  std::ifstream file(root_ / run.folder() / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    if (line.find(R"("kind":"train")") == line.npos) continue;
    ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(line, &records.emplace_back()).ok());
  }
  ASSERT_EQ(records.size(), 16u);
  const double pace = records[7].seconds() - records[6].seconds();
  EXPECT_NEAR(records[7].seconds_to_end(), 8 * pace, 1e-9);
  EXPECT_EQ(records[15].seconds_to_end(), 0.0);
  // After step 12 the next validation is the one at the end.
  const auto line_of = [&log](int step) {
    const size_t at = log.find("step " + std::to_string(step) + "  loss");
    return log.substr(at, log.find('\n', at) - at);
  };
  EXPECT_THAT(line_of(11), HasSubstr("validation in 0:0"));
  EXPECT_THAT(line_of(11), HasSubstr(" left"));
  for (const int step : {1, 12, 15, 16}) EXPECT_THAT(line_of(step), Not(HasSubstr("save in")));
  for (const int step : {12, 15, 16}) {
    EXPECT_THAT(line_of(step), Not(HasSubstr("validation in")));
  }
}

TEST_F(IntervalsTest, PatienceEndsARunAtTheSameStepOnEveryLayoutAndAfterAStop) {
  const RunSpec run = Run("patience", "validate_every_steps: 2 patience: 3");
  const std::string log = MustTrain(run);
  EXPECT_THAT(log, HasSubstr("no better BLEU or nll in 3 validations in a row; training ends"));
  EXPECT_THAT(log, HasSubstr("done: step 8,"));
  EXPECT_THAT(ValidatedSteps(run), ElementsAre(2, 4, 6, 8));
  for (const auto& [stages, replicas] : {std::pair(2, 1), std::pair(1, 2)}) {
    const RunSpec other = On(stages, replicas, run);
    EXPECT_EQ(testing::WeightsLine(MustTrain(other)), testing::WeightsLine(log));
    EXPECT_THAT(ValidatedSteps(other), ElementsAre(2, 4, 6, 8));
  }
  RunSpec stopped = run;
  stopped.set_folder("stopped");
  StopAt("step 4 ", stopped);
  EXPECT_THAT(MustTrain(stopped), HasSubstr("done: step 8,"));
  // It stays at its end, until it is told to be more patient.
  EXPECT_THAT(MustTrain(stopped), HasSubstr("done: step 8,"));
  stopped.mutable_train()->set_patience(4);
  EXPECT_THAT(MustTrain(stopped), HasSubstr("done: step 10,"));
  EXPECT_THAT(ValidatedSteps(stopped), ElementsAre(2, 4, 6, 8, 10));
}

TEST_F(IntervalsTest, TokensAndEpochsGiveTheSameStepsOnEveryLayoutAndAfterAStop) {
  const RunSpec run = Run("tokens",
                          "validate_every_steps: -1 validate_every_tokens: 600 "
                          "checkpoint_every_epochs: 0.1");
  MustTrain(run);
  const std::vector<int64_t> validated = ValidatedSteps(run), saved = SavedSteps(run);
  EXPECT_GT(validated.size(), 3u);
  EXPECT_LT(validated.size(), 15u);
  EXPECT_GT(saved.size(), 3u);
  EXPECT_LT(saved.size(), 15u);
  for (const auto& [stages, replicas] : {std::pair(2, 1), std::pair(1, 2)}) {
    const RunSpec other = On(stages, replicas, run);
    MustTrain(other);
    EXPECT_EQ(ValidatedSteps(other), validated);
    EXPECT_EQ(SavedSteps(other), saved);
  }
  RunSpec stopped = run;
  stopped.set_folder("tokens-stopped");
  StopAt("step 7 ", stopped);
  MustTrain(stopped);
  EXPECT_EQ(ValidatedSteps(stopped), validated);
}

}  // namespace
}  // namespace deepnet
