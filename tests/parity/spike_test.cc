// Whole runs with spikes, which a spoiled shard makes: what is done about them is the same on every
// layout and after any interruption, and a run that leaves the spoiled steps out is to the bit the
// run that never saw them. "Same" is the hash of the weights that `train` prints at its end.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/logging.h"
#include "proto/report.pb.h"
#include "tests/parity/poisoned_corpus.h"
#include "tests/parity/train_in_threads.h"
#include "tests/parity/training_runs.h"
#include "tests/support/event_reader.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/trainer.h"

namespace deepnet {
namespace {

using testing::ActingBuffer;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::StepFigures;
using testing::WeightsLine;

constexpr int kSteps = 48;
constexpr int kPoisoned = 31;  // and the step behind it

struct Outcome {
  absl::Status status;
  std::string log;
};

class SpikeTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    root_ = std::filesystem::path(::testing::TempDir()) /
            absl::StrCat("deepnet_parity_spike_", getpid());
    std::filesystem::remove_all(root_);
    ASSERT_TRUE(testing::MakeMadeUpCorpus(root_, "clean", 12000).ok());
    std::filesystem::copy(root_ / "clean", root_ / "poisoned",
                          std::filesystem::copy_options::recursive);
    const RunSpec run = Run("");
    const absl::Status poisoned = testing::PoisonSteps((root_ / "poisoned").string(), run.data(),
                                                       run.seed(), kPoisoned, kPoisoned + 1);
    ASSERT_TRUE(poisoned.ok()) << poisoned;
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(root_); }

  static RunSpec Run(const std::string& folder, const std::string& corpus = "poisoned") {
    RunSpec run;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
        R"(seed: 3
           model { encoder_layers: 2 decoder_layers: 2 d_model: 32 ffn_dim: 64 num_heads: 2
                   residual: DEEPNORM max_positions: 80 dropout: 0.1 }
           data { directions: 'en-xx' max_sentence_tokens: 60 global_microbatches: 2
                  microbatch { max_source_tokens: 100 max_target_tokens: 100 max_sentences: 8 } }
           optim { learning_rate: 5e-3 warmup_steps: 8 clip_norm: 1 virtual_replicas: 2 }
           compute { device: 'cpu' dtype: FLOAT32 threads_per_rank: 1 }
           train { checkpoint_every_steps: 4 log_every_steps: 1 keep_checkpoints: 1 })",
        &run));
    run.set_folder(folder);
    run.mutable_data()->set_folder(corpus);
    run.mutable_train()->set_steps(kSteps);
    run = WithDefaults(run);
    run.mutable_train()->set_validate_every_steps(0);
    return run;
  }
  static RunSpec RunWith(const std::string& folder, SpikeSpec::Action action) {
    RunSpec run = Run(folder);
    SpikeSpec& spike = *run.mutable_train()->mutable_spike();
    spike.set_action(action);
    spike.set_deviations(6);
    spike.set_window_steps(16);
    spike.set_steps_before(6);
    spike.set_steps_after(2);
    run = WithDefaults(run);
    run.mutable_train()->set_validate_every_steps(0);
    return run;
  }

  // Starts `run`; `action` is called when the log says `text`.
  static Outcome Start(const RunSpec& run, const std::string& text = "",
                       std::function<void()> action = nullptr,
                       std::atomic<int>* request = nullptr) {
    ActingBuffer log(text, std::move(action));
    std::ostream stream(&log);
    Logger logger({.stream = &stream});
    const absl::Status status = Train(run, {.root = root_.string(), .request = request}, logger);
    return {status, log.str()};
  }
  static std::string MustTrain(const RunSpec& run) {
    const Outcome outcome = Start(run);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status << outcome.log;
    return WeightsLine(outcome.log);
  }

  static Manifest Latest(const std::string& folder) {
    const auto fs = MakePosixFileSystem();
    const auto found = FindLatest(*fs, (root_ / folder).string());
    EXPECT_TRUE(found.ok() && found->has_value()) << folder;
    return found.ok() && found->has_value() ? (*found)->manifest : Manifest();
  }
  // Returns "31 ROLL_BACK 25-33": spikes of the newest checkpoint's ledger.
  static std::vector<std::string> Ledger(const std::string& folder) {
    std::vector<std::string> ledger;
    const Manifest manifest = Latest(folder);
    for (const SpikeRecord& spike : manifest.spikes()) {
      std::ostringstream line;
      line << spike.spike_step() << " " << spike.action();
      if (spike.last_left_out() > 0) {
        line << " " << spike.first_left_out() << "-" << spike.last_left_out();
      }
      ledger.push_back(line.str());
    }
    return ledger;
  }
  // Returns the records of one kind in metrics.jsonl.
  template <typename Record>
  static std::vector<Record> Written(const std::string& folder, const std::string& kind) {
    std::ifstream file(root_ / folder / "metrics.jsonl");
    std::vector<Record> records;
    for (std::string line; std::getline(file, line);) {
      if (line.find(absl::StrCat(R"("kind":")", kind, "\"")) == std::string::npos) continue;
      EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(line, &records.emplace_back()).ok());
    }
    return records;
  }
  static std::vector<int64_t> StepsOf(const std::string& folder) {
    std::vector<int64_t> steps;
    for (const StepFigures& figures : testing::ReadSteps(root_ / folder / "metrics.jsonl")) {
      steps.push_back(std::get<0>(figures));
    }
    return steps;
  }

  static inline std::filesystem::path root_;
};

