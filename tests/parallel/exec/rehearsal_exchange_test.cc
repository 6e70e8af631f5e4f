#include "parallel/exec/rehearsal_exchange.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

#include "parallel/base/clock.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/counting_communicator.h"
#include "tests/support/run_ranks.h"

namespace deepnet {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
constexpr int64_t kNormBytes = 8;  // a double, to and from every other rank

TimedAction At(Op op, int chunk, int microbatch, double start, double end) {
  return {{op, chunk, microbatch}, start, end};
}

StageExchange Stage(double reduce, double tied, double gather) {
  return {.seconds = {.reduce = reduce, .gather = gather, .tied = tied},
          .gradient_bytes = 400,
          .weight_bytes = 300,
          .foreign_bytes = tied > 0 ? 120 : 0};
}

TEST(StepSeconds, WithoutExchangesIsThePipeline) {
  Simulation pipeline{.makespan = 7.0, .timeline = {{At(Op::kBackward, 0, 0, 0, 7)}}};
  EXPECT_EQ(StepSeconds({.stages = {{}}, .gradient_bytes = {0}}, pipeline), 7.0);
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

// What each of four ranks, 2 stages x 2 replicas, sends in a step.
std::vector<Sent> SendStep(const ExchangeJob& job, int64_t limit, double time_scale) {
  std::vector<Sent> sent(4);
  const auto statuses = RunRanks(4, [&](Communicator& world) {
    CommMeter meter;
    CountingCommunicator counted(world, meter);
    const RehearsedExchangeOptions options{.time_scale = time_scale, .payload_limit_bytes = limit};
    ASSIGN_OR_RETURN(const auto exchange, RehearsedExchange::Make(job, options, counted));
    const int64_t before = meter.counts().sent_bytes;
    const double start = SecondsNow();
    exchange->BeginStep();
    RETURN_IF_ERROR(exchange->GradientDone(world.rank() % 2, start));
    RETURN_IF_ERROR(exchange->Finish());
    sent[world.rank()] = {meter.counts().sent_bytes - before, SecondsNow() - start};
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
