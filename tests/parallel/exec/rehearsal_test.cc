#include "parallel/exec/rehearsal.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "parallel/base/clock.h"
#include "parallel/base/status_macros.h"
#include "parallel/plan/check_schedule.h"
#include "parallel/plan/schedule_generators.h"
#include "tests/support/counting_communicator.h"
#include "tests/support/run_ranks.h"

namespace deepnet {
namespace {

// Sleeping never ends early; how late it ends is the host's business, so only one side is exact. A
// host that runs other tests at the same time adds a lot; this only tells waiting from not waiting.
constexpr double kMaxLateness = 3.0;

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
    job.stage_messages.push_back(crosses ? StageMessages{{Tensor(100), Tensor(7)}, {Tensor(100)}}
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
                             {.reduce_seconds = 2 * unit,
                              .gather_seconds = 2 * unit,
                              .tied_seconds = 2 * unit,
                              .gradient_bytes = 4000,
                              .weight_bytes = 2000,
                              .foreign_bytes = 600}},
                  .gradient_bytes = {4000, 4000}};
  return job;
}

TEST(TimedStage, ActionsTakeTheirCostTimesTheScale) {
  RankTrace trace;
  const RehearsalJob job{.costs = {{.forward = 1, .backward_input = 2, .backward_weight = 3}},
                         .stage_messages = {{}}};
  const RehearsalOptions options{.time_scale = 0.01, .executor = {.trace = &trace}};
  TimedStage stage(job, options);
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

TEST(TimedStage, BuffersHaveTheSizesOfTheStageMessageUpToTheLimit) {
  const RehearsalJob job{.costs = {{}, {}},
                         .stage_messages = {{}, {{Tensor(100), Tensor(2)}, {Tensor(50)}}}};
  const RehearsalOptions options{.payload_limit_bytes = 64};
  TimedStage stage(job, options);
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
  const RehearsalJob job{.costs = {{.backward_weight = 1}, {.backward_weight = 1}},
                         .stage_messages = {{}, {}}};
  const RehearsalOptions options{.time_scale = 0.002, .executor = {.trace = &trace}};
  TimedStage stage(job, options, /*num_microbatches=*/2, [&](int chunk, double at) {
    chunks.push_back(chunk);
    began = at;
    return absl::OkStatus();
  });
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
// bytes; a rehearsal at scale 0.004 that sends 100 bytes should show (8 + 1) / 0.004 for it. On the
// way back there are 80 bytes.
TEST(Rehearsal, IsComparedWithMessagesAsTheyAreSent) {
  RehearsalJob job = MakeJob("1f1b", {.num_ranks = 2, .num_microbatches = 1}, 1.0);
  job.stage_messages[1] = {{Tensor(50)}, {Tensor(20)}};
  job.costs[1].forward_bytes = 200;
  job.costs[1].backward_bytes = 80;
  for (const int ranks_per_node : {2, 1}) {
    job.network = {.ranks_per_node = ranks_per_node};
    (ranks_per_node == 2 ? job.network.inside_node : job.network.between_nodes) = {
        .latency_seconds = 8, .bytes_per_second = 100};
    const auto statuses = RunRanks(2, [&](Communicator& comm) {
      RehearsalOptions options{.time_scale = 0.004, .payload_limit_bytes = 100, .steps = 1};
      ASSIGN_OR_RETURN(const Rehearsal result, RunRehearsal(job, options, comm));
      EXPECT_DOUBLE_EQ(result.planned.makespan, 6 + 10 + 8.8);
      EXPECT_DOUBLE_EQ(result.simulated.makespan, 6 + (9 + 8.8) / 0.004);
      return absl::OkStatus();
    });
    EXPECT_EQ(FirstError(statuses), absl::OkStatus());
  }
}

TEST(Rehearsal, TakesAtLeastAsLongAsTheSimulatorSaysAndHoldsEveryAction) {
  for (const std::string name : {"1f1b", "zb-v"}) {
    SCOPED_TRACE(name);
    const int v = name == "zb-v" ? 2 : 1;
    const PipelineShape shape{.num_ranks = 3, .num_microbatches = 6, .virtual_pipeline_size = v};
    const RehearsalJob job = MakeJob(name, shape, 1.0);
    const auto statuses = RunRanks(3, [&](Communicator& comm) {
      ASSIGN_OR_RETURN(const Rehearsal result,
                       RunRehearsal(job, {.time_scale = 0.004, .steps = 2}, comm));
      EXPECT_GE(result.makespan, 0.99 * result.planned.makespan);  // 0.1 ms of 4 ms an action
      EXPECT_LE(result.makespan, kMaxLateness * result.planned.makespan);
      EXPECT_GE(result.bubble, result.simulated.bubble - 0.01);
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
  RehearsalJob job = MakeReplicatedJob(1.0);
  const auto shorter = MakeJob("1f1b", {.num_ranks = 2, .num_microbatches = 1}, 1.0);
  job.schedules.push_back(shorter.schedules[0]);  // of the second replica
  const auto statuses = RunRanks(4, [&](Communicator& world) {
    ASSIGN_OR_RETURN(const Rehearsal result,
                     RunRehearsal(job, {.time_scale = 0.01, .steps = 1}, world));
    EXPECT_DOUBLE_EQ(result.simulated.makespan, 9.0);
    EXPECT_DOUBLE_EQ(result.simulated_step, 9.0 + 2.0 + 2.0);
    EXPECT_GE(result.makespan, 0.99 * result.simulated.makespan);
    EXPECT_DOUBLE_EQ(result.bubble, 1.0 - 2 * 6.0 / (2 * result.makespan));  // of a replica
    EXPECT_GE(result.step, 0.99 * result.simulated_step);
    EXPECT_LE(result.step, kMaxLateness * result.simulated_step);
    EXPECT_GE(result.mean_lateness, 0.0);
    EXPECT_TRUE(result.data_waits.empty());
    EXPECT_EQ(result.traces.size(), 4u);
    for (int rank = 0; rank < 4; ++rank) {
      std::vector<TraceKind> ends;
      int computed = 0;
      for (const TraceEvent& event : result.traces.at(rank).events) {
        if (event.kind >= TraceKind::kReduce) ends.push_back(event.kind);
        if (event.kind != TraceKind::kCompute) continue;
        EXPECT_EQ(event.action.chunk, rank % 2);
        ++computed;
      }
      EXPECT_EQ(computed, rank < 2 ? 4 : 2);
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

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
constexpr int64_t kNormBytes = 8;  // a double, to and from every other rank

TimedAction At(Op op, int chunk, int microbatch, double start, double end) {
  return {{op, chunk, microbatch}, start, end};
}

StageExchange Stage(double reduce, double tied, double gather) {
  return {.reduce_seconds = reduce,
          .gather_seconds = gather,
          .tied_seconds = tied,
          .gradient_bytes = 400,
          .weight_bytes = 300,
          .foreign_bytes = tied > 0 ? 120 : 0};
}

TEST(StepSeconds, WithoutExchangesIsThePipeline) {
  Simulation pipeline{.makespan = 7.0, .timeline = {{At(Op::kBackward, 0, 0, 0, 7)}}};
  EXPECT_EQ(StepSeconds({.stages = {{}}, .gradient_bytes = {0}}, pipeline), 7.0);
}

TEST(ExchangeJob, ReducingTakesAChunksShareOfItsOwnStagesTime) {
  const ExchangeJob job{.replicas = 2,
                        .stages = {Stage(/*reduce=*/8, 0, 0), Stage(/*reduce=*/2, 0, 0)},
                        .gradient_bytes = {100, 300}};
  EXPECT_EQ(job.ReduceSeconds(0, 0), 2.0);
  EXPECT_EQ(job.ReduceSeconds(1, 1), 1.5);
}

// Stage 0 has chunks 0 and 3 of 100 and 300 bytes: reducing takes 2 and 6 s. Chunk 3 is complete
// with the pass of 4 .. 6, chunk 0 with that of 8 .. 10, which waits for the link until 10.
TEST(StepSeconds, ReducingBeginsWithTheLastPassOfAChunkAndKeepsOneLinkBusy) {
  const ExchangeJob job{.replicas = 2,
                        .stages = {Stage(/*reduce=*/8, /*tied=*/0, /*gather=*/1)},
                        .gradient_bytes = {100, 0, 0, 300}};
  Simulation pipeline{.makespan = 10.0};
  pipeline.timeline = {{At(Op::kBackwardWeight, 3, 0, 1, 2), At(Op::kBackwardWeight, 0, 0, 2, 4),
                        At(Op::kBackwardWeight, 3, 1, 4, 6), At(Op::kBackwardInput, 0, 1, 6, 8),
                        At(Op::kBackwardWeight, 0, 1, 8, 10)}};
  EXPECT_EQ(StepSeconds(job, pipeline), 12.0 + 1.0);
}

TEST(StepSeconds, WeightsAreUpdatedBetweenTheSlowestStagesSumAndTheGather) {
  ExchangeJob job{
      .replicas = 2, .stages = {Stage(0, 0, 1), Stage(0, 0, 4)}, .gradient_bytes = {400, 400}};
  job.stages[0].update_seconds = 7;
  job.stages[1].update_seconds = 2;
  Simulation pipeline{.makespan = 10.0};
  pipeline.timeline = {{At(Op::kBackward, 0, 0, 8, 10)}, {At(Op::kBackward, 1, 0, 5, 8)}};
  EXPECT_EQ(StepSeconds(job, pipeline), 10.0 + 8.0);
}

TEST(StepSeconds, NobodyGathersBeforeTheSlowestStageIsThere) {
  const ExchangeJob job{
      .replicas = 2, .stages = {Stage(4, 3, 1), Stage(1, 0, 5)}, .gradient_bytes = {400, 400}};
  Simulation pipeline{.makespan = 10.0};
  pipeline.timeline = {{At(Op::kBackward, 0, 0, 8, 10)}, {At(Op::kBackward, 1, 0, 5, 8)}};
  EXPECT_EQ(StepSeconds(job, pipeline), 12.0 + 3.0 + 5.0);
}

struct Sent {
  int64_t bytes = 0;
  double seconds = 0.0;
};

// Returns what each of four ranks, 2 stages x 2 replicas, sends in a step, and when it has done so:
// seconds since before the first rank began.
std::vector<Sent> SendStep(const ExchangeJob& job, int64_t limit, double time_scale) {
  std::vector<Sent> sent(4);
  const double begin = SecondsNow();
  const auto statuses = RunRanks(4, [&](Communicator& world) {
    CommMeter meter;
    CountingCommunicator counted(world, meter);
    const RehearsalOptions options{.time_scale = time_scale, .payload_limit_bytes = limit};
    const int stage = world.rank() % 2, replica = world.rank() / 2;
    ASSIGN_OR_RETURN(const auto replicas, counted.Split(/*color=*/stage, /*key=*/replica));
    ASSIGN_OR_RETURN(const auto stages, counted.Split(/*color=*/replica, /*key=*/stage));
    RehearsedExchange exchange(job, options, counted, *replicas, *stages);
    const int64_t before = meter.counts().sent_bytes;
    RETURN_IF_ERROR(exchange.GradientDone(stage, SecondsNow()));
    RETURN_IF_ERROR(exchange.Finish());
    sent[world.rank()] = {meter.counts().sent_bytes - before, SecondsNow() - begin};
    return absl::OkStatus();
  });
  EXPECT_EQ(FirstError(statuses), absl::OkStatus());
  return sent;
}

// Half of 400 bytes of gradient and of 300 of weights go to the other replica, 120 / 2 of tied ones
// to the other stage.
TEST(RehearsedExchange, SendsWhatTheTrainerSendsOrWhatThePayloadAllows) {
  const ExchangeJob job{
      .replicas = 2, .stages = {Stage(1, 1, 1), Stage(1, 1, 1)}, .gradient_bytes = {400, 400}};
  for (const Sent& sent : SendStep(job, kNoLimit, 0.0)) {
    EXPECT_EQ(sent.bytes, 200 + 150 + 60 + 3 * kNormBytes);
  }
  for (const Sent& sent : SendStep(job, 64, 0.0)) {
    EXPECT_EQ(sent.bytes, 64 + 64 + 60 + 3 * kNormBytes);
  }
  ExchangeJob uneven = job;  // both stages send the mean of what they use
  uneven.stages[1].foreign_bytes = 40;
  for (const Sent& sent : SendStep(uneven, kNoLimit, 0.0)) {
    EXPECT_EQ(sent.bytes, 200 + 150 + 40 + 3 * kNormBytes);
  }
}

TEST(RehearsedExchange, TakesAtLeastWhatItsCostsSay) {
  const ExchangeJob job{
      .replicas = 2, .stages = {Stage(5, 2, 1), Stage(1, 2, 3)}, .gradient_bytes = {400, 400}};
  const std::vector<Sent> sent = SendStep(job, kNoLimit, 0.01);
  EXPECT_GE(sent[0].seconds, 0.01 * (5 + 2 + 1));  // reduce, tied, gather of stage 0
  EXPECT_GE(sent[1].seconds, 0.01 * (5 + 2 + 3));  // stage 1 waits for it, then gathers
  ExchangeJob updating = job;
  updating.stages[0].update_seconds = 6;
  EXPECT_GE(SendStep(updating, kNoLimit, 0.01)[0].seconds, 0.01 * (5 + 2 + 6 + 1));
}

}  // namespace
}  // namespace deepnet