TEST_F(SpikeTest, AWarningChangesNoBitAndSkippingTouchesTheSpikesAlone) {
  const std::string off = MustTrain(Run("off"));
  EXPECT_EQ(MustTrain(RunWith("warn", SpikeSpec::WARN)), off);
  EXPECT_EQ(Ledger("warn").at(0), "31 WARN");
  EXPECT_EQ(Latest("off").spikes_size(), 0);
  EXPECT_FALSE(Latest("off").has_spike_window());

  RunSpec skip = RunWith("skip", SpikeSpec::SKIP);
  skip.mutable_instruments()->set_every_steps(31);
  EXPECT_NE(MustTrain(skip), off);
  const auto records = Written<InstrumentRecord>("skip", "instruments");
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].step(), 31);
  ASSERT_GT(records[0].layers_size(), 0);
  double weights = 0.0;
  for (const LayerInstruments& layer : records[0].layers()) {
    EXPECT_EQ(layer.update_norm(), 0.0) << layer.name();
    weights += layer.weight_norm();
  }
  EXPECT_GT(weights, 0.0);
  // Rates follow the updates.
  EXPECT_EQ(Written<StepRecord>("skip", "train").at(kSteps - 1).learning_rate(),
            Written<StepRecord>("off", "train").at(kSteps - 3).learning_rate());
  const std::vector<std::string> skipped = {"31 SKIP", "32 SKIP"};
  EXPECT_EQ(Ledger("skip"), skipped);
  const Manifest manifest = Latest("skip");
  EXPECT_EQ(manifest.skipped_steps(), 2);
  ASSERT_EQ(manifest.skips_size(), 1);
  EXPECT_EQ(manifest.skips(0).first_step(), 31);
  EXPECT_EQ(manifest.skips(0).count(), 2);
  EXPECT_EQ(manifest.optimizer_steps(), kSteps - 2);
}

