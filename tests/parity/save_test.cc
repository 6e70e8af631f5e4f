// Saving in the background changes no result and survives whole runs on disks that fail, stops at
// any moment, and two writers of one folder. "Same" is the hash of the weights that `train` prints
// at its end.
//
// Environment: DEEPNET_FAULT_STRIDE, every how manieth call of a run fails in turn (default 7).
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/logging.h"
#include "proto/report.pb.h"
#include "tests/parity/training_runs.h"
#include "tests/support/fault_file_system.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/trainer.h"

namespace deepnet {
namespace {

using testing::ActingBuffer;
using testing::FaultFileSystem;
using ::testing::HasSubstr;
using testing::MakeCorpus;
using ::testing::Not;
using testing::WeightsLine;

constexpr int kSteps = 6;

// Every n-th call is tried: all of them take minutes (long_save_test).
int FaultStride() {
  const char* const text = std::getenv("DEEPNET_FAULT_STRIDE");
  return text != nullptr ? std::atoi(text) : 7;
}

struct Outcome {
  absl::Status status;
  std::string log;

  std::string Weights() const { return WeightsLine(log); }
};

class SaveTest : public testing::CorpusTest {
 protected:
  static void SetUpTestSuite() {
    CorpusTest::SetUpTestSuite();
    undisturbed_ = Start(Run("undisturbed")).Weights();
    ASSERT_NE(undisturbed_, "none");
  }

  static RunSpec Run(const std::string& folder) {
    RunSpec run;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
        R"(seed: 3
           model { encoder_layers: 1 decoder_layers: 1 d_model: 32 ffn_dim: 64 num_heads: 2
                   residual: DEEPNORM max_positions: 300 dropout: 0.1 }
           data { folder: 'corpus' max_sentence_tokens: 150
                  microbatch { max_source_tokens: 300 max_target_tokens: 300 max_sentences: 16 } }
           optim { learning_rate: 2e-3 warmup_steps: 4 }
           compute { device: 'cpu' dtype: FLOAT32 threads_per_rank: 1 }
           train { checkpoint_every_steps: 2 log_every_steps: 1 keep_checkpoints: 2
                   validate_sentences: 3 }
           decode { beam_size: 2 max_tokens: 10 })",
        &run));
    run.set_folder(folder);
    run.mutable_train()->set_steps(kSteps);
    run = WithDefaults(run);
    run.mutable_train()->set_validate_every_steps(0);
    return run;
  }

  static Outcome Start(const RunSpec& run, TrainOptions options = {}, const std::string& text = "",
                       std::function<void()> action = nullptr) {
    ActingBuffer log(text, std::move(action));
    std::ostream stream(&log);
    Logger logger({.stream = &stream});
    options.root = root_.string();
    const absl::Status status = Train(run, options, logger);
    return {status, log.str()};
  }

  static std::vector<SaveRecord> Saves(const std::string& folder) {
    std::ifstream file(root_ / folder / "metrics.jsonl");
    std::vector<SaveRecord> records;
    for (std::string line; std::getline(file, line);) {
      if (line.find(R"("kind":"save")") == std::string::npos) continue;
      EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(line, &records.emplace_back()).ok());
    }
    return records;
  }
  static bool Exists(const std::string& file) { return std::filesystem::exists(root_ / file); }

  // A start on a good disk goes on from what there is and ends with the same weights.
  static void ExpectGoesOn(const std::string& folder) {
    const Outcome next = Start(Run(folder));
    EXPECT_TRUE(next.status.ok()) << next.status << next.log;
    EXPECT_EQ(next.Weights(), undisturbed_);
  }

  static inline std::string undisturbed_;
};

