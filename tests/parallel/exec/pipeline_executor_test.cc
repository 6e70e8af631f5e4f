#include "parallel/exec/pipeline_executor.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/base/exit_code.h"
#include "parallel/comm/self_communicator.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;

// Writes down what it is told; fails at the backward of microbatch `fails_at`.
class RecordingStage final : public Stage {
 public:
  explicit RecordingStage(int fails_at = -1) : fails_at_(fails_at) {}

  absl::Status Forward(int, int microbatch) override {
    absl::StrAppend(&log, "F", microbatch, " ");
    return absl::OkStatus();
  }
  absl::Status Backward(int, int microbatch) override {
    absl::StrAppend(&log, "B", microbatch, " ");
    if (microbatch != fails_at_) return absl::OkStatus();
    return WithExitCode(absl::InternalError("loss is not finite"), ExitCode::kDiverged);
  }

  absl::Status BackwardInput(int, int) override {
    return absl::UnimplementedError("this stage cannot split its backward pass");
  }
  absl::Status BackwardWeight(int, int) override { return absl::OkStatus(); }
  std::vector<Buffer> Buffers(Boundary, int, int) override { return {}; }
  void Release(Boundary, int, int) override {}

  std::string log;

 private:
  const int fails_at_;
};

TEST(PipelineExecutor, TakesTheActionsInOrder) {
  RecordingStage stage;
  SelfCommunicator comm;
  EXPECT_TRUE(RunSchedule(MakeTrivial(3), stage, comm).ok());
  EXPECT_EQ(stage.log, "F0 B0 F1 B1 F2 B2 ");
}

TEST(PipelineExecutor, StopsAtTheFirstErrorAndSaysWhere) {
  RecordingStage stage(/*fails_at=*/1);
  SelfCommunicator comm;
  const absl::Status status = RunSchedule(MakeTrivial(3), stage, comm);
  EXPECT_EQ(status.message(), "rank 0, action 0B1: loss is not finite");
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(GetExitCode(status), ExitCode::kDiverged);
  EXPECT_EQ(stage.log, "F0 B0 F1 B1 ");
}

TEST(PipelineExecutor, RefusesAScheduleForAnotherNumberOfRanks) {
  RecordingStage stage;
  SelfCommunicator comm;
  const Schedule schedule = MakeOneForwardOneBackward({.num_ranks = 2, .num_microbatches = 2});
  EXPECT_THAT(RunSchedule(schedule, stage, comm).message(), HasSubstr("for 2 ranks, run by 1"));
  EXPECT_EQ(stage.log, "");
}

TEST(PipelineExecutor, RefusesWhatTheStageDoesNotOffer) {
  RecordingStage stage;
  SelfCommunicator comm;
  const Schedule split{{{{Op::kForward, 0, 0}, {Op::kBackwardInput, 0, 0}}}};
  EXPECT_THAT(RunSchedule(split, stage, comm).message(),
              HasSubstr("action 0I0: this stage cannot"));
}

}  // namespace
}  // namespace deepnet
