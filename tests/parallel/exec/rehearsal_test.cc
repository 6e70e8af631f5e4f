#include "parallel/exec/rehearsal.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "parallel/base/clock.h"
#include "parallel/base/status_macros.h"
#include "parallel/exec/timed_stage.h"
#include "parallel/plan/check_schedule.h"
#include "parallel/plan/schedule_generators.h"
#include "tests/support/run_ranks.h"

namespace deepnet {
namespace {

// Sleeping never ends early; how late it ends is the host's business, so only one side is exact. A
// host that runs other tests at the same time adds a lot; this only tells waiting from not waiting.
constexpr double kMostLate = 3.0;

BoundaryTensor Tensor(int64_t elements) {
  return {.name = "hidden", .shape = {elements}, .dtype = "float32"};
}

RehearsalJob MakeJob(std::string_view name, const PipelineShape& shape, double unit) {
  RehearsalJob job;
  job.placement = *MakeNamedPlacement(name, shape);
  const size_t chunks = job.placement.rank_of_chunk.size();
  job.costs.assign(chunks, {.forward = unit, .backward_input = unit, .backward_weight = unit});
  job.schedules.push_back(
      *WithTransfers(*MakeNamedSchedule(name, shape, job.costs), job.placement));
  for (size_t c = 0; c < chunks; ++c) {
    const bool crosses = job.placement.Crosses(static_cast<int>(c));
    job.crossings.push_back(crosses ? StageMessages{{Tensor(100), Tensor(7)}, {Tensor(100)}}
                                    : StageMessages{});
  }
  job.exchange.stages.resize(shape.num_ranks);
  job.exchange.gradient_bytes.assign(chunks, 0);
  return job;
}

// The same on two replicas; a stage's exchanges take 2 units each.
RehearsalJob MakeReplicatedJob(double unit) {
  const PipelineShape shape{.num_ranks = 2, .num_microbatches = 2};
  RehearsalJob job = MakeJob("1f1b", shape, unit);
  job.exchange = {.replicas = 2,
                  .stages = {2,
                             {.seconds = {.reduce = 2 * unit, .gather = 2 * unit, .tied = 2 * unit},
                              .gradient_bytes = 4000,
                              .weight_bytes = 2000,
                              .foreign_bytes = 600}},
                  .gradient_bytes = {4000, 4000}};
  return job;
}

TEST(TimedStage, ActionsTakeTheirCostTimesTheScale) {
  RankTrace trace;
  TimedStage stage({.costs = {{.forward = 1, .backward_input = 2, .backward_weight = 3}},
                    .crossings = {{}},
                    .time_scale = 0.01},
                   trace);
  const auto seconds = [](auto&& work) {
    const double start = SecondsNow();
    EXPECT_TRUE(work().ok());
    return SecondsNow() - start;
  };
  EXPECT_GE(seconds([&] { return stage.Forward(0, 0); }), 0.01);
  EXPECT_GE(seconds([&] { return stage.Backward(0, 0); }), 0.05);
  EXPECT_GE(seconds([&] { return stage.BackwardInput(0, 1); }), 0.02);
  EXPECT_GE(seconds([&] { return stage.BackwardWeight(0, 1); }), 0.03);
}

TEST(TimedStage, BuffersHaveTheSizesOfTheCrossingUpToTheLimit) {
  RankTrace trace;
  TimedStage stage({.costs = {{}, {}},
                    .crossings = {{}, {{Tensor(100), Tensor(2)}, {Tensor(50)}}},
                    .payload_limit_bytes = 64},
                   trace);
  const auto bytes = [&](Boundary boundary, int chunk) {
    std::vector<int64_t> sizes;
    for (const Buffer& buffer : stage.Buffers(boundary, chunk, 0)) sizes.push_back(buffer.bytes);
    return sizes;
  };
  EXPECT_EQ(bytes(Boundary::kOutput, 0), (std::vector<int64_t>{64, 8}));
  EXPECT_EQ(bytes(Boundary::kInput, 1), (std::vector<int64_t>{64, 8}));
  EXPECT_EQ(bytes(Boundary::kOutputGradient, 0), (std::vector<int64_t>{64}));
  EXPECT_EQ(bytes(Boundary::kInputGradient, 1), (std::vector<int64_t>{64}));
  void* const memory = stage.Buffers(Boundary::kOutput, 0, 0)[0].data;
  EXPECT_EQ(stage.Buffers(Boundary::kOutput, 0, 0)[0].data, memory);
  stage.Release(Boundary::kOutput, 0, 0);
  EXPECT_EQ(stage.Buffers(Boundary::kOutput, 0, 5)[0].data, memory);
}

TEST(TimedStage, SaysWhenAGradientIsComplete) {
  RankTrace trace;
  std::vector<int> chunks;
  double began = 0.0;
  TimedStage stage({.costs = {{.backward_weight = 1}, {.backward_weight = 1}},
                    .crossings = {{}, {}},
                    .time_scale = 0.002,
                    .num_microbatches = 2,
                    .gradient_done =
                        [&](int chunk, double at) {
                          chunks.push_back(chunk);
                          began = at;
                          return absl::OkStatus();
                        }},
                   trace);
  EXPECT_TRUE(stage.Backward(1, 0).ok());
  EXPECT_TRUE(stage.BackwardInput(0, 1).ok());
  EXPECT_TRUE(stage.BackwardWeight(1, 1).ok());
  EXPECT_LE(began + 0.002, SecondsNow());
  EXPECT_TRUE(stage.Backward(0, 1).ok());
  EXPECT_EQ(chunks, (std::vector<int>{1, 0}));
}

TEST(MakeTimeScale, GivesAStepThreeSecondsOrMoreWhereActionsAreMany) {
  Simulation simulated{.makespan = 6.0};
  simulated.timeline = {std::vector<TimedAction>(10), std::vector<TimedAction>(20)};
  EXPECT_DOUBLE_EQ(MakeTimeScale(simulated), 0.5);
  simulated.timeline[1].resize(3000);
  EXPECT_DOUBLE_EQ(MakeTimeScale(simulated), 2.0);
  simulated.timeline.assign(64, std::vector<TimedAction>(1500));
  EXPECT_DOUBLE_EQ(MakeTimeScale(simulated), 8.0);
  EXPECT_DOUBLE_EQ(MakeTimeScale(simulated, /*replicas=*/2), 16.0);
}

// Two ranks, one microbatch; F, I and W take 1. Each message takes 8 s of latency and 2 s for 200
// bytes; a rehearsal at scale 0.004 that sends 100 bytes should show (8 + 1) / 0.004 for it.
TEST(Rehearsal, IsComparedWithMessagesAsTheyAreSent) {
  RehearsalJob job = MakeJob("1f1b", {.num_ranks = 2, .num_microbatches = 1}, 1.0);
  job.crossings[1] = {{Tensor(50)}, {Tensor(50)}};
  job.costs[1].forward_bytes = job.costs[1].backward_bytes = 200;
  job.network.inside_node = {.latency_seconds = 8, .bytes_per_second = 100};
  const auto statuses = RunRanks(2, [&](Communicator& comm) {
    RehearsalOptions options{.time_scale = 0.004, .payload_limit_bytes = 100, .steps = 1};
    ASSIGN_OR_RETURN(const Rehearsal result, RunRehearsal(job, options, comm));
    EXPECT_DOUBLE_EQ(result.planned.makespan, 6 + 2 * 10);
    EXPECT_DOUBLE_EQ(result.simulated.makespan, 6 + 2 * 9 / 0.004);
    return absl::OkStatus();
  });
  EXPECT_EQ(FirstError(statuses), absl::OkStatus());
}

TEST(Rehearsal, TakesAtLeastAsLongAsTheSimulatorSaysAndHoldsEveryAction) {
  for (const std::string name : {"1f1b", "zb-v"}) {
    SCOPED_TRACE(name);
    const int v = name == "zb-v" ? 2 : 1;
    const PipelineShape shape{.num_ranks = 3, .num_microbatches = 6, .chunks_per_rank = v};
    const RehearsalJob job = MakeJob(name, shape, 1.0);
    const auto statuses = RunRanks(3, [&](Communicator& comm) {
      ASSIGN_OR_RETURN(const Rehearsal result,
                       RunRehearsal(job, {.time_scale = 0.004, .steps = 2}, comm));
      EXPECT_GE(result.makespan, 0.999 * result.planned.makespan);
      EXPECT_LE(result.makespan, kMostLate * result.planned.makespan);
      EXPECT_GE(result.bubble, result.simulated.bubble - 0.001);
      EXPECT_GE(result.exposed_communication, 0.0);
      EXPECT_EQ(result.traces.size(), 3u);
      for (int rank = 0; rank < 3; ++rank) {
        std::vector<Action> computed, planned;
        for (const TraceEvent& event : result.traces[rank].events) {
          if (event.kind == TraceKind::kCompute) computed.push_back(event.action);
        }
        for (const Action& action : job.schedules[0].actions[rank]) {
          if (!IsTransfer(action.op)) planned.push_back(action);
        }
        EXPECT_EQ(computed, planned);
      }
      return absl::OkStatus();
    });
    EXPECT_EQ(FirstError(statuses), absl::OkStatus());
  }
}

// F and B of two microbatches take 3 on either rank; the pipeline 9. Rank 0's last backward pass is
// 7 .. 9, so that reducing for 2 hides behind it.
TEST(Rehearsal, AStepIsThePipelineAndWhatFollowsIt) {
  const RehearsalJob job = MakeReplicatedJob(1.0);
  const auto statuses = RunRanks(4, [&](Communicator& world) {
    ASSIGN_OR_RETURN(const Rehearsal result,
                     RunRehearsal(job, {.time_scale = 0.01, .steps = 1}, world));
    EXPECT_DOUBLE_EQ(result.simulated.makespan, 9.0);
    EXPECT_DOUBLE_EQ(result.simulated_step, 9.0 + 2.0 + 2.0);
    EXPECT_GE(result.makespan, 0.999 * result.simulated.makespan);
    EXPECT_GE(result.step, 0.999 * result.simulated_step);
    EXPECT_LE(result.step, kMostLate * result.simulated_step);
    EXPECT_GE(result.mean_lateness, 0.0);
    EXPECT_TRUE(result.data_waits.empty());
    EXPECT_EQ(result.traces.size(), 4u);
    for (const RankTrace& trace : result.traces) {
      std::vector<TraceKind> ends;
      for (const TraceEvent& event : trace.events) {
        if (event.kind >= TraceKind::kReduce) ends.push_back(event.kind);
      }
      EXPECT_EQ(ends, (std::vector<TraceKind>{TraceKind::kReduce, TraceKind::kTied,
                                              TraceKind::kNorm, TraceKind::kGather}));
    }
    return absl::OkStatus();
  });
  EXPECT_EQ(FirstError(statuses), absl::OkStatus());
}

TEST(Rehearsal, EveryStepFetchesAndTheSlowestRankIsWaitedFor) {
  constexpr double kFetchSeconds = 0.02;
  const RehearsalJob job = MakeReplicatedJob(0.1);
  const auto statuses = RunRanks(4, [&](Communicator& world) {
    std::vector<int> fetched;
    const auto fetch = [&](int step) {
      fetched.push_back(step);
      const double start = SecondsNow();
      while (world.rank() == 2 && SecondsNow() < start + kFetchSeconds) {
      }
      return absl::OkStatus();
    };
    ASSIGN_OR_RETURN(const Rehearsal result,
                     RunRehearsal(job, {.time_scale = 0.01, .steps = 3, .fetch = fetch}, world));
    EXPECT_EQ(fetched, (std::vector<int>{0, 1, 2}));
    EXPECT_EQ(result.data_waits.size(), 3u);
    for (const double wait : result.data_waits) EXPECT_GE(wait, kFetchSeconds);
    return absl::OkStatus();
  });
  EXPECT_EQ(FirstError(statuses), absl::OkStatus());
}

TEST(Rehearsal, RefusesAWorldOfAnotherSize) {
  const RehearsalJob job = MakeReplicatedJob(0.1);
  for (const absl::Status& status : RunRanks(2, [&](Communicator& world) {
         return RunRehearsal(job, {.time_scale = 0.01}, world).status();
       })) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace deepnet