TEST_F(SpikeTest, ARunThatWentBackIsTheRunThatNeverSawTheStepsOnEveryLayout) {
  const auto run_in = [](const std::string& folder) {
    RunSpec run = RunWith(folder, SpikeSpec::ROLL_BACK);
    run.mutable_train()->set_log_every_steps(4);  // so that a line has begun at the spike
    return run;
  };
  const std::string went_back = MustTrain(run_in("back"));
  const std::vector<std::string> ledger = {"31 ROLL_BACK 25-33"};
  EXPECT_EQ(Ledger("back"), ledger);
  EXPECT_EQ(Latest("back").skipped_steps(), 9);
  EXPECT_EQ(Latest("back").optimizer_steps(), kSteps - 9);

  // Without a save before the spike there is that of the beginning.
  RunSpec far = RunWith("far", SpikeSpec::ROLL_BACK);
  far.mutable_train()->set_checkpoint_every_steps(1000);
  EXPECT_EQ(MustTrain(far), went_back);
  EXPECT_EQ(Ledger("far"), ledger);

  // A clean corpus, and a ledger that says the same.
  std::atomic<int> stop{kStopRequest};
  RunSpec clean = Run("clean-run", "clean");
  clean.mutable_train()->set_log_every_steps(4);
  EXPECT_EQ(GetExitCode(Start(clean, "", nullptr, &stop).status), ExitCode::kSavedRunAgain);
  const auto fs = MakePosixFileSystem();
  Manifest manifest = Latest("clean-run");
  ASSERT_EQ(manifest.step(), 0);
  *manifest.mutable_spikes() = Latest("back").spikes();
  ASSERT_TRUE(BeginCheckpoint(*fs, (root_ / "clean-run").string(), 0).ok());
  std::filesystem::copy(
      root_ / "clean-run/step-00000000" / manifest.files(0).file(),
      root_ / "clean-run/step-00000000.deepnet-unfinished" / manifest.files(0).file());
  ASSERT_TRUE(CommitCheckpoint(*fs, (root_ / "clean-run").string(), manifest).ok());
  EXPECT_EQ(MustTrain(clean), went_back);

  const std::vector<StepFigures> figures = testing::ReadSteps(root_ / "back" / "metrics.jsonl");
  EXPECT_EQ(testing::ReadSteps(root_ / "clean-run" / "metrics.jsonl"), figures);
  for (const auto& [stages, replicas] : {std::pair(2, 1), std::pair(1, 2), std::pair(2, 2)}) {
    const std::string folder = "back-" + std::to_string(stages) + "x" + std::to_string(replicas);
    RunSpec run = run_in(folder);
    run.mutable_parallel()->set_pipeline_parallel_size(stages);
    run.mutable_parallel()->set_data_parallel_size(replicas);
    EXPECT_EQ(WeightsLine(testing::MustTrainInThreads(run, {.root = root_.string()})), went_back);
    EXPECT_EQ(Ledger(folder), ledger);
    EXPECT_EQ(testing::ReadSteps(root_ / folder / "metrics.jsonl"), figures);
  }
}

TEST_F(SpikeTest, MetricsHaveTheStepsThatCountAndTheSpike) {
  RunSpec run = RunWith("metrics", SpikeSpec::ROLL_BACK);
  run.mutable_parallel()->set_blocking_saves(true);  // a slow disk leaves no save out
  run.mutable_train()->set_checkpoint_every_steps(1000);
  run.mutable_train()->set_checkpoint_every_tokens(1);  // after every step that is trained on
  MustTrain(run);
  std::vector<int64_t> expected;
  for (int step = 1; step <= kSteps; ++step) {
    if (step < 25 || step > 33) expected.push_back(step);
  }
  EXPECT_EQ(StepsOf("metrics"), expected);
  std::vector<int64_t> shown;
  for (const auto& [step, loss] :
       testing::ReadShownFigures(root_ / "metrics/tensorboard").at("train/loss")) {
    shown.push_back(step);
  }
  EXPECT_EQ(shown, expected);
  std::ifstream file(root_ / "metrics/metrics.jsonl");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_THAT(text.str(), HasSubstr(R"("kind":"spike","step":24,"spike_step":31,)"));
  for (int step = 24; step <= 34; ++step) {
    const bool saved =
        text.str().find(absl::StrCat(R"("kind":"save","step":)", step, ",")) != std::string::npos;
    EXPECT_EQ(saved, step == 24 || step == 34) << step;
  }
  EXPECT_FALSE(std::filesystem::exists(root_ / "metrics/step-00000024"))
      << "kept while it may be needed";
}

