// Whole training runs in which one rank stands still at one of its calls of the communicator:
// nothing hangs for ever, whatever the run is at. Ranks are threads, everything else is what
// `deepnet train` does; on GPUs, each rank has its own, and NCCL's messages are among its calls.
//
// Environment: DEEPNET_FAULT_STRIDE, at every how manieth call a rank stands still in turn (default
// 21).
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include <c10/core/impl/VirtualGuardImpl.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "launch/device_group.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/file_system.h"
#include "parallel/base/logging.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/backends.h"
#include "tests/parity/training_runs.h"
#include "tests/support/devices.h"
#include "tests/support/fault_communicator.h"
#include "tests/support/run_ranks.h"
#include "trainer/checkpoint/run_lock.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/trainer.h"

namespace deepnet {
namespace {

// For one message; a rank may be silent four times as long. Where this is too short for a busy
// host, a rank is named that is only slow; then the run is repeated with more.
constexpr double kShortLimitSeconds = 0.25;
constexpr double kMaxLimitSeconds = 8.0;
constexpr int kRunsAtOnce = 6;  // they wait most of the time
constexpr int kMostRanks = 4;   // of a run
constexpr int kPlannedGib = 8;  // LibTorch keeps the memory of earlier runs

// All calls take minutes (long_stuck_train_test).
int64_t FaultStride() {
  const char* const text = std::getenv("DEEPNET_FAULT_STRIDE");
  return text != nullptr ? std::atoll(text) : 21;
}

struct Layout {
  int stages = 1, replicas = 1;

  int NumRanks() const { return stages * replicas; }
};

// The outcome of a run.
struct Outcome {
  std::vector<absl::Status> statuses;  // [rank]
  std::vector<std::string> reported;   // of ranks that watch over others
  absl::Status end;                    // of the job, as the rank sees it that stands still
  int64_t calls = 0;                   // of the rank that is told to stand still

