#include "trainer/doctor/doctor.h"

#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launch/defaults.h"
#include "parallel/base/status_macros.h"
#include "tests/support/forwarding_communicator.h"
#include "tests/support/memory_file_system.h"
#include "tests/support/run_ranks.h"
#include "tests/trainer/data/temp_folder.h"
#include "trainer/doctor/kernel_check.h"
#include "trainer/doctor/layout_check.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/model/describe.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

ComputeSpec Native(DataType dtype = FLOAT32) {
  ComputeSpec compute;
  compute.set_device("cpu");
  compute.set_dtype(dtype);
  compute.set_matmul(NATIVE);
  compute.set_threads_per_rank(1);
  return ResolveCompute(compute);
}

TEST(KernelCheck, NativeKernelsAreWithinTheLimits) {
  for (const DataType dtype : {FLOAT32, BFLOAT16}) {
    const auto ops = MakeNativeOps(Native(dtype));
    const auto checks = CheckKernels(*ops, dtype == FLOAT32 ? at::kFloat : at::kBFloat16);
    EXPECT_GE(checks.size(), 20u);
    for (const DoctorCheck& check : checks) {
      EXPECT_EQ(check.failure(), "") << check.name();
      EXPECT_LE(check.error(), check.limit()) << check.name();
    }
  }
}

// Operands of fewer bits than are claimed: every operation that has operands is too far off.
TEST(KernelCheck, OperationsThatRoundMoreThanTheyMayAreFound) {
  const auto ops = MakeAtenOps(at::kBFloat16, at::kFloat);
  int wrong = 0;
  for (const DoctorCheck& check : CheckKernels(*ops, at::kFloat)) {
    EXPECT_EQ(check.failure(), "") << check.name();
    if (check.name() == "Adam, float32" || check.name() == "SumSquares, float32") {
      EXPECT_LE(check.error(), check.limit()) << check.name();
    }
    wrong += check.error() > check.limit();
  }
  EXPECT_GE(wrong, 15);
}

TEST(KernelCheck, AttentionIsComparedWithItsTwin) {
  const auto one = MakeNativeOps(Native()), other = MakeAtenOps(at::kFloat, at::kFloat);
  AttentionResults results = RunAttention(*one, at::kFloat);
  const AttentionResults twin = RunAttention(*other, at::kFloat);
  for (const DoctorCheck& check : CompareAttention(results, twin, at::kFloat)) {
    EXPECT_LE(check.error(), check.limit()) << check.name();
  }
  results[1][0].mul_(1.01);
  EXPECT_GT(CompareAttention(results, twin, at::kFloat)[1].error(), 5e-3);
}

TEST(KernelCheck, ThreeTimesTheErrorThatRoundingExplainsIsBeyondTheLimit) {
  const auto ops = MakeAtenOps(at::kFloat, at::kFloat);
  const AttentionResults twin = RunAttention(*ops, at::kFloat);
  for (const auto& [type, off] :
       {std::pair(at::kFloat, 5e-5), std::pair(at::kHalf, 5e-3), std::pair(at::kBFloat16, 4e-2)}) {
    AttentionResults results = RunAttention(*ops, at::kFloat);
    results[0][0].mul_(1 + off);
    const auto checks = CompareAttention(results, twin, type);
    EXPECT_GT(checks[0].error(), checks[0].limit()) << checks[0].name();
    EXPECT_LE(checks[1].error(), checks[1].limit()) << checks[1].name();
  }
}

TEST(KernelCheck, AResultThatIsNotANumberIsBeyondEveryLimit) {
  const auto ops = MakeAtenOps(at::kFloat, at::kFloat);
  const AttentionResults twin = RunAttention(*ops, at::kFloat);
  for (const double bad : {NAN, INFINITY}) {
    AttentionResults results = RunAttention(*ops, at::kFloat);
    results[1][0][0][0] = bad;
    const auto checks = CompareAttention(results, twin, at::kFloat);
    EXPECT_FALSE(checks[1].error() <= checks[1].limit()) << checks[1].error();
  }
}

struct Layout {
  int stages, replicas;
  std::string schedule;
  int virtual_pipeline_size = 1;
};

