// A rank that has stopped is named, one that takes long but gets on is left alone, and nobody waits
// for ever.
#include "parallel/comm/heartbeat.h"

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "tests/parallel/comm/communicator_contract.h"
#include "tests/support/fault_communicator.h"
#include "tests/support/forwarding_communicator.h"
#include "tests/support/run_ranks.h"
#include "tests/support/thread_limit.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int kRanks = 3;
const absl::Duration kLongest = absl::Milliseconds(100);
// A monitor that says nothing within this time is broken: the test fails and does not wait for
// ever.
const absl::Duration kPatience = absl::Seconds(30);

// Waits on the plain communicator until the job ends, without a beat.
absl::Status StandStill(Communicator& plain) {
  constexpr int kUnusedTag = 9;
  char byte = 0;
  ASSIGN_OR_RETURN(const auto never,
                   plain.Receive({&byte, 1, {}}, (plain.rank() + 1) % plain.size(), kUnusedTag));
  return never->Wait(kPatience);
}

// Keeps what a monitor reported. Standard locks: the thread sanitizer sees through them.
class Heard {
 public:
  HeartbeatMonitor::OnStuck Listener() {
    return [this](const absl::Status& status) {
      const std::lock_guard lock(mutex_);
      message_ = std::string(status.message());
      code_ = GetExitCode(status);
      said_.notify_one();
    };
  }
  // Waits for the message.
  std::string Wait() {
    std::unique_lock lock(mutex_);
    said_.wait_for(lock, absl::ToChronoNanoseconds(kPatience),
                   [this] { return !message_.empty(); });
    return message_;
  }
  ExitCode code() const { return code_; }

 private:
  std::mutex mutex_;
  std::condition_variable said_;
  std::string message_;
  ExitCode code_ = ExitCode::kDone;
};

TEST(Heartbeat, SaysPhaseActionAndCallAndWhetherItWaits) {
  Heartbeat heartbeat;
  heartbeat.Begin("step 1");
  heartbeat.Act("action 2F0");
  heartbeat.Wait("Receive from rank 3 of a group of 4");
  EXPECT_EQ(heartbeat.Read().what, "step 1, action 2F0, Receive from rank 3 of a group of 4");
  EXPECT_EQ(heartbeat.PhaseAndAction(), "step 1, action 2F0");
  EXPECT_TRUE(heartbeat.Read().waits);
  const int64_t before = heartbeat.Read().beats;
  heartbeat.Beat();  // of another thread
  EXPECT_TRUE(heartbeat.Read().waits);
  EXPECT_EQ(heartbeat.Read().beats, before + 1);
  heartbeat.GoOn();
  EXPECT_FALSE(heartbeat.Read().waits);
  EXPECT_EQ(heartbeat.Read().beats, before + 2);
  heartbeat.Wait("Barrier");
  heartbeat.Act("action 3F0");
  EXPECT_FALSE(heartbeat.Read().waits);
  EXPECT_EQ(heartbeat.Read().what, "step 1, action 3F0");
  heartbeat.Begin("step 2", absl::Seconds(5));
  EXPECT_EQ(heartbeat.Read().what, "step 2");
  EXPECT_EQ(heartbeat.Read().longest_silence, absl::Seconds(5));
  heartbeat.Begin("save");
  EXPECT_EQ(heartbeat.Read().longest_silence, absl::InfiniteDuration());
}

TEST(CommTimeout, TheFirstStepHasFourTimesAsLong) {
  ParallelSpec parallel;
  EXPECT_EQ(CommTimeout(parallel, false), absl::Seconds(300));
  EXPECT_EQ(CommTimeout(parallel, true), absl::Seconds(1200));
  parallel.set_comm_timeout_seconds(0.5);
  EXPECT_EQ(CommTimeout(parallel, false), absl::Milliseconds(500));
}

