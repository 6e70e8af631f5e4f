#include "trainer/monitored_run.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "tests/support/forwarding_communicator.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/run_ranks.h"

namespace deepnet {
namespace {

constexpr int kRanks = 2;
const absl::Duration kLongest = absl::Milliseconds(80);  // a rank may be silent

ParallelSpec ShortLimits() {
  ParallelSpec parallel;
  parallel.set_comm_timeout_seconds(absl::ToDoubleSeconds(kLongest) / 4);
  return parallel;
}

// Takes far longer to go than a rank may be silent, and says nothing meanwhile.
struct SlowToGo {
  ~SlowToGo() { absl::SleepFor(4 * kLongest); }
};

struct Outcome {
  std::vector<absl::Status> statuses;  // [rank]
  std::vector<std::string> reported;   // by monitors
};

// Runs `body` on every rank as Train does: what a run is made of goes after its watch.
template <typename Body>
Outcome RunBody(Body body) {
  Outcome outcome;
  std::mutex mutex;
  outcome.statuses = RunRanks(kRanks, [&](Communicator& world) -> absl::Status {
    testing::MemoryFileSystem files;
    MonitoredRun run(ShortLimits(), world, files, [&](const absl::Status& status) {
      {
        const std::lock_guard lock(mutex);
        outcome.reported.emplace_back(status.message());
      }
      world.Abort(static_cast<int>(GetExitCode(status)));
    });
    RETURN_IF_ERROR(run.Join());
    std::unique_ptr<SlowToGo> parts;
    return run.End(body(run, parts));
  });
  return outcome;
}

TEST(MonitoredRun, ASlowExitKeepsTheExitCodeOfTheError) {
  const Outcome outcome = RunBody([](MonitoredRun& run, std::unique_ptr<SlowToGo>& parts) {
    parts = std::make_unique<SlowToGo>();
    run.heartbeat().Begin("step 7", kLongest);
    return AgreeOnStatus(run.world(),
                         WithExitCode(absl::AbortedError("diverged"), ExitCode::kDiverged));
  });
  for (const absl::Status& status : outcome.statuses) {
    EXPECT_EQ(GetExitCode(status), ExitCode::kDiverged) << status;
  }
  EXPECT_THAT(outcome.reported, ::testing::IsEmpty());
}

TEST(MonitoredRun, AnErrorOfOneRankEndsTheOthersWithItsCode) {
  const Outcome outcome = RunBody([](MonitoredRun& run, auto&) -> absl::Status {
    if (run.world().rank() == 0) return run.world().Barrier();
    return WithExitCode(absl::DataLossError("its own"), ExitCode::kData);
  });
  for (const absl::Status& status : outcome.statuses) {
    EXPECT_EQ(GetExitCode(status), ExitCode::kData) << status;
  }
  EXPECT_THAT(outcome.reported, ::testing::IsEmpty());
}

// Tells which exit code the last rank ends the job with.
class LastRanksAbort final : public ForwardingCommunicator {
 public:
  LastRanksAbort(Communicator& inner, std::atomic<int>& code)
      : ForwardingCommunicator(inner), code_(code) {}
  void Abort(int exit_code) override {
    if (rank() + 1 == size()) code_ = exit_code;
    inner().Abort(exit_code);
  }

 private:
  std::atomic<int>& code_;
};

TEST(MonitoredRun, ARanksOwnErrorEndsTheJobBeforeItReturns) {
  std::atomic<int> code{-1};
  const auto statuses = RunRanks(kRanks, [&](Communicator& plain) -> absl::Status {
    LastRanksAbort world(plain, code);
    testing::MemoryFileSystem files;
    MonitoredRun run(ParallelSpec(), world, files, {});
    RETURN_IF_ERROR(run.Join());
    const bool first = world.rank() == 0;
    const absl::Status status =
        run.End(first ? run.world().Barrier()
                      : WithExitCode(absl::DataLossError("its own"), ExitCode::kData));
    EXPECT_TRUE(first || code == static_cast<int>(ExitCode::kData)) << code;
    return status;
  });
  EXPECT_EQ(GetExitCode(FirstError(statuses)), ExitCode::kData);
}

TEST(MonitoredRun, WaitsAreCutIntoQuartersOfTheTimeThatAFirstStepMayTake) {
  const ParallelSpec parallel;
  SelfCommunicator world;
  testing::MemoryFileSystem files;
  MonitoredRun run(parallel, world, files, {});
  std::vector<absl::Duration> waits;
  const auto wait = run.Beating([&](absl::Duration time) { waits.push_back(time); });
  const absl::Duration slice = CommTimeout(parallel, /*first_step=*/true) / 4;
  wait(2 * slice + absl::Seconds(1));
  EXPECT_THAT(waits, ::testing::ElementsAre(slice, slice, absl::Seconds(1)));
}

// Rank 1 works on files for far longer than a rank may be silent; no call takes that long.
TEST(MonitoredRun, ARankWhoseFilesAreSlowIsWaitedFor) {
  const Outcome outcome = RunBody([](MonitoredRun& run, auto&) -> absl::Status {
    for (int i = 0; run.world().rank() == 1 && i < 16; ++i) {
      absl::SleepFor(kLongest / 4);
      RETURN_IF_ERROR(run.files().MakeFolder("run"));
    }
    return run.world().Barrier();
  });
  for (const absl::Status& status : outcome.statuses) EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(outcome.reported, ::testing::IsEmpty());
}

// The lock's own thread beats while the run stands still.
TEST(MonitoredRun, TheBeatOfTheRunFoldersLockIsNotTheRuns) {
  const Outcome outcome = RunBody([](MonitoredRun& run, auto&) -> absl::Status {
    run.heartbeat().Begin("step 3");
    const double end = 4 * absl::ToDoubleSeconds(kLongest);
    for (double waited = 0.0; run.world().rank() == 1 && waited < end; waited += 0.01) {
      absl::SleepFor(absl::Milliseconds(10));
      Exists(run.files(), "run/lock").status().IgnoreError();
    }
    return run.world().Barrier();
  });
  for (const absl::Status& status : outcome.statuses) {
    EXPECT_EQ(GetExitCode(status), ExitCode::kHang) << status;
  }
  EXPECT_THAT(outcome.reported, ::testing::Each(::testing::HasSubstr("rank 1, step 3")));
}

TEST(MonitoredRun, AWaitForAnotherRunBeats) {
  const Outcome outcome = RunBody([](MonitoredRun& run, auto&) -> absl::Status {
    const auto wait = run.Beating([](absl::Duration time) { absl::SleepFor(time); });
    if (run.world().rank() == 0) wait(3 * kLongest);
    return run.world().Barrier();
  });
  for (const absl::Status& status : outcome.statuses) EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(outcome.reported, ::testing::IsEmpty());
}

}  // namespace
}  // namespace deepnet