RunSpec RunOn(const Layout& layout) {
  RunSpec run = WithDefaults(RunSpec());
  *run.mutable_compute() = Native();
  run.mutable_parallel()->set_pipeline_parallel_size(layout.stages);
  run.mutable_parallel()->set_data_parallel_size(layout.replicas);
  run.mutable_parallel()->set_schedule(layout.schedule);
  run.mutable_parallel()->set_virtual_pipeline_size(layout.virtual_pipeline_size);
  return run;
}

// The checks of all ranks; `wrap` stands between a rank and the others.
using Wrap = std::function<std::unique_ptr<Communicator>(Communicator&)>;
std::vector<DoctorCheck> CheckOn(const RunSpec& run, const Wrap& wrap = {}) {
  const int ranks = run.parallel().pipeline_parallel_size() * run.parallel().data_parallel_size();
  std::vector<DoctorCheck> checks(ranks);
  const auto statuses = RunRanks(ranks, [&](Communicator& world) -> absl::Status {
    const std::unique_ptr<Communicator> wrapped = wrap ? wrap(world) : nullptr;
    ASSIGN_OR_RETURN(checks[world.rank()], CheckLayout(run, wrapped ? *wrapped : world));
    return absl::OkStatus();
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
  return checks;
}

TEST(LayoutCheck, EveryLayoutEqualsOneRank) {
  for (const Layout& layout : std::vector<Layout>{{1, 1, "single_stage"},
                                                  {2, 2, "1f1b"},
                                                  {1, 3, "single_stage"},
                                                  {2, 1, "zb-v", 2},
                                                  {4, 1, "interleaved", 2}}) {
    for (const Architecture architecture : {ENCODER_DECODER, DECODER_ONLY, ENCODER_ONLY}) {
      RunSpec run = RunOn(layout);
      run.mutable_model()->set_architecture(architecture);
      for (const DoctorCheck& check : CheckOn(run)) {
        EXPECT_EQ(check.failure(), "") << check.name() << " " << Architecture_Name(architecture);
      }
    }
  }
}

// Adds the smallest step to one number of each long message between stages.
class SpoilingCommunicator final : public ForwardingCommunicator {
 public:
  explicit SpoilingCommunicator(Communicator& inner) : ForwardingCommunicator(inner) {}
  explicit SpoilingCommunicator(std::unique_ptr<Communicator> inner)
      : ForwardingCommunicator(std::move(inner)) {}
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) override {
    ASSIGN_OR_RETURN(auto part, inner().Split(color, key));
    return std::make_unique<SpoilingCommunicator>(std::move(part));
  }

 private:
  TransferOr StartMessage(Direction direction, const Buffer& buffer, int peer, int tag) override {
    if (direction == Direction::kSend && buffer.bytes >= 1024) {
      static_cast<uint8_t*>(buffer.data)[0] ^= 1;
    }
    return ForwardingCommunicator::StartMessage(direction, buffer, peer, tag);
  }
};

TEST(LayoutCheck, AMessageThatIsOffByABitIsNamed) {
  const auto checks = CheckOn(RunOn({2, 1, "1f1b"}), [](Communicator& world) {
    return std::make_unique<SpoilingCommunicator>(world);
  });
  for (const DoctorCheck& check : checks) {
    EXPECT_THAT(check.failure(), HasSubstr(" values differ from those of one rank"));
  }
}

// Spoils the sum of the losses: two numbers for each of a step's microbatches.
class LossSpoilingCommunicator final : public ForwardingCommunicator {
 public:
  LossSpoilingCommunicator(Communicator& inner, int64_t bytes)
      : ForwardingCommunicator(inner), bytes_(bytes) {}
  TransferOr AllGather(Buffer mine, std::span<const Buffer> all) override {
    if (mine.bytes == bytes_) static_cast<uint8_t*>(mine.data)[4] ^= 1;
    return ForwardingCommunicator::AllGather(mine, all);
  }

 private:
  const int64_t bytes_;
};

TEST(LayoutCheck, AFigureThatIsOffIsNamed) {
  std::string failures;
  for (const DoctorCheck& check : CheckOn(RunOn({2, 1, "1f1b"}), [](Communicator& world) {
         return std::make_unique<LossSpoilingCommunicator>(world, 2 * 4 * sizeof(double));
       })) {
    failures += check.failure();
  }
  EXPECT_THAT(failures, HasSubstr("values differ from those of one rank; no weights"));
}

TEST(LayoutCheck, ALayoutThatCannotBeIsNamed) {
  for (const DoctorCheck& check : CheckOn(RunOn({2, 1, "zb-v", 3}))) {
    EXPECT_THAT(check.failure(), HasSubstr("virtual_pipeline_size"));
  }
}

class DoctorTest : public ::testing::Test {
 protected:
  // Returns the findings of all ranks; `cripple` changes what a rank is given.
  std::vector<std::string> Findings(int ranks, const RunSpec& run, bool has_run,
                                    const std::function<void(int, DoctorOptions&)>& cripple = {}) {
    std::vector<std::string> texts;
    const auto statuses = RunRanks(ranks, [&](Communicator& world) -> absl::Status {
      DoctorOptions options{.world = &world,
                            .run = run,
                            .has_run = has_run,
                            .root = folder_.path(),
                            .version = "0",
                            .folder = {.files = files_.get()}};
      if (cripple) cripple(world.rank(), options);
      ASSIGN_OR_RETURN(const DoctorReport report, RunDoctor(options));
      if (world.rank() > 0) return absl::OkStatus();
      report_ = report;
      for (const DoctorFinding& finding : report.findings()) texts.push_back(finding.text());
      return absl::OkStatus();
    });
    EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
    return texts;
  }
  static RunSpec OnCpu() {
    RunSpec run = WithDefaults(RunSpec());
    *run.mutable_compute() = Native();
    return run;
  }
  // Threads on busy cores differ in speed, and their links; nothing else may be named.
  static auto IsOfSpeed() {
    return ::testing::AnyOf(HasSubstr("matrix products"), HasSubstr("memory bandwidth"),
                            HasSubstr("link from"), HasSubstr("a small file was durable"));
  }

  const testing::TempFolder folder_;
  const std::unique_ptr<FileSystem> files_ = MakePosixFileSystem();
  DoctorReport report_;
};

TEST_F(DoctorTest, AHealthyJobHasFiguresOfAllRanksAndNoFailure) {
  EXPECT_THAT(Findings(4, OnCpu(), false), Each(IsOfSpeed()));
  EXPECT_EQ(report_.layout(), "2 stages x 2 replicas, 1f1b");
  ASSERT_EQ(report_.ranks_size(), 4);
  for (const DoctorRank& rank : report_.ranks()) {
    EXPECT_GT(rank.product_flops(), 0.0);
    EXPECT_GT(rank.memory_bytes_per_second(), 0.0);
    EXPECT_EQ(rank.folder(), folder_.path());
  }
  EXPECT_EQ(report_.links_size(), 8);
  EXPECT_GE(report_.checks_size(), 50);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(DoctorTest, AClockThatIsAheadAndAFolderWithoutLocksAreNamed) {
  const auto cripple = [](int rank, DoctorOptions& options) {
    if (rank == 0) return;
    options.clock = [] { return WallClockSeconds() + 60; };
    options.folder.check_locks = [](const std::string&) {
      return absl::UnimplementedError("no locks available");
    };
  };
  const auto findings = Findings(2, OnCpu(), false, cripple);
  EXPECT_THAT(findings,
              Contains(ContainsRegex("\\): clock (59\\.9|60\\.0). s ahead of that of rank 0")));
  EXPECT_THAT(findings, Contains(HasSubstr("flock: no locks available")));
}

TEST_F(DoctorTest, AnotherVersionOnOneRankIsNamedAndNotExamined) {
  EXPECT_THAT(Findings(3, OnCpu(), false,
                       [](int rank, DoctorOptions& options) {
                         if (rank == 2) options.version = "1";
                       }),
              ::testing::ElementsAre(HasSubstr("rank 2 (host ")));
  EXPECT_EQ(report_.checks_size(), 0);
}

TEST_F(DoctorTest, ARunThatIsNotThatOfRank0IsNamedAndNotExamined) {
  EXPECT_THAT(Findings(3, OnCpu(), false,
                       [](int rank, DoctorOptions& options) {
                         options.run.mutable_compute()->set_threads_per_rank(1 + rank);
                         if (rank == 1) options.run.mutable_parallel()->set_schedule("zb-h1");
                       }),
              ::testing::ElementsAre(
                  AllOf(HasSubstr("rank 1 (host "), HasSubstr("its run is not rank 0's: "),
                        HasSubstr("parallel.schedule: "), HasSubstr("\"zb-h1\""))));
  EXPECT_EQ(report_.checks_size(), 0);
}

TEST_F(DoctorTest, ARankThatChecksKernelsBeats) {
  std::atomic<int> beats = 0;
  Findings(1, OnCpu(), false,
           [&](int, DoctorOptions& options) { options.beat = [&] { ++beats; }; });
  EXPECT_GE(beats, 40);  // once an operation and type
}

TEST(DoctorLimit, GrowsWithTheRanksThatEachHasToReach) {
  EXPECT_EQ(DoctorLimit(8), absl::Seconds(10));
  EXPECT_GE(DoctorLimit(8192), absl::Seconds(60));
}

RunSpec WithModel(RunSpec run) {
  run.mutable_model()->set_encoder_layers(2);
  run.mutable_model()->set_decoder_layers(2);
  run.mutable_model()->set_d_model(64);
  run.mutable_model()->set_ffn_dim(64);
  run.mutable_model()->set_num_heads(2);
  run.mutable_model()->set_residual(DEEPNORM);
  run.mutable_data()->mutable_microbatch()->set_max_source_tokens(64);
  run.mutable_data()->mutable_microbatch()->set_max_target_tokens(64);
  run.mutable_data()->mutable_microbatch()->set_max_sentences(8);
  run.mutable_data()->set_global_microbatches(8);
  return run;
}

TEST_F(DoctorTest, ARunIsExaminedOnItsOwnLayout) {
  RunSpec run = WithModel(OnCpu());
  run.mutable_parallel()->set_pipeline_parallel_size(2);
  run.mutable_parallel()->set_schedule("zb-h1");
  EXPECT_THAT(Findings(2, run, true), Each(IsOfSpeed()));
  EXPECT_EQ(report_.layout(), "2 stages x 1 replicas, zb-h1");
}

TEST_F(DoctorTest, AScheduleDecidesItsChunks) {
  RunSpec run = WithModel(OnCpu());
  run.mutable_parallel()->set_pipeline_parallel_size(2);
  run.mutable_parallel()->set_schedule("zb-v");
  run.mutable_parallel()->clear_virtual_pipeline_size();
  EXPECT_THAT(Findings(2, run, true), Each(IsOfSpeed()));
  EXPECT_EQ(report_.layout(), "2 stages x 1 replicas, zb-v, v=2");
}

TEST_F(DoctorTest, ARunThatNeedsMoreThanThereIsIsNamed) {
  RunSpec run = WithModel(OnCpu());
  run.mutable_cluster()->set_device_memory_gib(0.001);
  EXPECT_THAT(Findings(1, run, true), Contains(HasSubstr("plan: ")));
  run.clear_cluster();  // what there is decides
  EXPECT_THAT(Findings(1, run, true), Each(IsOfSpeed()));
  run.mutable_model()->set_d_model(1 << 17);
  run.mutable_model()->set_ffn_dim(1 << 19);
  EXPECT_THAT(Findings(1, run, true), Contains(HasSubstr("plan: ")));
}

TEST_F(DoctorTest, AFolderHasRoomForTwoCheckpointsWithTheirAverages) {
  RunSpec run = WithModel(OnCpu());
  run.mutable_model()->set_vocabulary_size(100);
  const double weights = Describe(run.model(), run.data().microbatch()).NumElements();
  for (const bool average : {false, true}) {
    run.mutable_optim()->set_ema_decay(average ? 0.9 : 0.0);
    const double bytes = weights * 2 * (average ? 16 : 12);
    for (const bool fits : {false, true}) {
      const auto findings = Findings(1, run, true, [&](int, DoctorOptions& options) {
        options.folder.free_bytes = [&](const std::string&) {
          return static_cast<int64_t>(bytes) - (fits ? 0 : 1);
        };
      });
      EXPECT_EQ(::testing::Matches(Contains(HasSubstr("two checkpoints need ")))(findings), !fits);
    }
  }
}

TEST_F(DoctorTest, AFolderThatIsNotRank0sIsNamed) {
  testing::MemoryFileSystem own;
  EXPECT_THAT(Findings(2, OnCpu(), false,
                       [&](int rank, DoctorOptions& options) {
                         if (rank == 1) options.folder.files = &own;
                       }),
              Contains(AllOf(HasSubstr("rank 1 (host "),
                             HasSubstr("it does not show a file that rank 0 wrote"))));
}

}  // namespace
}  // namespace deepnet
