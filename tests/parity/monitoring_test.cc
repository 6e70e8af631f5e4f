// Runs as others watch them: with and without event files it is the same run, TensorBoard shows
// the figures of metrics.jsonl, those of a resumed run once, and Prometheus the newest.
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
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
#include "tests/support/event_reader.h"
#include "trainer/trainer.h"

namespace deepnet {
namespace {

using testing::ActingBuffer;
using ::testing::HasSubstr;
using ::testing::Not;

class MonitoringTest : public testing::CorpusTest {
 protected:
  static RunSpec Run(const std::string& folder) {
    RunSpec run;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
        R"(seed: 3
           model { encoder_layers: 1 decoder_layers: 1 d_model: 16 ffn_dim: 32 num_heads: 2
                   residual: DEEPNORM max_positions: 300 }
           data { folder: 'corpus' max_sentence_tokens: 150
                  microbatch { max_source_tokens: 160 max_target_tokens: 160 max_sentences: 8 } }
           optim { learning_rate: 1e-3 warmup_steps: 4 }
           compute { device: 'cpu' dtype: FLOAT32 threads_per_rank: 1 }
           train { steps: 8 checkpoint_every_steps: 2 validate_every_steps: 4
                   validate_sentences: 4 log_every_steps: 1 }
           decode { beam_size: 1 max_tokens: 5 })",
        &run));
    run.set_folder(folder);
    return WithDefaults(run);
  }
  static std::string MustTrain(const RunSpec& run) {
    return testing::MustTrainInThreads(run, {.root = root_.string()});
  }
  static testing::ShownFigures Shown(const RunSpec& run) {
    return testing::ReadShownFigures(root_ / run.folder() / "tensorboard");
  }
  // Records of one kind in metrics.jsonl.
  template <typename Record>
  static std::vector<Record> Written(const RunSpec& run, const std::string& kind) {
    std::ifstream file(root_ / run.folder() / "metrics.jsonl");
    std::vector<Record> records;
    for (std::string line; std::getline(file, line);) {
      if (line.find("\"kind\":\"" + kind + "\"") == line.npos) continue;
      EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(line, &records.emplace_back()).ok());
    }
    return records;
  }
};

TEST_F(MonitoringTest, TensorBoardShowsTheFiguresOfTheRecordsAndChangesNoWeight) {
  const RunSpec with = Run("with");
  RunSpec without = Run("without");
  without.mutable_train()->set_tensorboard(false);
  EXPECT_EQ(testing::WeightsLine(MustTrain(with)), testing::WeightsLine(MustTrain(without)));
  EXPECT_FALSE(std::filesystem::exists(root_ / "without" / "tensorboard"));

  const testing::ShownFigures shown = Shown(with);
  const auto steps = Written<StepRecord>(with, "train");
  ASSERT_EQ(steps.size(), 8u);
  ASSERT_EQ(shown.at("train/loss").size(), 8u);
  for (const StepRecord& record : steps) {
    EXPECT_EQ(shown.at("train/loss").at(record.step()), static_cast<float>(record.loss()));
    EXPECT_EQ(shown.at("train/learning_rate").at(record.step()),
              static_cast<float>(record.learning_rate()));
  }
  const auto validations = Written<EvalRecord>(with, "validation");
  ASSERT_EQ(validations.size(), 2u);
  for (const EvalRecord& record : validations) {
    EXPECT_EQ(shown.at("validation/nll").at(record.step()), static_cast<float>(record.nll()));
    for (const DirectionScore& score : record.directions()) {
      EXPECT_EQ(shown.at("nll/" + score.direction()).at(record.step()),
                static_cast<float>(score.nll()));
    }
  }
  EXPECT_EQ(shown.at("save/bytes").size(), Written<SaveRecord>(with, "save").size());
}

TEST_F(MonitoringTest, AResumedRunShowsEachStepOnce) {
  const RunSpec whole = Run("whole"), stopped = Run("stopped");
  MustTrain(whole);
  std::atomic<int> request{0};
  ActingBuffer log("step 5 ", [&] { request = kStopRequest; });
  std::ostream stream(&log);
  Logger logger({.stream = &stream});
  const absl::Status status = Train(stopped, {.root = root_.string(), .request = &request}, logger);
  ASSERT_EQ(GetExitCode(status), ExitCode::kSavedRunAgain) << status << log.str();
  // A run that is killed has shown steps that its last checkpoint does not have.
  std::filesystem::rename(root_ / "stopped" / "tensorboard", root_ / "kept");
  std::filesystem::copy(root_ / "whole" / "tensorboard", root_ / "stopped" / "tensorboard");
  MustTrain(stopped);
  for (const char* const tag : {"train/loss", "train/gradient_norm", "validation/nll"}) {
    EXPECT_EQ(Shown(stopped).at(tag), Shown(whole).at(tag));
  }
}

TEST_F(MonitoringTest, AFolderThatCannotBeMadeIsAWarning) {
  const RunSpec run = Run("blocked");
  std::filesystem::create_directories(root_ / "blocked");
  std::ofstream(root_ / "blocked" / "tensorboard") << "a file";
  const std::string log = MustTrain(run);
  EXPECT_THAT(log, HasSubstr("warning: "));
  EXPECT_THAT(log, HasSubstr("blocked/tensorboard"));
  EXPECT_THAT(log, HasSubstr("done: step 8,"));
}

TEST_F(MonitoringTest, APrometheusFileHasTheLastFiguresAndIsMissedOnlyOnce) {
  RunSpec run = Run("prometheus");
  run.set_name("a run");
  run.mutable_train()->set_prometheus_file("figures.prom");
  EXPECT_THAT(MustTrain(run), Not(HasSubstr("prometheus_file")));
  std::stringstream text;
  text << std::ifstream(root_ / "figures.prom").rdbuf();
  for (const char* const line :
       {"deepnet_steps_total{run=\"a run\"} 8\n", "deepnet_saved_steps{run=\"a run\"} 8\n",
        "deepnet_validated_steps{run=\"a run\"} 8\n"}) {
    EXPECT_THAT(text.str(), HasSubstr(line));
  }
  run.mutable_train()->set_prometheus_file("no/such/folder.prom");
  run.set_folder("unseen");
  const std::string log = MustTrain(run);
  const size_t first = log.find("train.prometheus_file: ");
  EXPECT_NE(first, log.npos) << log;
  EXPECT_EQ(log.find("train.prometheus_file: ", first + 1), log.npos) << log;
  EXPECT_THAT(log, HasSubstr("done: step 8,"));
}

}  // namespace
}  // namespace deepnet