TEST(EndProcessDeathTest, ExitsWithTheCodeOfTheStatus) {
  const absl::Status status = WithExitCode(absl::DeadlineExceededError("stuck"), ExitCode::kHang);
  EXPECT_EXIT(EndProcess(status), ::testing::ExitedWithCode(8), "error: stuck");
  const absl::Status foreign = absl::AbortedError("host\x1b[2J");
  EXPECT_EXIT(EndProcess(foreign), ::testing::ExitedWithCode(9), "error: host\uFFFD.2J");
}

// Before a group is joined.
TEST(MonitorOfOneRank, NamesWhatTakesTooLong) {
  Heard heard;
  Heartbeat heartbeat(/*rank=*/1);
  heartbeat.Begin("action 3F12");
  HeartbeatMonitor monitor(heartbeat, absl::Milliseconds(5), heard.Listener());
  EXPECT_EQ(heard.Wait(),
            "rank 1, action 3F12: no progress for 5ms (parallel.comm_timeout_seconds)");
  EXPECT_EQ(heard.code(), ExitCode::kHang);
}

TEST(MonitorOfOneRank, APhaseThatAllowsLessSilenceIsHeldToThat) {
  Heard heard;
  Heartbeat heartbeat;
  heartbeat.Begin("first step");
  HeartbeatMonitor monitor(heartbeat, absl::Seconds(2), heard.Listener());
  const double start = SecondsNow();
  heartbeat.Begin("second step", absl::Milliseconds(5));
  EXPECT_THAT(heard.Wait(), StartsWith("rank 0, second step: no progress for 5ms"));
  EXPECT_LT(SecondsNow() - start, 1.5);  // looked at 16 times in 2 s
}

// Every phase takes less than a rank may be silent; all of them together take more.
TEST(MonitorOfOneRank, WhatEndedInTimeIsForgotten) {
  Heard heard;
  Heartbeat heartbeat;
  HeartbeatMonitor monitor(heartbeat, absl::Milliseconds(400), heard.Listener());
  for (const char* phase : {"first", "second", "third"}) {
    heartbeat.Begin(phase);
    absl::SleepFor(absl::Milliseconds(200));
  }
  EXPECT_THAT(heard.Wait(), StartsWith("rank 0, third"));
}

// Nobody else is known whom it could wait for.
TEST(MonitorOfOneRank, IsBlamedForItsWaitsToo) {
  Heard heard;
  Heartbeat heartbeat;
  HeartbeatMonitor monitor(heartbeat, absl::Milliseconds(20), heard.Listener());
  heartbeat.Begin("groups of ranks");
  heartbeat.Wait("Split of 4 ranks");
  EXPECT_THAT(heard.Wait(), StartsWith("rank 0, groups of ranks, Split of 4 ranks: no progress"));
}

TEST(MonitorOfOneRank, IsLeftAloneWhileItBeats) {
  Heartbeat heartbeat;
  HeartbeatMonitor monitor(heartbeat, absl::Milliseconds(200),
                           [](const absl::Status& status) { ADD_FAILURE() << status; });
  for (int i = 0; i < 40; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
    heartbeat.Beat();
  }
}

TEST(MonitorOfOneRank, ThatCannotWatchSaysSo) {
  Heartbeat heartbeat(0);
  Heard heard;
  const testing::ThreadLimit none(0);
  HeartbeatMonitor monitor(heartbeat, kLongest, heard.Listener());
  EXPECT_EQ(GetExitCode(monitor.status()), ExitCode::kDoesNotFit);
  SelfCommunicator alone;
  EXPECT_EQ(GetExitCode(monitor.Join(alone)), ExitCode::kDoesNotFit);
}

TEST(MonitorOfOneRank, GoesQuietlyWithALimitThatIsNotOver) {
  Heartbeat heartbeat;
  HeartbeatMonitor monitor(heartbeat, absl::Hours(1),
                           [](const absl::Status& status) { ADD_FAILURE() << status; });
  heartbeat.Begin("a long step");
}

// An error that this rank knows of keeps its exit code, however long the rank takes to leave.
TEST(MonitorOfOneRank, ASlowExitIsNoHang) {
  Heartbeat heartbeat;
  HeartbeatMonitor monitor(heartbeat, absl::Milliseconds(20),
                           [](const absl::Status& status) { ADD_FAILURE() << status; });
  heartbeat.Begin("a step that ends with an error");
  EXPECT_TRUE(monitor.Leave().ok());
  absl::SleepFor(absl::Milliseconds(100));
}

