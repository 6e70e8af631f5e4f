#include "parallel/exec/pipeline_executor.h"

#include <algorithm>
#include <latch>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/communicator.h"
#include "parallel/plan/check_schedule.h"
#include "parallel/plan/message_order.h"
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
using ::testing::UnorderedElementsAre;

// Every microbatch through all chunks and back, one after the other, on one rank.
Schedule OneRank(int num_chunks, int num_microbatches) {
  Schedule schedule{{{}}};
  for (int m = 0; m < num_microbatches; ++m) {
    for (int c = 0; c < num_chunks; ++c) schedule.actions[0].push_back({Op::kForward, c, m});
    for (int c = num_chunks; c-- > 0;) schedule.actions[0].push_back({Op::kBackward, c, m});
  }
  return schedule;
}

std::vector<uint64_t> GradientsOfOneRank(int num_chunks, int num_microbatches) {
  SelfCommunicator comm;
  ChecksumStage stage(Placement{std::vector<int>(num_chunks, 0)});
  EXPECT_TRUE(RunSchedule(OneRank(num_chunks, num_microbatches), Placement{}, stage, comm).ok());
  return stage.gradients;
}

struct Case {
  Placement placement;
  Schedule schedule;  // with transfers
};

Case MakeCase(std::string_view name, const PipelineShape& shape) {
  Case made;
  made.placement = *MakeNamedPlacement(name, shape);
  made.schedule = *WithTransfers(*MakeNamedSchedule(name, shape), made.placement);
  EXPECT_TRUE(CheckSchedule(made.schedule, shape, made.placement).ok());
  return made;
}

// Returns true if the rank needs what another one sends in the order in which it is sent.
bool NeedsMessagesInOrder(const Case& it, int rank) {
  const auto messages = MessagesTo(rank, it.schedule, it.placement, 0);
  return std::is_sorted(messages.begin(), messages.end(), [](const auto& a, const auto& b) {
    return a.from == b.from && a.needed_by < b.needed_by;
  });
}

// Runs it with threads; expects the gradients of one rank and that nothing is left behind.
void ExpectGradientsOfOneRank(const Case& it, int num_microbatches, ExecutorOptions options) {
  options.comm_timeout = absl::Minutes(1);  // a deadlock ends before the test's own limit
  const std::vector<uint64_t> expected =
      GradientsOfOneRank(it.placement.NumChunks(), num_microbatches);
  const auto statuses = RunRanks(it.placement.NumRanks(), [&](Communicator& comm) {
    ChecksumStage stage(it.placement);
    RETURN_IF_ERROR(RunSchedule(it.schedule, it.placement, stage, comm, options));
    for (int c = 0; c < it.placement.NumChunks(); ++c) {
      if (it.placement.rank_of_chunk[c] == comm.rank() && stage.gradients[c] != expected[c]) {
        return absl::InternalError(absl::StrCat("chunk ", c, ": another gradient"));
      }
    }
    if (!stage.NothingLive()) return absl::InternalError("buffers left");
    // One is worked on; the next look_ahead actions need the others.
    const bool in_order = NeedsMessagesInOrder(it, comm.rank());
    for (const Boundary boundary : {Boundary::kInput, Boundary::kOutputGradient}) {
      if (in_order && stage.most_live[boundary] > options.look_ahead + 1) {
        return absl::InternalError("more received than look_ahead allows");
      }
    }
    return absl::OkStatus();
  });
  EXPECT_EQ(FirstError(statuses), absl::OkStatus()) << ToText(it.schedule);
}