TEST_F(SaveTest, EverySaveIsARecordWithItsTimes) {
  const std::vector<SaveRecord> saves = Saves("undisturbed");
  ASSERT_EQ(saves.size(), 3u);
  int64_t bytes = 0;  // of the tensors of all ranks
  for (const auto& file :
       std::filesystem::directory_iterator(root_ / "undisturbed" / "step-00000006")) {
    if (file.path().extension() == ".bin") bytes += static_cast<int64_t>(file.file_size());
  }
  for (size_t i = 0; i < saves.size(); ++i) {
    EXPECT_EQ(saves[i].step(), static_cast<int64_t>(2 * i + 2));
    EXPECT_EQ(saves[i].bytes(), bytes);
    EXPECT_GT(saves[i].stall_seconds(), 0);
    EXPECT_GE(saves[i].seconds() + 1e-3, 0);
    EXPECT_EQ(saves[i].error(), "");
  }
  EXPECT_FALSE(Exists("undisturbed/step-00000002"));
  EXPECT_TRUE(Exists("undisturbed/step-00000004"));
  EXPECT_FALSE(Exists("undisturbed/lock"));
}

// The disk takes the first tensors when the next step is done, or never is.
TEST_F(SaveTest, TrainingGoesOnWhileItIsSavedUnlessThereIsNoCopyAndTheRunIsTheSame) {
  for (const bool blocking : {false, true}) {
    const std::string folder = blocking ? "blocking" : "beside";
    std::filesystem::create_directories(root_ / folder / "step-00000003.deepnet-unfinished");
    RunSpec run = Run(folder);
    run.mutable_parallel()->set_blocking_saves(blocking);
    absl::Notification went_on;
    std::atomic<bool> waited{false};
    const auto system = MakePosixFileSystem();
    const auto disk = MakeObservedFileSystem(*system, [&](const std::string& path) {
      if (!path.ends_with(".bin") || waited.exchange(true)) return;
      const absl::Duration longest = blocking ? absl::Milliseconds(100) : absl::Seconds(60);
      EXPECT_EQ(went_on.WaitForNotificationWithTimeout(longest), !blocking);
    });
    const Outcome outcome = Start(run, {.files = disk.get()}, "step 3 ", [&] { went_on.Notify(); });
    EXPECT_TRUE(waited);
    EXPECT_EQ(outcome.Weights(), undisturbed_);
    EXPECT_EQ(Saves(folder).size(), 3u);
    EXPECT_FALSE(Exists(folder + "/step-00000003.deepnet-unfinished")) << "of an earlier start";
  }
}

TEST_F(SaveTest, KeepsEveryNthStepBesidesTheLatest) {
  RunSpec run = Run("every");
  run.mutable_train()->set_keep_checkpoints(1);
  run.mutable_train()->set_keep_every_steps(2);
  run.mutable_train()->set_checkpoint_every_steps(1);
  ASSERT_TRUE(Start(run).status.ok());
  for (int step = 1; step <= kSteps; ++step) {
    EXPECT_EQ(Exists("every/" + CheckpointName(step)), step % 2 == 0) << step;
  }
}

TEST_F(SaveTest, ACallThatFailsIsShownAndTheRunGoesOnOrEndsWithItsCode) {
  int64_t failed_runs = 0, shown = 0;
  bool ended = false;
  for (int64_t call = 0; !ended; call += FaultStride()) {
    SCOPED_TRACE(call);
    const std::string folder = "fault-" + std::to_string(call);
    const auto system = MakePosixFileSystem();
    FaultFileSystem fs(*system);
    fs.FailCall(call, absl::DataLossError("EIO"));
    const Outcome outcome = Start(Run(folder), {.files = &fs});
    ended = fs.num_calls() <= call;
    if (outcome.status.ok()) {
      EXPECT_EQ(outcome.Weights(), undisturbed_);
      shown += outcome.log.find("EIO") != std::string::npos ? 1 : 0;
    } else {
      ++failed_runs;
      EXPECT_THAT(outcome.status.ToString(), HasSubstr("EIO"));
      EXPECT_TRUE(GetExitCode(outcome.status) == ExitCode::kCheckpoint ||
                  GetExitCode(outcome.status) == ExitCode::kPreflight)
          << outcome.status;
    }
    // A lock that could not be deleted names a process that is gone by the next start; this one is
    // not.
    std::filesystem::remove(root_ / folder / "lock");
    ExpectGoesOn(folder);
    std::filesystem::remove_all(root_ / folder);
  }
  EXPECT_GT(shown, 5);
  EXPECT_LT(failed_runs, shown);  // only starts fail: a last save is tried again
}