  // Returns the reports of all ranks but one. Ranks that have lost another one saw the job's end.
  std::string TextWithout(int rank) const {
    std::string text = absl::StrJoin(reported, "\n");
    for (size_t r = 0; r < statuses.size(); ++r) {
      if (static_cast<int>(r) == rank || GetExitCode(statuses[r]) == ExitCode::kPeerLost) continue;
      absl::StrAppend(&text, "\n", statuses[r].ToString());
    }
    return text;
  }
};

absl::Status WaitForTheEnd(Communicator& world) {
  constexpr int kUnusedTag = 7;
  char byte = 0;
  ASSIGN_OR_RETURN(const auto never,
                   world.Receive({&byte, 1, {}}, (world.rank() + 1) % world.size(), kUnusedTag));
  return never->Wait();
}

class StuckTrainTest : public testing::CorpusTest,
                       public ::testing::WithParamInterface<at::DeviceType> {
 protected:
  static bool OnGpus() { return GetParam() != at::kCPU; }
  static int RunsAtOnce(const Layout& layout) {
    return OnGpus() ? std::min(kRunsAtOnce, *CountGpus() / layout.NumRanks()) : kRunsAtOnce;
  }

  // Saves after the second step and at the end, validates in between.
  static RunSpec Run(const std::string& folder, const Layout& layout, double limit_seconds) {
    RunSpec run;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
        R"(seed: 3
           model { encoder_layers: 2 decoder_layers: 2 d_model: 16 ffn_dim: 32 num_heads: 2
                   residual: DEEPNORM max_positions: 300 }
           data { folder: 'corpus' max_sentence_tokens: 60 global_microbatches: 4
                  microbatch { max_source_tokens: 62 max_target_tokens: 62 max_sentences: 2 } }
           optim { learning_rate: 2e-3 warmup_steps: 4 clip_norm: 1 }
           compute { dtype: FLOAT32 threads_per_rank: 1 }
           train { steps: 3 checkpoint_every_steps: 2 log_every_steps: 1 validate_every_steps: 3
                   validate_sentences: 1 }
           decode { beam_size: 1 max_tokens: 3 })",
        &run));
    run.set_folder(absl::StrCat(folder, OnGpus() ? "-gpu" : ""));
    run.mutable_compute()->set_device(OnGpus() ? "cuda" : "cpu");
    if (OnGpus()) run.mutable_cluster()->set_device_memory_gib(kPlannedGib);
    run.mutable_parallel()->set_pipeline_parallel_size(layout.stages);
    run.mutable_parallel()->set_data_parallel_size(layout.replicas);
    run.mutable_parallel()->set_comm_timeout_seconds(limit_seconds);
    return WithDefaults(run);
  }

  // Returns the communicator of a rank that takes the GPU `index`; on CPUs null, for `hosts`.
  static absl::StatusOr<std::unique_ptr<Communicator>> TakeGpu(Communicator& hosts, int index) {
    if (!OnGpus()) return nullptr;
    const c10::impl::VirtualGuardImpl guard(GetParam());
    guard.setDevice({GetParam(), static_cast<c10::DeviceIndex>(index)});
    return MakeNcclCommunicator(hosts, index);
  }

  // `rank` stands still at its call `at_call` until the job ends; < 0: at none. Runs at the same
  // time differ in `slot`, so that they have GPUs of their own.
  static Outcome TrainWith(const Layout& layout, int rank, int64_t at_call, int slot = 0,
                           double limit_seconds = 0.0) {
    Outcome outcome;
    std::mutex mutex;
    const RunSpec run = Run(absl::StrCat("run-", num_runs_++), layout, limit_seconds);
    outcome.statuses = RunRanks(layout.NumRanks(), [&](Communicator& plain) -> absl::Status {
      ASSIGN_OR_RETURN(const auto gpus, TakeGpu(plain, slot * layout.NumRanks() + plain.rank()));
      std::ostringstream lines;
      Logger log({.stream = &lines});
      std::vector<Fault> faults;
      if (plain.rank() == rank && at_call >= 0) {
        faults.push_back({.kind = Fault::Kind::kDie, .at_call = at_call, .delay = {}});
      }
      FaultCommunicator world(gpus != nullptr ? *gpus : plain, faults,
                              [&] { outcome.end = WaitForTheEnd(plain); });
      const auto on_stuck = [&](const absl::Status& status) {
        {
          const std::lock_guard lock(mutex);
          outcome.reported.emplace_back(status.message());
        }
        plain.Abort(static_cast<int>(GetExitCode(status)));
      };
      const absl::Status status =
          Train(run, {.root = root_.string(), .world = &world, .on_stuck = on_stuck}, log);
      if (plain.rank() == rank) outcome.calls = world.num_calls();
      return status;
    });
    std::filesystem::remove_all(root_ / run.folder());
    return outcome;
  }

  // A rank stands still at every call in turn, or at every FaultStride-th.
  static void ExpectEveryCallEndsTheJob(const Layout& layout, int rank) {
    const Outcome whole = TrainWith(layout, rank, -1);
    ASSERT_TRUE(FirstError(whole.statuses).ok()) << FirstError(whole.statuses);
    ASSERT_GT(whole.calls, 40);
    std::atomic<int64_t> next{0};
    std::vector<std::thread> workers;
    for (int slot = 0; slot < RunsAtOnce(layout); ++slot) {
      workers.emplace_back([&, slot] {
        for (int64_t call; (call = next.fetch_add(FaultStride())) < whole.calls;) {
          ExpectEnded(TrainUntilNamed(layout, rank, call, slot), layout, rank, call);
        }
      });
    }
    for (std::thread& worker : workers) worker.join();
  }

  static Outcome TrainUntilNamed(const Layout& layout, int rank, int64_t call, int slot) {
    for (double limit = kShortLimitSeconds;; limit *= 2) {
      Outcome outcome = TrainWith(layout, rank, call, slot, limit);
      if (limit >= kMaxLimitSeconds || Names(outcome, layout, rank, call)) return outcome;
    }
  }

  // The rank of the whole job, or that in its group: the stage in a pipeline's messages, the
  // replica in sums. At the first call the ranks do not know each other yet.
  static bool Names(const Outcome& outcome, const Layout& layout, int rank, int64_t call) {
    if (outcome.end.ok()) return false;  // somebody was late before the rank stood still
    bool named = call == 0;
    const std::vector<std::string> lines = absl::StrSplit(outcome.TextWithout(rank), '\n');
    for (const std::string& line : lines) {
      named |= IsOfMonitor(line) ? BlamesRank(line, rank) : MentionsRank(line, layout, rank);
    }
    return named;
  }

  static bool IsOfMonitor(const std::string& line) {
    return absl::StrContains(line, ": no progress");
  }

  // Not as somebody that another one waits for: as the one that has stopped. In a Split nobody can
  // say for whom it waits.
  static bool BlamesRank(const std::string& line, int rank) {
    if (absl::StrContains(line, "all ranks wait: ")) return absl::StrContains(line, "Split");
    const std::string name = absl::StrCat("rank ", rank, ", ");
    return absl::StartsWith(line, name) || absl::StrContains(line, absl::StrCat("; ", name)) ||
           absl::StrContains(line, absl::StrCat("last heard: ", name));
  }

  static bool MentionsRank(const std::string& line, const Layout& layout, int rank) {
    bool named = absl::StrContains(line, absl::StrCat("rank ", rank));
    for (const int number : {rank % layout.stages, rank / layout.stages}) {
      named |= absl::StrContains(line, absl::StrCat("from rank ", number)) ||
               absl::StrContains(line, absl::StrCat("to rank ", number));
    }
    return named;
  }

  // Ends of jobs do not end threads: on GPUs, some see afterwards that another one has gone.
  static void ExpectEnded(const Outcome& outcome, const Layout& layout, int stuck, int64_t call) {
    EXPECT_EQ(GetExitCode(outcome.end), ExitCode::kHang) << "call " << call << ": " << outcome.end;
    for (size_t rank = 0; rank < outcome.statuses.size(); ++rank) {
      if (static_cast<int>(rank) == stuck) continue;
      if (OnGpus() && GetExitCode(outcome.statuses[rank]) == ExitCode::kPeerLost) continue;
      EXPECT_EQ(GetExitCode(outcome.statuses[rank]), ExitCode::kHang)
          << "call " << call << ", rank " << rank << ": " << outcome.statuses[rank];
    }
    EXPECT_TRUE(Names(outcome, layout, stuck, call))
        << "call " << call << ": " << outcome.TextWithout(stuck);
  }

  static inline std::atomic<int> num_runs_{0};
};

