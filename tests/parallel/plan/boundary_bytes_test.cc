// Buffers at cuts, counted by hand on small timelines. That a rank of the trainer holds as many is
// what tests/trainer/memory_test.cc measures.
#include "parallel/plan/boundary_bytes.h"

#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/plan/schedule_generators.h"
#include "tests/parallel/plan/planner_toy.h"

namespace deepnet {
namespace {

using ::testing::ElementsAre;
using testing::kRows;
using testing::kWidth;
using testing::Toy;

constexpr int64_t kStream = 4 * kRows * kWidth;  // bytes of one float32 stream or memory

struct Case {
  std::string_view schedule;
  PipelineShape shape;
  std::vector<int> ends;
  std::vector<double> units;  // [chunk] seconds of F, of I, of W
  Network network = {};
  int64_t operand_bytes = 4;
  Schedule written = {};  // instead of the named one, on its placement
};

// In units of kStream.
std::vector<double> Streams(const Inventory& inventory, const Case& it) {
  const Placement placement = *MakeNamedPlacement(it.schedule, it.shape);
  std::vector<ChunkCost> costs;
  for (const double unit : it.units) {
    costs.push_back({.forward = unit, .backward_input = unit, .backward_weight = unit});
  }
  const Schedule schedule =
      it.written.actions.empty() ? *MakeNamedSchedule(it.schedule, it.shape, costs) : it.written;
  const auto messages = MakeStageMessages(inventory, it.ends, placement,
                                          it.operand_bytes == 2 ? "bfloat16" : "float32");
  const auto simulation = Simulate(schedule, placement, costs, it.network);
  EXPECT_TRUE(simulation.ok()) << simulation.status();
  std::vector<double> streams;
  for (const int64_t bytes :
       CountBoundaryBytes({inventory, it.ends, placement, messages, it.operand_bytes},
                          {schedule, *simulation, it.network})) {
    streams.push_back(static_cast<double>(bytes) / kStream);
  }
  return streams;
}

// Both stacks' streams, of which the source's is the encoder output's gradient on the way back, and
// one encoder output.
TEST(BoundaryBytes, OfAWholeModelAreItsStreamsAndOneMemory) {
  Case whole{
      .schedule = "single_stage", .shape = {.num_microbatches = 3}, .ends = {5}, .units = {1}};
  EXPECT_THAT(Streams(Toy(1), whole), ElementsAre(3));
  whole.operand_bytes = 2;
  EXPECT_THAT(Streams(Toy(1), whole), ElementsAre(2.5));
}

// Rank 0: 0F0 0-1, 0F1 1-2, 0B0 4-6, 0B1 7-9. Its encoder output goes as soon as it is made: one.
// From 2 on both gradients have buffers; before that, one and the stream of 0F1.
//
// Rank 1: 1F0 1-2, 1B0 2-4, 1F1 4-5, 1B1 5-7. Both encoder outputs have buffers from the start; a
// stream of the target's, a gradient of the encoder output's.
TEST(BoundaryBytes, AreCountedFromTheOfferToTheLastUse) {
  EXPECT_THAT(Streams(Toy(1), {.schedule = "1f1b",
                               .shape = {.num_ranks = 2, .num_microbatches = 2},
                               .ends = {2, 5},
                               .units = {1, 1}}),
              ElementsAre(2 + 1, 2 + 1 + 1));
}

// Rank 1 takes ten times as long, and offers memory to microbatch m behind 1F(m - 4): 4 and 5 wait
// on rank 0 until 11 and 21 s, long after they were made at 5 and 6 s. Gradients of 0B0 .. 0B3 have
// buffers when 0F5 ends.
TEST(BoundaryBytes, OfARankThatRunsAheadWaitForItsPeer) {
  EXPECT_THAT(Streams(Toy(1), {.schedule = "gpipe",
                               .shape = {.num_ranks = 2, .num_microbatches = 6},
                               .ends = {2, 5},
                               .units = {1, 10}}),
              ElementsAre(2 + 4, 6 + 1 + 1));
}

// A message that takes longer, here 100 s, is longer in use: all memories on rank 0, and on rank 1
// two gradients beside the one that is made.
TEST(BoundaryBytes, AreInUseAsLongAsTheLinkIsBusy) {
  Case slow{.schedule = "gpipe",
            .shape = {.num_ranks = 2, .num_microbatches = 3},
            .ends = {2, 5},
            .units = {1, 1}};
  EXPECT_THAT(Streams(Toy(1), slow), ElementsAre(1 + 3, 3 + 1 + 1));
  slow.network.inside_node.bytes_per_second = kStream / 100.0;
  EXPECT_THAT(Streams(Toy(1), slow), ElementsAre(3 + 3, 3 + 3 + 1));
}

// A message takes 3 s and begins when the one before it is through: rank 0 makes one a second, and
// the last four are on their way or wait when the last one is claimed. On the way back rank 1 makes
// one in two seconds.
TEST(BoundaryBytes, AreInUseUntilTheMessagesBeforeThemAreThrough) {
  Case slow{.schedule = "gpipe",
            .shape = {.num_ranks = 2, .num_microbatches = 6},
            .ends = {2, 5},
            .units = {1, 1}};
  slow.network.inside_node.bytes_per_second = kStream / 3.0;
  EXPECT_THAT(Streams(Toy(1), slow), ElementsAre(4 + 5, 6 + 4 + 1));
}

// Layers of one stack; each but the first takes its stream.
Inventory OneStack(int num) {
  Inventory inventory{.stacks = {testing::ToyStack()}};
  for (int i = 0; i < num; ++i) {
    Layer& layer = inventory.layers.emplace_back();
    layer.looks_up = i == 0;
    if (i > 0) layer.inputs = {{.name = "hidden", .shape = {kRows, kWidth}, .dtype = "float32"}};
  }
  return inventory;
}

// Rank 1 takes one microbatch after the other all the way: gradient m for chunk 0 leaves before the
// stream m + 1 for chunk 3. Rank 0 takes all backward passes of chunk 0 last. So it needs streams
// first but offers memory to gradients before: to five when the last stream's memory is offered and
// its own output of 0F5 is not yet gone. That is one more than the gradients that it needs soon.
TEST(BoundaryBytes, AreOfferedInTheOrderOfTheSender) {
  constexpr int kMicrobatches = 6;
  Case crossing{
      .schedule = "zb-v",
      .shape = {.num_ranks = 2, .num_microbatches = kMicrobatches, .virtual_pipeline_size = 2},
      .ends = {1, 2, 3, 4},
      .units = {1, 1, 1, 1},
      .written = {{{}, {}}}};
  std::vector<Action>&first = crossing.written.actions[0], &second = crossing.written.actions[1];
  for (int m = 0; m < kMicrobatches; ++m) {
    first.insert(first.end(), {{Op::kForward, 0, m}, {Op::kForward, 3, m}, {Op::kBackward, 3, m}});
    second.insert(
        second.end(),
        {{Op::kForward, 1, m}, {Op::kForward, 2, m}, {Op::kBackward, 2, m}, {Op::kBackward, 1, m}});
  }
  for (int m = 0; m < kMicrobatches; ++m) first.push_back({Op::kBackward, 0, m});
  EXPECT_THAT(Streams(OneStack(4), crossing), ElementsAre(5 + 1 + 1, 3));
}

// In V the last chunk of the first lap and the first of the second are on one rank: what lies
// between them is in use though nothing is sent.
TEST(BoundaryBytes, WhatStaysOnARankIsInUseBetweenItsChunks) {
  const Case v{.schedule = "zb-v",
               .shape = {.num_ranks = 1, .num_microbatches = 1, .virtual_pipeline_size = 2},
               .ends = {4, 7},
               .units = {1, 1}};
  EXPECT_THAT(Streams(Toy(2), v), ElementsAre(3));
}

}  // namespace
}  // namespace deepnet
