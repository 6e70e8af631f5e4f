// Ranks that watch over each other: who has stopped is named, who takes long is left alone.
#include "parallel/exec/vigil.h"

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "tests/support/run_ranks.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kRanks = 3;
const absl::Duration kLongest = absl::Milliseconds(100);

// Waits on the plain communicator until the job ends, without a beat.
absl::Status StandStill(Communicator& plain) {
  constexpr int kUnusedTag = 9;
  char byte = 0;
  ASSIGN_OR_RETURN(const auto never,
                   plain.Receive({&byte, 1, {}}, (plain.rank() + 1) % kRanks, kUnusedTag));
  return never->Wait();
}

struct Outcome {
  std::vector<absl::Status> statuses;  // [rank]
  std::vector<std::string> reported;
};

using Body = std::function<absl::Status(Communicator& plain, Communicator& world, Pulse& pulse)>;

// Every rank's `body` under a vigil, which is ended where that is OK.
Outcome RunWatched(const Body& body) {
  Outcome outcome;
  std::mutex mutex;
  outcome.statuses = RunRanks(kRanks, [&](Communicator& plain) -> absl::Status {
    Pulse pulse;
    PulseCommunicator world(plain, pulse);
    const auto on_stuck = [&](const absl::Status& status) {
      {
        const std::lock_guard lock(mutex);
        outcome.reported.emplace_back(status.message());
      }
      plain.Abort(static_cast<int>(GetExitCode(status)));
    };
    ASSIGN_OR_RETURN(const auto vigil, Vigil::Keep(plain, pulse, kLongest, on_stuck));
    const absl::Status status = body(plain, world, pulse);
    if (status.ok()) return vigil->End();
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

TEST(Vigil, ARankThatHasStoppedIsNamedWithWhatItIsAt) {
  const Outcome outcome = RunWatched([](Communicator& plain, Communicator& world, Pulse& pulse) {
    pulse.Begin("step 4");
    pulse.Act("sums over ranks");
    return world.rank() == 1 ? StandStill(plain) : world.Barrier();
  });
  ExpectAllEnded(outcome);
  EXPECT_THAT(outcome.reported,
              Each(AllOf(HasSubstr("rank 1, step 4, sums over ranks: no progress for 100ms"),
                         Not(HasSubstr("rank 0")), Not(HasSubstr("rank 2")))));
}

TEST(Vigil, RanksThatWaitForEachOtherAreAllNamedWithTheirPeers) {
  const Outcome outcome = RunWatched([](Communicator&, Communicator& world, Pulse& pulse) {
    pulse.Begin("step 4");
    char byte = 0;
    const auto got = world.Receive({&byte, 1, {}}, (world.rank() + 1) % kRanks, /*tag=*/0);
    return got.ok() ? (*got)->Wait() : got.status();
  });
  ExpectAllEnded(outcome);
  EXPECT_THAT(outcome.reported,
              Each(AllOf(HasSubstr("all ranks wait: rank 0, step 4, Receive from rank 1"),
                         HasSubstr("rank 1, step 4, Receive from rank 2"),
                         HasSubstr("rank 2, step 4, Receive from rank 0"))));
}

// Far longer than anybody may be silent: a save on a slow disk.
TEST(Vigil, WhoTakesLongButGetsOnIsLeftAlone) {
  const Outcome outcome = RunWatched([](Communicator&, Communicator& world, Pulse& pulse) {
    const double end = SecondsNow() + 6 * absl::ToDoubleSeconds(kLongest);
    while (world.rank() == 2 && SecondsNow() < end) pulse.Beat();
    return world.Barrier();
  });
  EXPECT_TRUE(FirstError(outcome.statuses).ok()) << FirstError(outcome.statuses);
  EXPECT_THAT(outcome.reported, IsEmpty());
}

TEST(Vigil, ARankThatDoesNotComeToTheEndIsOneThatHasStopped) {
  const Outcome outcome = RunWatched([](Communicator& plain, Communicator&, Pulse& pulse) {
    pulse.Begin("end");
    return plain.rank() == 2 ? StandStill(plain) : absl::OkStatus();
  });
  ExpectAllEnded(outcome);
  EXPECT_THAT(outcome.reported, Each(HasSubstr("rank 2, end")));
}

TEST(Vigil, ARankThatFailsLeavesTheOthersToWhoeverEndsTheJob) {
  const Outcome outcome = RunWatched([](Communicator& plain, Communicator& world, Pulse&) {
    if (plain.rank() != 0) return world.Barrier();
    return WithExitCode(absl::DataLossError("its own"), ExitCode::kData);
  });
  for (const absl::Status& status : outcome.statuses) {
    EXPECT_EQ(GetExitCode(status), ExitCode::kData) << status;
  }
  EXPECT_THAT(outcome.reported, IsEmpty());
}

TEST(Vigil, ARankThatDoesNotComeToTheBeginningEndsTheOthers) {
  std::vector<std::string> reported;
  std::mutex mutex;
  const auto statuses = RunRanks(kRanks, [&](Communicator& plain) -> absl::Status {
    if (plain.rank() == 1) return StandStill(plain);
    const Pulse pulse;
    const auto on_stuck = [&](const absl::Status& status) {
      const std::lock_guard lock(mutex);
      reported.emplace_back(status.message());
      plain.Abort(static_cast<int>(GetExitCode(status)));
    };
    return Vigil::Keep(plain, pulse, kLongest, on_stuck).status();
  });
  for (const absl::Status& status : statuses) EXPECT_EQ(GetExitCode(status), ExitCode::kHang);
  EXPECT_THAT(reported, Each(HasSubstr("begin of the run: Split of 3 ranks")));
}

TEST(Pulse, SaysPhaseActionAndCallAndWhetherItWaits) {
  Pulse pulse;
  pulse.Begin("step 1");
  pulse.Act("action 2F0");
  pulse.Wait("Receive from rank 3 of a group of 4");
  EXPECT_EQ(pulse.Read().what, "step 1, action 2F0, Receive from rank 3 of a group of 4");
  EXPECT_TRUE(pulse.Read().waits);
  const int64_t before = pulse.Read().beats;
  pulse.Beat();  // of another thread
  EXPECT_TRUE(pulse.Read().waits);
  EXPECT_EQ(pulse.Read().beats, before + 1);
  pulse.GoOn();
  EXPECT_FALSE(pulse.Read().waits);
  EXPECT_EQ(pulse.Read().beats, before + 2);
  pulse.Wait("Barrier");
  pulse.Act("action 3F0");
  EXPECT_FALSE(pulse.Read().waits);
  EXPECT_EQ(pulse.Read().what, "step 1, action 3F0");
  pulse.Begin("step 2");
  EXPECT_EQ(pulse.Read().what, "step 2");
}

}  // namespace
}  // namespace deepnet