TEST(PipelineExecutor, EveryGeneratorComputesWhatOneRankComputes) {
  int num_cases = 0;
  for (const ScheduleKind& kind : ScheduleKinds()) {
    for (int p = kind.name == "single_stage" ? 1 : 2; p <= (kind.name == "single_stage" ? 1 : 4);
         ++p) {
      for (int v = kind.min_virtual_pipeline_size; v <= std::min(2, kind.max_virtual_pipeline_size);
           ++v) {
        for (int m = 1; m <= 8; ++m) {
          SCOPED_TRACE(absl::StrCat(std::string(kind.name), " p=", p, " v=", v, " m=", m));
          const Case it = MakeCase(
              kind.name, {.num_ranks = p, .num_microbatches = m, .virtual_pipeline_size = v});
          ExpectGradientsOfOneRank(it, m, {.look_ahead = 0});
          ExpectGradientsOfOneRank(it, m, {});
          ++num_cases;
        }
      }
    }
  }
  EXPECT_GE(num_cases, 100);
}

// "post" lines of receives among the stage's own lines, of one rank.
std::string LogOfRank(int rank, const Case& it, int look_ahead) {
  std::string log;
  const auto statuses = RunRanks(it.placement.NumRanks(), [&](Communicator& inner) {
    ChecksumStage stage(it.placement);
    const auto watch = [&](bool send, int, int tag) {
      const bool first_tensor = tag % kMaxTensors == 0;
      const bool backward = tag / kMaxTensors % 2 == 1;
      if (!send && first_tensor) absl::StrAppend(&stage.log, backward ? "rb " : "rf ");
      return Fate::kPass;
    };
    HookedCommunicator comm(inner, watch);
    RETURN_IF_ERROR(
        RunSchedule(it.schedule, it.placement, stage, comm, {.look_ahead = look_ahead}));
    if (comm.rank() == rank) log = stage.log;
    return absl::OkStatus();
  });
  EXPECT_EQ(FirstError(statuses), absl::OkStatus());
  return log;
}

// Two ranks, 1F1B, written by hand so that the order of transfers is this test's.
Case TwoRanks() {
  return {.placement = MakeLooped(2, 1),
          .schedule =
              *ParseSchedule("rank 0: 0F0 0SF0 0F1 0SF1 0RB0 0B0 0F2 0SF2 0RB1 0B1 0RB2 0B2\n"
                             "rank 1: 1RF0 1F0 1RF1 1B0 1SB0 1F1 1B1 1SB1 1RF2 1F2 1B2 1SB2\n")};
}

TEST(PipelineExecutor, ReceivesStartWhenTheyAreNeededWithoutLookAhead) {
  EXPECT_EQ(LogOfRank(1, TwoRanks(), 0), "rf F1.0 B1.0 rf F1.1 B1.1 rf F1.2 B1.2 ");
}

TEST(PipelineExecutor, ReceivesStartAsManyComputingActionsEarlyAsToldTo) {
  EXPECT_EQ(LogOfRank(1, TwoRanks(), 1), "rf F1.0 rf B1.0 F1.1 rf B1.1 F1.2 B1.2 ");
  EXPECT_EQ(LogOfRank(1, TwoRanks(), 2), "rf rf F1.0 B1.0 rf F1.1 B1.1 F1.2 B1.2 ");
}

// 0SF2 stands behind 0B0, which needs 1B0.
TEST(PipelineExecutor, NoReceiveStartsBeforeAnActionOnWhichItsDataDepend) {
  EXPECT_EQ(LogOfRank(1, TwoRanks(), 100), "rf rf F1.0 B1.0 rf F1.1 B1.1 F1.2 B1.2 ");
}

TEST(PipelineExecutor, NoGradientIsReceivedBeforeItsForwardIsComputed) {
  EXPECT_EQ(LogOfRank(0, TwoRanks(), 100), "F0.0 rb F0.1 rb B0.0 F0.2 rb B0.1 B0.2 ");
}

// A stage whose forward passes wait for `gate` of them on the other rank.
class GatedStage final : public Stage {
 public:
  GatedStage(Stage& inner, std::latch& gate, bool waits)
      : inner_(inner), gate_(gate), waits_(waits) {}