TEST_F(SaveTest, AFullDiskCostsCheckpointsNotTheRunUntilItsEnd) {
  const auto system = MakePosixFileSystem();
  FaultFileSystem fs(*system);
  const Outcome outcome =
      Start(Run("full"), {.files = &fs}, "saved step 2", [&] { fs.SetRoom(1000); });
  EXPECT_EQ(GetExitCode(outcome.status), ExitCode::kCheckpoint) << outcome.status;
  EXPECT_THAT(std::string(outcome.status.message()), HasSubstr("no space"));
  EXPECT_THAT(outcome.log, HasSubstr("step 4 could not be saved (1 so far)"));
  EXPECT_THAT(outcome.log, HasSubstr("step 6 could not be saved (3 so far)"));
  const auto found = FindLatest(*system, (root_ / "full").string());
  ASSERT_TRUE(found.ok() && found->has_value());
  EXPECT_EQ((*found)->manifest.step(), 2);
  EXPECT_THAT(*system->List((root_ / "full").string()),
              ::testing::Each(Not(HasSubstr("unfinished"))))
      << "what failed takes no room";
  ExpectGoesOn("full");
}

TEST_F(SaveTest, ASecondRunOnTheFolderIsRefusedAndNamesTheFirst) {
  Outcome second;
  const Outcome first = Start(Run("two"), {}, "step 3", [&] { second = Start(Run("two")); });
  EXPECT_EQ(GetExitCode(second.status), ExitCode::kCheckpoint) << second.status;
  EXPECT_THAT(std::string(second.status.message()),
              HasSubstr("in use: process " + std::to_string(getpid()) + " on "));
  EXPECT_EQ(first.Weights(), undisturbed_);
}

TEST_F(SaveTest, ARunWhoseLockWasTakenWritesAndDeletesNothingMore) {
  RunSpec run = Run("robbed");
  run.mutable_train()->set_keep_checkpoints(1);
  const Outcome outcome = Start(run, {}, "saved step 4", [] {
    std::ofstream(root_ / "robbed/lock") << "token: \"other\" host: \"elsewhere\" pid: 7\n";
  });
  EXPECT_EQ(GetExitCode(outcome.status), ExitCode::kCheckpoint) << outcome.status;
  EXPECT_THAT(outcome.status.ToString(), HasSubstr("process 7 on elsewhere"));
  EXPECT_TRUE(Exists("robbed/step-00000002"));
  EXPECT_TRUE(Exists("robbed/step-00000004"));
  EXPECT_FALSE(Exists("robbed/step-00000006"));
}

// In a validation, in the one after the last step, and before one that is due.
TEST_F(SaveTest, AValidationThatAStopLeavesOutComesFirstNextTime) {
  struct Case {
    std::string folder, stop_at;
    int every_steps, due_step;
  };
  for (const auto& [folder, stop_at, every_steps, due_step] :
       {Case{"in-one", "validate ", 3, 3}, Case{"in-the-last", "validate ", -1, kSteps},
        Case{"before-one", "step 2 ", 3, 3}}) {
    SCOPED_TRACE(folder);
    RunSpec run = Run(folder);
    run.mutable_train()->set_validate_every_steps(every_steps);
    std::atomic<int> request{0};
    const Outcome stopped =
        Start(run, {.request = &request}, stop_at, [&] { request = kStopRequest; });
    EXPECT_EQ(GetExitCode(stopped.status), ExitCode::kSavedRunAgain) << stopped.status;
    EXPECT_TRUE(Exists(folder + "/" + CheckpointName(due_step)));
    EXPECT_THAT(stopped.log, Not(HasSubstr("validation at step")));
    const Outcome next = Start(run);
    EXPECT_TRUE(next.status.ok()) << next.status;
    EXPECT_THAT(next.log, HasSubstr("validation at step " + std::to_string(due_step)));
    EXPECT_THAT(next.log, HasSubstr("validation at step 6"));
    EXPECT_EQ(next.Weights(), undisturbed_);
    EXPECT_TRUE(Exists(folder + "/best-nll"));
  }
}

