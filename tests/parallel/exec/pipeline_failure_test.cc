// A message that gets stuck, a peer that goes, or a stage that fails: one rank says what happened,
// and all of them end.
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/base/exit_code.h"
#include "parallel/exec/pipeline_executor.h"
#include "parallel/plan/check_schedule.h"
#include "parallel/plan/schedule.h"
#include "parallel/plan/schedule_generators.h"
#include "tests/parallel/exec/checksum_stage.h"
#include "tests/parallel/exec/hooked_communicator.h"
#include "tests/support/run_ranks.h"

namespace deepnet {
namespace {

using ::deepnet::testing::ChecksumStage;
using ::deepnet::testing::Fate;
using ::deepnet::testing::HookedCommunicator;
using ::testing::HasSubstr;

constexpr int kRanks = 3;
constexpr int kNobody = -1;
const absl::Duration kLong = absl::Hours(1);  // of ranks that must be ended, not time out

Schedule ThreeRanks() {
  return *WithTransfers(*MakeNamedSchedule("1f1b", {.num_ranks = kRanks, .num_microbatches = 4}),
                        MakeLooped(3, 1));
}

// Runs ThreeRanks with `fate` for every message of rank `rank`.
std::vector<absl::Status> RunHooked(int rank, const std::function<Fate(bool send, int tag)>& fate,
                                    int failing_chunk = -1) {
  const Schedule schedule = ThreeRanks();
  const Placement placement = MakeLooped(kRanks, 1);
  return RunRanks(kRanks, [&](Communicator& inner) {
    ChecksumStage stage(placement);
    stage.fails_at = failing_chunk;
    stage.failure = WithExitCode(absl::InternalError("not finite"), ExitCode::kDiverged);
    HookedCommunicator comm(inner, [&](bool send, int, int tag) {
      return inner.rank() == rank ? fate(send, tag) : Fate::kPass;
    });
    ExecutorOptions options;
    options.comm_timeout = kLong;
    return RunSchedule(schedule, placement, stage, comm, options);
  });
}

// The culprit has an error of its own, with `text` in it; the others were ended by it.
void ExpectOthersEnded(const std::vector<absl::Status>& statuses, int culprit, ExitCode code,
                       const std::string& text) {
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(GetExitCode(statuses[rank]), code) << statuses[rank];
    EXPECT_EQ(absl::IsAborted(statuses[rank]), rank != culprit);
  }
  EXPECT_THAT(std::string(statuses[culprit].message()), HasSubstr(text));
}

// The third message that rank 1 receives over the cut before its chunk never comes.
TEST(PipelineFailure, AStuckReceiveIsNamedAndEndsEveryRank) {
  const Schedule schedule = ThreeRanks();
  const Placement placement = MakeLooped(kRanks, 1);
  const auto statuses = RunRanks(kRanks, [&](Communicator& inner) {
    ChecksumStage stage(placement);
    int num_sent = 0;
    HookedCommunicator comm(inner, [&](bool send, int, int tag) {
      const bool third =
          send && inner.rank() == 0 && tag == MessageTag(1, false, 0) && ++num_sent == 3;
      return third ? Fate::kDrop : Fate::kPass;
    });
    ExecutorOptions options;
    options.comm_timeout = inner.rank() == 1 ? absl::Seconds(1) : kLong;
    return RunSchedule(schedule, placement, stage, comm, options);
  });
  EXPECT_TRUE(absl::IsDeadlineExceeded(statuses[1])) << statuses[1];
  ExpectOthersEnded(statuses, 1, ExitCode::kHang,
                    "rank 1, action 1F3: chunk 1, microbatch 3: 1RF3 from rank 0 has not moved for "
                    "1s (parallel.comm_timeout_seconds)\n");
}

TEST(PipelineFailure, TheTextShowsWhereBothRanksStand) {
  const Schedule schedule = *ParseSchedule(
      "rank 0: 0F0 0SF0 0F1 0SF1 0RB0 0B0 0F2 0SF2 0RB1 0B1 0RB2 0B2\n"
      "rank 1: 1RF0 1F0 1RF1 1B0 1SB0 1F1 1B1 1SB1 1RF2 1F2 1B2 1SB2\n");
  EXPECT_EQ(PositionText(schedule, 1, {Op::kForward, 1, 2}, 0, {Op::kReceiveForward, 1, 2}),
            "  rank 1: ... 1B0 1SB0 1F1 1B1 1SB1 1RF2 [1F2] 1B2 1SB2\n"
            "  rank 0: ... 0SF0 0F1 0SF1 0RB0 0B0 0F2 <0SF2> 0RB1 0B1 0RB2 0B2");
}

TEST(PipelineFailure, ALostPeerIsNamedAndEndsEveryRank) {
  const auto statuses =
      RunHooked(2, [](bool send, int) { return send ? Fate::kPass : Fate::kLose; });
  ExpectOthersEnded(statuses, 2, ExitCode::kPeerLost,
                    "rank 2, action 2F0: chunk 2, microbatch 0: 2RF0 from rank 1 is lost: "
                    "connection reset\n");
  EXPECT_TRUE(absl::IsUnavailable(statuses[2])) << statuses[2];
}

TEST(PipelineFailure, AStageThatFailsEndsEveryRankWithItsCode) {
  const auto statuses = RunHooked(kNobody, nullptr, /*failing_chunk=*/2);
  ExpectOthersEnded(statuses, 2, ExitCode::kDiverged, "rank 2, action 2F0: not finite");
}

TEST(PipelineMessages, NoTwoMessagesShareATagAndAllOfThemAreAllowed) {
  std::vector<bool> taken(Communicator::kNumTags, false);
  for (int cut = 1; cut < 4096; ++cut) {
    for (const bool backward : {false, true}) {
      for (int tensor = 0; tensor < kMaxTensors; ++tensor) {
        const int tag = MessageTag(cut, backward, tensor);
        ASSERT_TRUE(tag >= 0 && tag < Communicator::kNumTags) << cut;
        ASSERT_FALSE(taken[tag]) << cut;
        taken[tag] = true;
      }
    }
  }
}

TEST(PipelineMessages, BothSidesOfACutAgreeOnTheRoute) {
  const Placement placement = MakeV(2, 2);  // 0 1 1 0
  const auto route = [&](Op op, int chunk) { return *RouteOf({op, chunk, 0}, placement); };
  EXPECT_EQ(route(Op::kSendForward, 0), (Route{1, 1, false, true, Boundary::kOutput}));
  EXPECT_EQ(route(Op::kReceiveForward, 1), (Route{1, 0, false, false, Boundary::kInput}));
  EXPECT_EQ(route(Op::kSendBackward, 3), (Route{3, 1, true, true, Boundary::kInputGradient}));
  EXPECT_EQ(route(Op::kReceiveBackward, 2), (Route{3, 0, true, false, Boundary::kOutputGradient}));
  EXPECT_TRUE(absl::IsInvalidArgument(RouteOf({Op::kSendForward, 1, 0}, placement).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(RouteOf({Op::kReceiveForward, 0, 0}, placement).status()));
}

}  // namespace
}  // namespace deepnet