TEST_P(StuckTrainTest, ALastStageThatStandsStillAtAnyCallEndsTheOther) {
  ExpectEveryCallEndsTheJob({.stages = 2}, 1);
}

TEST_P(StuckTrainTest, AFirstReplicaThatStandsStillAtAnyCallEndsTheOther) {
  ExpectEveryCallEndsTheJob({.replicas = 2}, 0);
}

TEST_P(StuckTrainTest, OneOfTwoPipelinesThatStandsStillAtAnyCallEndsAllFourRanks) {
  ExpectEveryCallEndsTheJob({.stages = 2, .replicas = 2}, 2);
}

// Every call of rank 1's disk takes a third of what a rank may be silent for, and a save many
// calls.
TEST_P(StuckTrainTest, ASaveThatTakesLongerThanARankMayBeSilentIsWaitedFor) {
  constexpr double kLimitSeconds = 0.6;
  const auto system = MakePosixFileSystem();
  const auto slow = MakeObservedFileSystem(
      *system, [](const std::string&) { absl::SleepFor(absl::Seconds(4 * kLimitSeconds / 3)); });
  RunSpec run = Run("slow", {.stages = 2}, kLimitSeconds);
  run.mutable_train()->set_validate_every_steps(0);
  const auto statuses = RunRanks(2, [&](Communicator& hosts) -> absl::Status {
    ASSIGN_OR_RETURN(const auto gpus, TakeGpu(hosts, hosts.rank()));
    std::ostringstream lines;
    Logger log({.stream = &lines});
    FileSystem* const files = hosts.rank() == 1 ? slow.get() : nullptr;
    Communicator* const world = gpus != nullptr ? gpus.get() : &hosts;
    return Train(run, {.root = root_.string(), .files = files, .world = world}, log);
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
}

// Rank 0 watches the lock of a dead run, here for three times as long as a rank may be silent. A
// busy host may be too slow for the shortest limit, as above.
TEST_P(StuckTrainTest, ALockThatIsWatchedForLongerThanARankMayBeSilentIsTakenOver) {
  const auto take_over = [&](double limit_seconds) {
    const double faster = 5.0 / limit_seconds;  // than 6 beats of 10 s
    const auto system = MakePosixFileSystem();
    const RunSpec run = Run(absl::StrCat("locked-", limit_seconds), {.stages = 2}, limit_seconds);
    RunOwner owner = MakeRunOwner("");
    owner.set_host("a-host-that-is-gone");
    const auto dead = RunLock::Acquire(*system, JoinPath(root_.string(), run.folder()), owner,
                                       {.beat = absl::InfiniteDuration()});
    RETURN_IF_ERROR(dead.status());
    const RunLockOptions lock{.wait = [&](absl::Duration time) { absl::SleepFor(time / faster); }};
    return FirstError(RunRanks(2, [&](Communicator& hosts) -> absl::Status {
      ASSIGN_OR_RETURN(const auto gpus, TakeGpu(hosts, hosts.rank()));
      std::ostringstream lines;
      Logger log({.stream = &lines});
      Communicator* const world = gpus != nullptr ? gpus.get() : &hosts;
      return Train(run, {.root = root_.string(), .lock = lock, .world = world}, log);
    }));
  };
  absl::Status taken = take_over(kShortLimitSeconds);
  for (double limit = 2 * kShortLimitSeconds; !taken.ok() && limit <= 8 * kShortLimitSeconds;
       limit *= 2) {
    taken = take_over(limit);
  }
  EXPECT_TRUE(taken.ok()) << taken;
}

// GPUs where there are enough of them.
std::vector<at::DeviceType> DevicesForRuns() {
  SetCudaDefaults();
  std::vector<at::DeviceType> devices = testing::Devices();
  if (devices.size() > 1 && CountGpus().value_or(0) < kMostRanks) devices.pop_back();
  return devices;
}

INSTANTIATE_TEST_SUITE_P(Devices, StuckTrainTest, ::testing::ValuesIn(DevicesForRuns()),
                         testing::DeviceName);

}  // namespace
}  // namespace deepnet
