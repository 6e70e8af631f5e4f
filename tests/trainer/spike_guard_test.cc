// A run on one rank whose steps' figures are made up; whole runs are in tests/parity/spike_test.cc.
#include "trainer/spike_guard.h"

#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/exit_code.h"
#include "parallel/base/messages.h"
#include "tests/support/memory_file_system.h"
#include "tests/trainer/tiny_run.h"
#include "trainer/checkpoint/run_lock.h"
#include "trainer/kernels/aten.h"
#include "trainer/model/describe.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class SpikeGuardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    resolved_.run = testing::TinyRun();
    RunSpec& run = resolved_.run;
    run.mutable_optim()->set_fp16_init_scale(64);
    run.mutable_optim()->set_fp16_scale_window(3);
    SpikeSpec& spike = *run.mutable_train()->mutable_spike();
    spike.set_action(SpikeSpec::ROLL_BACK);
    spike.set_deviations(6);
    spike.set_window_steps(2);
    spike.set_steps_before(1);
    spike.set_steps_after(1);
    spike.set_max_roll_backs(2);
    resolved_.folder = "run";
    resolved_.inventory = Describe(run.model(), run.data().microbatch());
    auto context =
        MakeRankContext(run, resolved_.inventory, LonePlan(resolved_.inventory, 1), world_);
    ASSERT_TRUE(context.ok()) << context.status();
    context_ = *std::move(context);
    context_->model->parameters().Initialize(1);
    context_->loss_scale = std::make_unique<DynamicLossScale>(run.optim(), 1, LossScale());
    RunFiles files;
    ASSERT_TRUE(fs_.MakeFolder("run").ok());
    auto metrics = MetricsWriter::Open(fs_, "run/metrics.jsonl", 0);
    ASSERT_TRUE(metrics.ok()) << metrics.status();
    files.metrics = *std::move(metrics);
    recorder_.emplace(std::move(files), run.train(), 0, log_);
    checkpoints_.emplace(fs_, run.train(), resolved_.state, *context_,
                         CheckpointPolicyOptions{.saver = {.folder = "run"}});
    ASSERT_TRUE(checkpoints_->saver().Open().ok());
    guard_.emplace(fs_, resolved_, *context_, *checkpoints_, *recorder_, log_);
  }

  // Counts a step of those figures. Returns what Count does.
  bool Take(double loss, double norm, bool overflow = false) {
    Manifest& state = resolved_.state;
    StepResult result;
    result.loss = loss;
    result.withheld = !guard_->UpdateWanted(loss, norm);
    result.update.skipped = result.withheld || overflow;
    state.set_step(state.step() + 1);
    state.set_train_seconds(state.train_seconds() + 10);
    at::Tensor weights = context_->model->parameters().weights();
    if (!result.update.skipped) weights.add_(1);
    const bool unusual = guard_->Count(result);
    EXPECT_TRUE(checkpoints_->SaveIfDue(0).ok());  // none is, but skipped steps are noted
    return unusual;
  }
  double weight() { return context_->model->parameters().weights()[0].item<double>(); }
  void Save() { ASSERT_TRUE(checkpoints_->SaveAndWait(/*tidy=*/true).ok()); }

  testing::MemoryFileSystem fs_;
  SelfCommunicator world_;
  std::ostringstream text_;
  Logger log_{{.stream = &text_, .time_of_day = [] { return "T"; }}};
  ResolvedRun resolved_;
  std::unique_ptr<RankContext> context_;
  std::optional<RunRecorder> recorder_;
  std::optional<CheckpointPolicy> checkpoints_;
  std::optional<SpikeGuard> guard_;
};

TEST_F(SpikeGuardTest, GoingBackTakesBackTheStateButForWhatHasReallyPassed) {
  const double start = weight();
  Take(2.0, 1.0);
  Take(2.0, 1.0, /*overflow=*/true);  // halves the scale
  Save();
  const std::string scale = ToBytes(context_->loss_scale->state());
  EXPECT_EQ(context_->loss_scale->scale(), 32);
  Take(2.0, 1.0, /*overflow=*/true);
  resolved_.state.set_failed_saves(5);
  resolved_.state.mutable_run()->set_name("as it was started now");
  SpikeRecord& left_out = *resolved_.state.add_spikes();  // of a step that is gone back behind
  left_out.set_step(3);
  left_out.set_last_left_out(3);
  resolved_.state.add_spikes()->set_step(3);  // of one that was skipped
  resolved_.state.set_validation_due(true);
  Take(90.0, 1.0);
  ASSERT_TRUE(guard_->found());
  EXPECT_TRUE(guard_->Answer().value());
  EXPECT_FALSE(guard_->found());
  const Manifest& state = resolved_.state;
  EXPECT_EQ(state.step(), 2);
  EXPECT_EQ(weight(), static_cast<float>(start) + 1);
  EXPECT_EQ(ToBytes(context_->loss_scale->state()), scale);
  EXPECT_EQ(ToBytes(state.loss_scale()), scale);
  EXPECT_EQ(state.optimizer_steps(), 1);
  EXPECT_EQ(state.skipped_steps(), 1);
  EXPECT_EQ(state.train_seconds(), 40);
  EXPECT_EQ(state.failed_saves(), 5);
  EXPECT_FALSE(state.validation_due());
  EXPECT_EQ(state.run().name(), "as it was started now");
  ASSERT_EQ(state.spikes_size(), 2);
  EXPECT_EQ(state.spikes(0).last_left_out(), 3);
  EXPECT_EQ(state.spikes(1).first_left_out(), 3);
  EXPECT_EQ(state.spikes(1).last_left_out(), 5);
  ASSERT_EQ(state.skips_size(), 1);
  EXPECT_EQ(state.skips(0).first_step(), 2);
  EXPECT_EQ(state.skips(0).count(), 1);

  for (int i = 0; i < 3; ++i) Take(2.0, 1.0);
  Take(90.0, 1.0);
  const absl::Status once_more = guard_->Answer().status();
  EXPECT_EQ(GetExitCode(once_more), ExitCode::kDiverged);
  EXPECT_THAT(std::string(once_more.message()), HasSubstr("after 2 roll-backs"));
}