TEST_F(SaveTest, TheScoresOfTheLastValidationAreInTheLastCheckpoint) {
  RunSpec run = Run("scored");
  run.mutable_train()->set_validate_every_steps(-1);
  run.mutable_train()->set_log_every_steps(4);
  EXPECT_EQ(Start(run).Weights(), undisturbed_);
  std::vector<int64_t> reported;
  for (const testing::StepFigures& step : testing::ReadSteps(root_ / "scored/metrics.jsonl")) {
    reported.push_back(std::get<0>(step));
  }
  EXPECT_THAT(reported, ::testing::ElementsAre(4, kSteps)) << "the last steps, too";
  const auto fs = MakePosixFileSystem();
  const auto found = FindLatest(*fs, (root_ / "scored").string());
  ASSERT_TRUE(found.ok() && found->has_value());
  EXPECT_EQ((*found)->manifest.step(), kSteps);
  ASSERT_GT((*found)->manifest.best_size(), 0);
  EXPECT_EQ((*found)->manifest.best(0).step(), kSteps);
  EXPECT_TRUE(Exists("scored/best-nll"));
}

TEST_F(SaveTest, AStopWhileASaveIsUnderWayWaitsForBoth) {
  for (const int asked : {kStopRequest, kStopRequest | kSaveRequest}) {
    const std::string folder = "saving-" + std::to_string(asked);
    std::atomic<int> request{0};
    RunSpec run = Run(folder);
    run.mutable_train()->set_checkpoint_every_steps(1);
    const Outcome stopped = Start(run, {.request = &request}, "step 2 ", [&] { request = asked; });
    EXPECT_EQ(GetExitCode(stopped.status), ExitCode::kSavedRunAgain) << stopped.status;
    EXPECT_TRUE(Exists(folder + "/" + CheckpointName(3)));
    ExpectGoesOn(folder);
  }
}

TEST_F(SaveTest, ATimeLimitEndsTheStartEarlyEnough) {
  RunSpec run = Run("limit");
  run.mutable_train()->set_steps(1000000);
  run.mutable_train()->set_checkpoint_every_steps(1000000);
  constexpr double kLimitSeconds = 6.0;
  run.mutable_train()->set_exit_after_minutes(kLimitSeconds / 60);
  const double started = SecondsNow();
  const Outcome outcome = Start(run);
  const double took = SecondsNow() - started;
  EXPECT_LT(took, kLimitSeconds);
  // Two of the longest steps, two saves and two seconds before.
  EXPECT_GT(took, 1.0);
  EXPECT_EQ(GetExitCode(outcome.status), ExitCode::kSavedRunAgain) << outcome.status;
  EXPECT_EQ(Saves("limit").size(), 1u);
}

// So near that even the first step might be too long.
TEST_F(SaveTest, ATimeLimitThatIsNearIsHonouredBeforeTheFirstStep) {
  const Outcome outcome = Start(Run("near"), {.deadline = SecondsNow() + 2});
  EXPECT_EQ(GetExitCode(outcome.status), ExitCode::kSavedRunAgain) << outcome.status;
  EXPECT_TRUE(Exists("near/step-00000000"));
}

TEST_F(SaveTest, ARunOfSoManyMinutesTrainsForThem) {
  RunSpec run = Run("minutes");
  run.mutable_train()->clear_steps();
  constexpr double kSeconds = 0.1;
  run.mutable_train()->set_max_train_minutes(kSeconds / 60);
  const Outcome outcome = Start(run);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  const auto fs = MakePosixFileSystem();
  const auto found = FindLatest(*fs, (root_ / "minutes").string());
  ASSERT_TRUE(found.ok() && found->has_value());
  EXPECT_GE((*found)->manifest.train_seconds(), kSeconds);
}

}  // namespace
}  // namespace deepnet