struct Outcome {
  std::vector<absl::Status> statuses;  // [rank]
  std::vector<std::string> reported;
};

using Body =
    std::function<absl::Status(Communicator& plain, Communicator& world, Heartbeat& heartbeat)>;

// Runs every rank's `body` under a monitor, which is left where that is OK.
Outcome RunMonitored(const Body& body, absl::Duration longest = kLongest) {
  Outcome outcome;
  std::mutex mutex;
  outcome.statuses = RunRanks(kRanks, [&](Communicator& plain) -> absl::Status {
    Heartbeat heartbeat(plain.rank());
    MonitoredCommunicator world(plain, heartbeat);
    const auto on_stuck = [&](const absl::Status& status) {
      {
        const std::lock_guard lock(mutex);
        outcome.reported.emplace_back(status.message());
      }
      plain.Abort(static_cast<int>(GetExitCode(status)));
    };
    HeartbeatMonitor monitor(heartbeat, longest, on_stuck);
    RETURN_IF_ERROR(monitor.Join(plain));
    absl::Status status = body(plain, world, heartbeat);
    if (status.ok()) return monitor.Leave();
    plain.Abort(static_cast<int>(GetExitCode(status)));
    return status;
  });
  return outcome;
}

void ExpectAllEnded(const Outcome& outcome) {
  for (const absl::Status& status : outcome.statuses) {
    EXPECT_EQ(GetExitCode(status), ExitCode::kHang) << status;
  }
  EXPECT_THAT(outcome.reported, Not(IsEmpty()));
}