  absl::Status Forward(int chunk, int microbatch) override {
    if (waits_) gate_.wait();
    RETURN_IF_ERROR(inner_.Forward(chunk, microbatch));
    if (!waits_) gate_.count_down();
    return absl::OkStatus();
  }
  absl::Status Backward(int chunk, int mb) override { return inner_.Backward(chunk, mb); }
  absl::Status BackwardInput(int chunk, int mb) override { return inner_.BackwardInput(chunk, mb); }
  absl::Status BackwardWeight(int chunk, int mb) override {
    return inner_.BackwardWeight(chunk, mb);
  }
  std::vector<Buffer> Buffers(Boundary boundary, int chunk, int mb) override {
    return inner_.Buffers(boundary, chunk, mb);
  }
  void Release(Boundary boundary, int chunk, int mb) override {
    inner_.Release(boundary, chunk, mb);
  }

 private:
  Stage& inner_;
  std::latch& gate_;
  const bool waits_;
};

// Rank 1 begins when rank 0 has computed all its forward passes: as in the simulator, nothing but
// missing data holds a rank up.
TEST(PipelineExecutor, ARankThatIsFarAheadIsNotHeldUpByItsSends) {
  constexpr int kMicrobatches = 12;
  const Case it = MakeCase("gpipe", {.num_ranks = 2, .num_microbatches = kMicrobatches});
  std::latch gate(kMicrobatches);
  const auto statuses = RunRanks(2, [&](Communicator& comm) {
    ChecksumStage inner(it.placement);
    GatedStage stage(inner, gate, /*waits=*/comm.rank() == 1);
    return RunSchedule(it.schedule, it.placement, stage, comm);
  });
  EXPECT_EQ(FirstError(statuses), absl::OkStatus());
}