TEST_F(SpikeTest, InterruptedAnywhereItEndsAsIfUndisturbed) {
  const std::string undisturbed = MustTrain(RunWith("undisturbed", SpikeSpec::ROLL_BACK));
  const std::vector<std::string> ledger = Ledger("undisturbed");
  // Requests, after which the run saves.
  for (const std::string at : {"step 22 ", "step 30 ", "step 31: ", "step 35 "}) {
    SCOPED_TRACE(at);
    const RunSpec run = RunWith("stopped-" + std::to_string(at[5]) + at[6], SpikeSpec::ROLL_BACK);
    std::atomic<int> request{0};
    const Outcome stopped = Start(
        run, at, [&] { request = kStopRequest; }, &request);
    EXPECT_EQ(GetExitCode(stopped.status), ExitCode::kSavedRunAgain) << stopped.log;
    EXPECT_EQ(Latest(run.folder()).data().step(), Latest(run.folder()).step());
    EXPECT_EQ(MustTrain(run), undisturbed);
    EXPECT_EQ(Ledger(run.folder()), ledger);
  }
  // A kill: what is on disk at that moment, before and after the ledger is.
  for (const std::string at : {"step 30 ", "step 31: ", "saved step 24", "step 34 ", "step 40 "}) {
    SCOPED_TRACE(at);
    const RunSpec run = RunWith("killed", SpikeSpec::ROLL_BACK);
    std::filesystem::remove_all(root_ / "killed");
    std::filesystem::remove_all(root_ / "kept");
    RunSpec whole_run = RunWith("whole", SpikeSpec::ROLL_BACK);
    // Nothing writes while the folder is copied: what is copied is what one moment left.
    whole_run.mutable_parallel()->set_blocking_saves(true);
    const Outcome whole = Start(whole_run, at, [] {
      std::filesystem::create_directory(root_ / "killed");
      for (const auto& entry : std::filesystem::directory_iterator(root_ / "whole")) {
        // The lock is renewed while it is held, beside everything else.
        const std::string name = entry.path().filename().string();
        if (name.starts_with("lock")) continue;
        std::filesystem::copy(entry.path(), root_ / "killed" / name,
                              std::filesystem::copy_options::recursive);
      }
    });
    std::filesystem::remove_all(root_ / "whole");
    ASSERT_TRUE(whole.status.ok()) << whole.status;
    EXPECT_EQ(MustTrain(run), undisturbed);
    EXPECT_EQ(Ledger("killed"), ledger);
  }
}

TEST_F(SpikeTest, MoreRollBacksThanAllowedEndTheRunWithItsCode) {
  RunSpec run = RunWith("bounded", SpikeSpec::ROLL_BACK);
  run.mutable_train()->mutable_spike()->set_steps_before(0);
  run.mutable_train()->mutable_spike()->set_steps_after(0);
  run.mutable_train()->mutable_spike()->set_max_roll_backs(1);
  const Outcome outcome = Start(run);
  EXPECT_EQ(GetExitCode(outcome.status), ExitCode::kDiverged) << outcome.status << outcome.log;
  EXPECT_THAT(std::string(outcome.status.message()), HasSubstr("spike in step 32: loss "));
  EXPECT_THAT(std::string(outcome.status.message()), HasSubstr("after 1 roll-backs"));
  // One more is enough: the run goes on from where it stood.
  run.mutable_train()->mutable_spike()->set_max_roll_backs(2);
  EXPECT_THAT(MustTrain(run), Not("none"));
  EXPECT_EQ(Ledger("bounded").size(), 2u);
}

TEST_F(SpikeTest, PastADamagedCheckpointItGoesBackToAnOlderOne) {
  RunSpec run = RunWith("damaged", SpikeSpec::ROLL_BACK);
  run.mutable_parallel()->set_blocking_saves(true);
  const Outcome outcome = Start(run, "step 30 ", [] {
    const std::filesystem::path folder = root_ / "damaged/step-00000024";
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().filename().string().starts_with("manifest")) continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(-5, std::ios::end);
      const int byte = file.peek();
      file.seekp(-5, std::ios::end);
      file.put(static_cast<char>(byte ^ 1));
    }
  });
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_THAT(outcome.log, HasSubstr("cannot go back to step 24: "));
  EXPECT_EQ(Ledger("damaged"), std::vector<std::string>{"31 ROLL_BACK 25-33"});
}

TEST_F(SpikeTest, WithoutACheckpointThatOldItGoesBackAsFarAsItCan) {
  RunSpec run = RunWith("young", SpikeSpec::WARN);
  run.mutable_train()->set_steps(28);
  MustTrain(run);  // keeps step 28 alone
  run = RunWith("young", SpikeSpec::ROLL_BACK);
  MustTrain(run);
  EXPECT_EQ(Ledger("young"), std::vector<std::string>{"31 ROLL_BACK 29-33"});
}

}  // namespace
}  // namespace deepnet