TEST(Monitor, ARankThatCannotWatchIsKnownToAll) {
  const auto statuses = RunRanks(2, [](Communicator& world) -> absl::Status {
    Heartbeat heartbeat(world.rank());
    Heard heard;
    if (world.rank() == 1) RETURN_IF_ERROR(world.Barrier());  // after rank 0
    std::optional<testing::ThreadLimit> none;
    if (world.rank() == 1) none.emplace(0);
    HeartbeatMonitor monitor(heartbeat, kPatience, heard.Listener());
    none.reset();
    if (world.rank() == 0) RETURN_IF_ERROR(world.Barrier());
    return monitor.Join(world);
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(GetExitCode(status), ExitCode::kDoesNotFit) << status;
    EXPECT_TRUE(IsAgreed(status)) << status;
  }
}

TEST(Monitor, ARankThatHasStoppedIsNamedWithWhatItIsAt) {
  const Outcome outcome =
      RunMonitored([](Communicator& plain, Communicator& world, Heartbeat& heartbeat) {
        heartbeat.Begin("step 4");
        heartbeat.Act("sums over ranks");
        return world.rank() == 1 ? StandStill(plain) : world.Barrier();
      });
  ExpectAllEnded(outcome);
  EXPECT_THAT(outcome.reported,
              Each(AllOf(HasSubstr("rank 1, step 4, sums over ranks: no progress for 100ms"),
                         Not(HasSubstr("rank 0")), Not(HasSubstr("rank 2")))));
}

// NCCL's collectives cannot say which rank has not come.
TEST(Monitor, WhatIsLateIsSaidWithTheRankThatWaitsForNobody) {
  const absl::Duration longest = absl::Seconds(2);
  const auto body = [&](Communicator& plain, Communicator& world, Heartbeat& heartbeat) {
    heartbeat.Begin("step 4");
    if (world.rank() == 1) return StandStill(plain);
    char byte = 0;  // of the other rank that waits
    ASSIGN_OR_RETURN(const auto got, world.Receive({&byte, 1, {}}, 2 - world.rank(), 0));
    const absl::Status late = got->Wait(longest / 2);
    EXPECT_THAT(std::string(late.message()), StartsWith("seems to wait for rank 1 (step 4): "));
    return StandStill(plain);
  };
  const Outcome outcome = RunMonitored(body, longest);
  ExpectAllEnded(outcome);
}

TEST(Monitor, RanksThatWaitForEachOtherAreAllNamedWithTheirPeers) {
  const Outcome outcome =
      RunMonitored([](Communicator&, Communicator& world, Heartbeat& heartbeat) {
        heartbeat.Begin("step 4");
        char byte = 0;
        const auto got = world.Receive({&byte, 1, {}}, (world.rank() + 1) % kRanks, /*tag=*/0);
        return got.ok() ? (*got)->Wait(kPatience) : got.status();
      });
  ExpectAllEnded(outcome);
  EXPECT_THAT(outcome.reported,
              Each(AllOf(HasSubstr("all ranks wait: rank 0, step 4, Receive from rank 1"),
                         HasSubstr("rank 1, step 4, Receive from rank 2"),
                         HasSubstr("rank 2, step 4, Receive from rank 0"))));
}

// Far longer than anybody may be silent: a save on a slow disk.
TEST(Monitor, WhoTakesLongButGetsOnIsLeftAlone) {
  const Outcome outcome =
      RunMonitored([](Communicator&, Communicator& world, Heartbeat& heartbeat) {
        const double end = SecondsNow() + 6 * absl::ToDoubleSeconds(kLongest);
        while (world.rank() == 2 && SecondsNow() < end) heartbeat.Beat();
        return world.Barrier();
      });
  EXPECT_TRUE(FirstError(outcome.statuses).ok()) << FirstError(outcome.statuses);
  EXPECT_THAT(outcome.reported, IsEmpty());
}

TEST(Monitor, ARankThatDoesNotComeToTheEndIsOneThatHasStopped) {
  const Outcome outcome =
      RunMonitored([](Communicator& plain, Communicator&, Heartbeat& heartbeat) {
        heartbeat.Begin("end");
        return plain.rank() == 2 ? StandStill(plain) : absl::OkStatus();
      });
  ExpectAllEnded(outcome);
  EXPECT_THAT(outcome.reported, Each(HasSubstr("rank 2, end")));
}

TEST(Monitor, ARankThatFailsLeavesTheOthersToWhoeverEndsTheJob) {
  const Outcome outcome = RunMonitored([](Communicator& plain, Communicator& world, Heartbeat&) {
    if (plain.rank() != 0) return world.Barrier();
    return WithExitCode(absl::DataLossError("its own"), ExitCode::kData);
  });
  for (const absl::Status& status : outcome.statuses) {
    EXPECT_EQ(GetExitCode(status), ExitCode::kData) << status;
  }
  EXPECT_THAT(outcome.reported, IsEmpty());
}

TEST(Monitor, ARankThatDoesNotComeToTheBeginningEndsTheOthers) {
  std::vector<std::string> reported;
  std::mutex mutex;
  const auto statuses = RunRanks(kRanks, [&](Communicator& plain) -> absl::Status {
    if (plain.rank() == 1) return StandStill(plain);
    Heartbeat heartbeat(plain.rank());
    heartbeat.Begin("begin of the run");
    const auto on_stuck = [&](const absl::Status& status) {
      const std::lock_guard lock(mutex);
      reported.emplace_back(status.message());
      plain.Abort(static_cast<int>(GetExitCode(status)));
    };
    HeartbeatMonitor monitor(heartbeat, kLongest, on_stuck);
    return monitor.Join(plain);
  });
  for (const absl::Status& status : statuses) EXPECT_EQ(GetExitCode(status), ExitCode::kHang);
  EXPECT_THAT(reported, Each(HasSubstr("begin of the run, Split of 3 ranks")));
}

// The threads of rank 1 have all stopped, also the one that would say so. Rank 0 is more patient.
TEST(Monitor, ARankThatIsHeardNoMoreIsAmongThoseThatWereHeardLast) {
  Heard heard;
  const auto statuses = RunRanks(kRanks, [&](Communicator& plain) -> absl::Status {
    if (plain.rank() == 1) {  // joins as the others do
      RETURN_IF_ERROR(AgreeOnStatus(plain, absl::OkStatus()));
      ASSIGN_OR_RETURN(const auto group, plain.Split(/*color=*/0, /*key=*/plain.rank()));
      return StandStill(plain);
    }
    Heartbeat heartbeat(plain.rank());
    const auto on_stuck = [&](const absl::Status& status) {
      heard.Listener()(status);
      plain.Abort(static_cast<int>(GetExitCode(status)));
    };
    HeartbeatMonitor monitor(heartbeat, plain.rank() == 0 ? kPatience : absl::Seconds(1), on_stuck);
    RETURN_IF_ERROR(monitor.Join(plain));
    return StandStill(plain);
  });
  for (const absl::Status& status : statuses) EXPECT_EQ(GetExitCode(status), ExitCode::kHang);
  EXPECT_EQ(heard.Wait(),
            "rank 2 hears nothing of another one; last heard: rank 0, ; rank 1, : no progress for "
            "1s (parallel.comm_timeout_seconds)");
}

class MonitoredContract : public ::testing::TestWithParam<ContractCase> {};

TEST_P(MonitoredContract, Holds) {
  const auto statuses = RunRanks(3, [](Communicator& world) {
    Heartbeat heartbeat(world.rank());
    MonitoredCommunicator comm(world, heartbeat, /*comm_timeout=*/absl::Hours(1));
    GetParam().run(comm);
    return absl::OkStatus();
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
}

INSTANTIATE_TEST_SUITE_P(Cases, MonitoredContract,
                         ::testing::ValuesIn(ContractCases().begin(), ContractCases().end()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(MonitoredCommunicator, APeerThatNeverComesIsNamedAndEndsTheJob) {
  const auto statuses = RunRanks(3, [](Communicator& world) -> absl::Status {
    if (world.rank() == 2) return StandStill(world);
    Heartbeat heartbeat(40 + world.rank());
    MonitoredCommunicator comm(world, heartbeat, /*comm_timeout=*/absl::Milliseconds(20));
    heartbeat.Begin("sum of everything");
    return AgreeOnStatus(comm, absl::OkStatus());
  });
  for (const absl::Status& status : statuses) EXPECT_EQ(GetExitCode(status), ExitCode::kHang);
  EXPECT_TRUE(absl::IsAborted(statuses[2])) << statuses[2];
  EXPECT_THAT(std::string(FirstError(statuses).message()),
              AllOf(HasSubstr("rank 4"), HasSubstr("sum of everything"),
                    HasSubstr("nothing has moved for 20ms (parallel.comm_timeout_seconds)"),
                    HasSubstr("rank 2")));
}

// Makes connections for as long as it may.
class Unconnected final : public ForwardingCommunicator {
 public:
  explicit Unconnected(Communicator& inner) : ForwardingCommunicator(inner) {}
  absl::Status Connect(const Connections&, absl::Duration limit) override {
    return absl::DeadlineExceededError(absl::StrCat("in ", absl::FormatDuration(limit)));
  }
};

TEST(MonitoredCommunicator, ConnectionsTakeNoLongerThanMessagesMay) {
  const auto statuses = RunRanks(2, [](Communicator& world) {
    Unconnected never(world);
    Heartbeat heartbeat(world.rank());
    MonitoredCommunicator comm(never, heartbeat, /*comm_timeout=*/absl::Milliseconds(20));
    return comm.Connect({}, absl::Hours(1));
  });
  EXPECT_EQ(GetExitCode(statuses[0]), ExitCode::kHang) << statuses[0];
  EXPECT_THAT(std::string(FirstError(statuses).message()), HasSubstr("in 20ms"));
}

// Its groups are of this rank alone; their gathers run into their limits.
class LateGroup final : public ForwardingCommunicator {
 public:
  LateGroup() : ForwardingCommunicator(std::make_unique<SelfCommunicator>()) {}
  TransferOr AllGather(Buffer, std::span<const Buffer>) override {
    return std::make_unique<LateTransfer>();
  }

 private:
  class LateTransfer final : public Transfer {
   public:
    absl::Status Wait(absl::Duration limit) override {
      return absl::DeadlineExceededError(absl::StrCat("in ", absl::FormatDuration(limit)));
    }
    bool Done() override { return false; }
  };
};

class WithLateGroups final : public ForwardingCommunicator {
 public:
  WithLateGroups() : ForwardingCommunicator(std::make_unique<SelfCommunicator>()) {}
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int, int) override {
    return std::make_unique<LateGroup>();
  }
};

TEST(MonitoredCommunicator, AGroupHasTheSameLimitAndIsLateInThePhaseInWhichItsCallBegan) {
  WithLateGroups world;
  Heartbeat heartbeat(/*rank=*/7);
  MonitoredCommunicator comm(world, heartbeat, /*comm_timeout=*/absl::Hours(1));
  const auto group = comm.Split(0, 0);
  ASSERT_TRUE(group.ok()) << group.status();
  heartbeat.Begin("gather");
  const auto late = (*group)->AllGather({}, std::vector<Buffer>(1));
  heartbeat.Begin("later");
  const absl::Status status = Finish(late);
  EXPECT_EQ(GetExitCode(status), ExitCode::kHang);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("rank 7, gather: nothing has moved for 1h"), HasSubstr("in 1h")));
}

TEST(MonitoredCommunicator, AWaitWithALimitOfItsOwnKeepsIt) {
  const auto statuses = RunRanks(2, [](Communicator& world) -> absl::Status {
    Heartbeat heartbeat(world.rank());
    MonitoredCommunicator comm(world, heartbeat, /*comm_timeout=*/absl::Hours(1));
    char byte = 5;
    if (comm.rank() == 1) {
      RETURN_IF_ERROR(comm.Barrier());
      ASSIGN_OR_RETURN(const auto sent, comm.Send({&byte, 1, {}}, 0, 0));
      return sent->Wait();
    }
    ASSIGN_OR_RETURN(const auto got, comm.Receive({&byte, 1, {}}, 1, 0));
    const absl::Status early = got->Wait(absl::Milliseconds(1));
    EXPECT_TRUE(absl::IsDeadlineExceeded(early)) << early;
    EXPECT_FALSE(HasExitCode(early));  // nobody has ended anything
    RETURN_IF_ERROR(comm.Barrier());
    return got->Wait();
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
}

TEST(MonitoredCommunicator, AWaitThatIsGivenUpAfterItsLimitEndsTheJobAsAHang) {
  const auto statuses = RunRanks(2, [](Communicator& world) -> absl::Status {
    if (world.rank() == 1) return StandStill(world);
    Heartbeat heartbeat(/*rank=*/0);
    MonitoredCommunicator comm(world, heartbeat);
    char byte = 0;
    {
      ASSIGN_OR_RETURN(const auto got, comm.Receive({&byte, 1, {}}, 1, 0));
      EXPECT_TRUE(absl::IsDeadlineExceeded(got->Wait(absl::Milliseconds(1))));
    }
    return StandStill(world);
  });
  for (const absl::Status& status : statuses) EXPECT_EQ(GetExitCode(status), ExitCode::kHang);
}

TEST(MonitoredCommunicator, ALostPeerEndsTheJobWithItsOwnCode) {
  const auto statuses = RunRanks(2, [](Communicator& world) -> absl::Status {
    if (world.rank() == 1) return StandStill(world);
    FaultCommunicator dying(world, {{.kind = Fault::Kind::kDie, .at_call = 0, .delay = {}}});
    Heartbeat heartbeat(/*rank=*/0);
    MonitoredCommunicator comm(dying, heartbeat, /*comm_timeout=*/absl::Hours(1));
    heartbeat.Begin("gather");
    return comm.Barrier();
  });
  EXPECT_THAT(std::string(statuses[0].message()),
              AllOf(HasSubstr("rank 0, gather: a peer is lost"), HasSubstr("died at call 0")));
  for (const absl::Status& status : statuses) EXPECT_EQ(GetExitCode(status), ExitCode::kPeerLost);
}

}  // namespace
}  // namespace deepnet