TEST_F(SpikeGuardTest, WithoutAnIntactCheckpointTheRunGoesOn) {
  Take(2.0, 1.0);
  Save();
  fs_.FlipBit("run/step-00000001/tensors-00000-of-00001.bin", 9, 0);
  Take(2.0, 1.0);
  Take(90.0, 1.0);
  const double now = weight();
  const absl::StatusOr<bool> went_back = guard_->Answer();
  ASSERT_TRUE(went_back.ok()) << went_back.status();
  EXPECT_FALSE(*went_back);
  EXPECT_THAT(text_.str(), HasSubstr("T warning: cannot go back to step 1: verifying checkpoint"));
  EXPECT_THAT(text_.str(), HasSubstr("T warning: spike in step 3: loss 90.000"));
  EXPECT_THAT(text_.str(), HasSubstr("; skipped\n"));
  EXPECT_EQ(weight(), now);
  EXPECT_EQ(resolved_.state.step(), 3);
  ASSERT_EQ(resolved_.state.spikes_size(), 1);
  EXPECT_EQ(resolved_.state.spikes(0).last_left_out(), 0);
  EXPECT_EQ(resolved_.state.spikes(0).step(), 3);
}

TEST_F(SpikeGuardTest, NothingIsDeletedInAFolderThatAnotherJobHasTakenOver) {
  auto lock = RunLock::Acquire(fs_, "run", MakeRunOwner(""), {});
  ASSERT_TRUE(lock.ok()) << lock.status();
  resolved_.lock = *std::move(lock);
  for (int i = 0; i < 3; ++i) {
    Take(2.0, 1.0);
    Save();
  }
  Take(90.0, 1.0);
  ASSERT_TRUE(fs_.Delete("run/lock").ok());
  const absl::Status status = guard_->Answer().status();
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_TRUE(*Exists(fs_, "run/step-00000003"));
}

TEST_F(SpikeGuardTest, SkipsThatNoScaleAnswersEndTheRunWhenItsSaveHasEnded) {
  for (int i = 0; i < 10; ++i) {
    Take(2.0, kInfinity, /*overflow=*/true);
    EXPECT_TRUE(guard_->CheckDivergence().ok()) << i;
  }
  context_->loss_scale.reset();
  ASSERT_TRUE(checkpoints_->Save().ok());
  const absl::Status status = guard_->CheckDivergence();
  EXPECT_EQ(GetExitCode(status), ExitCode::kDiverged) << status;
  EXPECT_FALSE(checkpoints_->saver().busy());
  EXPECT_TRUE(*Exists(fs_, "run/step-00000010"));
}

TEST_F(SpikeGuardTest, ARunThatNoLongerLooksForSpikesForgetsTheWindow) {
  Take(2.0, 1.0);
  EXPECT_TRUE(resolved_.state.has_spike_window());
  resolved_.run.mutable_train()->mutable_spike()->set_deviations(0);
  guard_.emplace(fs_, resolved_, *context_, *checkpoints_, *recorder_, log_);
  EXPECT_FALSE(resolved_.state.has_spike_window());
}

TEST_F(SpikeGuardTest, AnOverflowIsUnusualOnlyWhereTheLossIsNotFinite) {
  EXPECT_FALSE(Take(2.0, kInfinity, /*overflow=*/true));
  EXPECT_THAT(text_.str(), HasSubstr("step 1: gradient overflow; skipped, loss scale 32\n"));
  EXPECT_TRUE(Take(std::nan(""), kInfinity, /*overflow=*/true));
  EXPECT_FALSE(Take(std::nan(""), kInfinity, /*overflow=*/true)) << "the second in a row";
  EXPECT_FALSE(Take(2.0, 1.0));
  EXPECT_EQ(resolved_.state.consecutive_skips(), 0);
  EXPECT_EQ(resolved_.state.skipped_steps(), 3);
  EXPECT_TRUE(Take(std::nan(""), 1.0, /*overflow=*/true));
}

}  // namespace
}  // namespace deepnet