TEST(PipelineExecutor, RecordsEveryActionAndMessageAndSaysWhatItIsAt) {
  const Case it = TwoRanks();
  const double began = SecondsNow();
  std::latch gate(1);  // rank 1 is at 1F0, which waits for rank 0
  const auto statuses = RunRanks(2, [&](Communicator& comm) -> absl::Status {
    ChecksumStage inner(it.placement);
    GatedStage gated(inner, gate, /*waits=*/true);
    Stage& stage = comm.rank() == 0 ? static_cast<Stage&>(gated) : inner;
    RankTrace trace;
    Heartbeat heartbeat;
    int num_guarded = 0;
    ExecutorOptions options{.trace = &trace, .heartbeat = &heartbeat};
    options.guard = [&](absl::FunctionRef<absl::Status()> work) {
      if (comm.rank() == 1 && ++num_guarded == 2) gate.count_down();
      return work();
    };
    RETURN_IF_ERROR(RunSchedule(it.schedule, it.placement, stage, comm, options));
    if (comm.rank() == 0) return absl::OkStatus();
    EXPECT_EQ(heartbeat.PhaseAndAction(), "action 1SB2");
    EXPECT_EQ(num_guarded, 12);
    std::string computed;
    std::vector<std::string> messages;
    for (const TraceEvent& event : trace.events) {
      EXPECT_TRUE(began <= event.start && event.start <= event.end && event.end <= SecondsNow());
      const std::string text = ToText(event.action);
      if (event.kind == TraceKind::kWait) {
        EXPECT_EQ(event.peer, 0) << text;
        EXPECT_FALSE(IsReceive(event.action.op)) << text;  // but the action that needs it
      } else if (event.kind == TraceKind::kCompute) {
        EXPECT_EQ(event.bytes, 0) << text;
        EXPECT_EQ(event.peer, -1) << text;
        absl::StrAppend(&computed, text, " ");
      } else {
        messages.push_back(absl::StrCat(event.kind == TraceKind::kSend ? "send " : "receive ", text,
                                        " with ", event.peer, ", ", event.bytes, " B"));
      }
    }
    EXPECT_EQ(computed, "1F0 1B0 1F1 1B1 1F2 1B2 ");
    EXPECT_THAT(messages,
                UnorderedElementsAre("receive 1RF0 with 0, 24 B", "receive 1RF1 with 0, 24 B",
                                     "receive 1RF2 with 0, 24 B", "send 1SB0 with 0, 48 B",
                                     "send 1SB1 with 0, 48 B", "send 1SB2 with 0, 48 B"));
    return absl::OkStatus();
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
}

TEST(PipelineExecutor, SendsAreReleasedEachOnce) {
  const Case it = TwoRanks();
  const auto statuses = RunRanks(2, [&](Communicator& comm) {
    ChecksumStage stage(it.placement);
    RETURN_IF_ERROR(RunSchedule(it.schedule, it.placement, stage, comm));
    return stage.num_released == 3 ? absl::OkStatus() : absl::InternalError("released");
  });
  EXPECT_EQ(FirstError(statuses), absl::OkStatus());
}

// Every send is gone at once; nobody receives.
TEST(PipelineExecutor, ASendThatIsGoneIsReleasedBeforeTheNextAction) {
  Schedule schedule{{{}, {}}};
  for (int m = 0; m < 4; ++m) {
    schedule.actions[0].push_back({Op::kForward, 0, m});
    schedule.actions[0].push_back({Op::kSendForward, 0, m});
  }
  const Placement placement = MakeLooped(2, 1);
  const auto statuses = RunRanks(2, [&](Communicator& inner) -> absl::Status {
    ChecksumStage stage(placement);
    HookedCommunicator comm(inner, [](bool, int, int) { return Fate::kDrop; });
    RETURN_IF_ERROR(RunSchedule(schedule, placement, stage, comm));
    if (comm.rank() != 0) return absl::OkStatus();
    EXPECT_EQ(stage.most_live[Boundary::kOutput], 1);
    EXPECT_EQ(stage.num_released, 4);
    return absl::OkStatus();
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
}

TEST(PipelineExecutor, OneRankTakesTheActionsInOrder) {
  SelfCommunicator comm;
  ChecksumStage stage(Placement{{0}});
  EXPECT_TRUE(RunSchedule(*MakeNamedSchedule("single_stage", {.num_microbatches = 3}), Placement{},
                          stage, comm)
                  .ok());
  EXPECT_EQ(stage.log, "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 ");
}

TEST(PipelineExecutor, StopsAtTheFirstErrorAndSaysWhere) {
  SelfCommunicator comm;
  ChecksumStage stage(Placement{{0}});
  stage.fails_at = 0;
  stage.failure = WithExitCode(absl::InternalError("loss is not finite"), ExitCode::kDiverged);
  const absl::Status status = RunSchedule(
      *MakeNamedSchedule("single_stage", {.num_microbatches = 3}), Placement{}, stage, comm);
  EXPECT_EQ(status.message(), "rank 0, action 0F0: loss is not finite");
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(GetExitCode(status), ExitCode::kDiverged);
  EXPECT_EQ(stage.log, "F0.0 ");
}

TEST(PipelineExecutor, RefusesAScheduleForAnotherNumberOfRanks) {
  SelfCommunicator comm;
  ChecksumStage stage(MakeLooped(2, 1));
  EXPECT_THAT(RunSchedule(TwoRanks().schedule, Placement{}, stage, comm).message(),
              HasSubstr("for 2 ranks, run by 1"));
  EXPECT_EQ(stage.log, "");
}

TEST(PipelineExecutor, RefusesAScheduleWithoutItsTransfers) {
  const Placement placement = MakeLooped(2, 1);
  const Schedule schedule = *MakeNamedSchedule("1f1b", {.num_ranks = 2, .num_microbatches = 1});
  const auto statuses = RunRanks(2, [&](Communicator& comm) {
    ChecksumStage stage(placement);
    return RunSchedule(schedule, placement, stage, comm);
  });
  EXPECT_THAT(FirstError(statuses).message(), HasSubstr("stands before it"));
}

}  // namespace
}  // namespace deepnet
