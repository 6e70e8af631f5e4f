#include "parallel/plan/planner.h"

#include <algorithm>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/base/exit_code.h"
#include "parallel/plan/memory.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

// Source embedding, `num` encoder layers, target embedding, `num` decoder layers, output: costs of
// 1 an encoder layer, 2 a decoder layer, 4 the output; one tied table [10, 8]; one matrix [8, 8] a
// layer; 100 bytes and 10 operands kept a layer; streams and memory of [4, 8].
Inventory Toy(int num) {
  Inventory inventory;
  const BoundaryTensor hidden{.name = "hidden", .shape = {4, 8}, .dtype = "float32"};
  const BoundaryTensor memory{.name = "memory", .shape = {4, 8}, .dtype = "float32"};
  inventory.parameters.push_back({.name = "shared", .shape = {10, 8}, .role = Role::kEmbedding});
  const auto add = [&](LayerKind kind, int index, double flops) -> Layer& {
    Layer& layer = inventory.layers.emplace_back();
    layer.name = std::string(LayerKindName(kind)) + " " + std::to_string(index);
    layer.kind = kind;
    layer.forward_flops = flops;
    return layer;
  };
  const auto add_block = [&](LayerKind kind, int index, double flops) -> Layer& {
    Layer& layer = add(kind, index, flops);
    layer.parameters = {static_cast<int>(inventory.parameters.size())};
    layer.activation_bytes = 100;
    layer.activation_operands = 10;
    inventory.parameters.push_back(
        {.name = layer.name, .shape = {8, 8}, .role = Role::kFeedForward});
    return layer;
  };
  add(LayerKind::kSourceEmbedding, 0, 0).parameters = {0};
  for (int i = 0; i < num; ++i) add_block(LayerKind::kEncoder, i, 1).inputs = {hidden};
  Layer& target = add(LayerKind::kTargetEmbedding, 0, 0);
  target.parameters = {0};
  target.inputs = {memory};
  for (int i = 0; i < num; ++i) add_block(LayerKind::kDecoder, i, 2).inputs = {memory, hidden};
  Layer& output = add(LayerKind::kOutput, 0, 4);
  output.parameters = {0};
  output.inputs = {hidden};
  return inventory;
}

// What a test asks for; everything else as a user would leave it.
struct Asked {
  int microbatches = 8;
  int virtual_replicas = 0;
  int nodes = 0, devices_per_node = 0;
  double gib = 0;
  int stages = 0, replicas = 0;
  std::string schedule = {};
};

absl::StatusOr<Plan> PlanFor(const Inventory& inventory, const Asked& asked) {
  DataSpec data;
  data.set_microbatches_per_step(asked.microbatches);
  OptimSpec optim;
  optim.set_virtual_replicas(asked.virtual_replicas);
  ClusterSpec cluster;
  cluster.set_nodes(asked.nodes);
  cluster.set_devices_per_node(asked.devices_per_node);
  cluster.set_device_memory_gib(asked.gib);
  ParallelSpec parallel;
  parallel.set_pipeline_parallel_size(asked.stages);
  parallel.set_data_parallel_size(asked.replicas);
  parallel.set_schedule(asked.schedule);
  return MakePlan(inventory, data, optim, ComputeSpec(), cluster, parallel);
}

std::string Message(const absl::StatusOr<Plan>& plan) {
  return std::string(plan.status().message());
}

TEST(Memory, CountsEveryCategoryOfAWholeModel) {
  const Inventory inventory = Toy(1);
  const MemoryEstimate memory = EstimateMemory(inventory, 0, 5, {.num_microbatches_alive = 3});
  EXPECT_EQ(memory.weights(), 4 * (80 + 64 + 64));
  EXPECT_EQ(memory.working_copies(),
            2 * 4 * (64 + 64 + 80));                      // the table is multiplied by the output
  EXPECT_EQ(memory.gradients(), 4 * (3 * 80 + 64 + 64));  // the table is used three times
  EXPECT_EQ(memory.moments(), 8 * (80 + 64 + 64));
  EXPECT_EQ(memory.activations(), 3 * (2 * (100 + 10 * 4) + 4 * 8 * 4));
  EXPECT_EQ(memory.workspace(), 2 * 140 + 4 * 8 * 4 + 4 * 8 * 4 + 2 * 4 * 10 * 4);
  EXPECT_EQ(memory.total(), memory.weights() + memory.working_copies() + memory.gradients() +
                                memory.moments() + memory.activations() + memory.workspace());
}

TEST(Memory, ARankPaysOnlyForItsOwnLayers) {
  const MemoryEstimate encoder = EstimateMemory(Toy(1), 0, 2, {});
  EXPECT_EQ(encoder.gradients(), 4 * (80 + 64));
  EXPECT_EQ(encoder.working_copies(), 2 * 4 * 64);  // a table that is only looked up is not packed
  EXPECT_EQ(encoder.activations(), 140);            // no memory on an encoder's rank
}

TEST(Memory, FollowsTheArithmetic) {
  ComputeSpec compute;
  EXPECT_EQ(MakeMemoryRules(compute).operand_bytes, 4);
  EXPECT_EQ(MakeMemoryRules(compute).num_packed_copies, 2);
  compute.set_dtype(BFLOAT16);
  EXPECT_EQ(MakeMemoryRules(compute).operand_bytes, 2);
  compute.set_device("cuda");
  EXPECT_EQ(MakeMemoryRules(compute).num_packed_copies, 1);
  compute.set_dtype(FLOAT32);
  EXPECT_EQ(MakeMemoryRules(compute).num_packed_copies, 0);
}

TEST(Planner, PutsEverythingOnOneRankByDefault) {
  const auto plan = PlanFor(Toy(3), {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->stages_size(), 1);
  EXPECT_EQ(plan->schedule(), "trivial");
  EXPECT_EQ(plan->chunks(0).end_layer(), 9);
  EXPECT_EQ(plan->stages(0).flops_per_step(), 8 * 3 * (3 * 1 + 3 * 2 + 4));
}

TEST(Planner, CutsByCostNotByCount) {
  const auto plan = PlanFor(Toy(4), {.stages = 2});  // costs 0 1 1 1 1 0 2 2 2 2 4: 8 | 8
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->schedule(), "1f1b");
  EXPECT_EQ(plan->chunks(0).end_layer(), 8);
  EXPECT_EQ(plan->chunks(1).first_layer(), 8);
  EXPECT_EQ(plan->stages(0).flops_per_step(), plan->stages(1).flops_per_step());
}

TEST(Planner, EarlierStagesHoldMoreMicrobatches) {
  const auto plan = PlanFor(Toy(4), {.microbatches = 2, .stages = 3});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto kept = [&](int stage, int alive) {
    return EstimateMemory(Toy(4), plan->chunks(stage).first_layer(),
                          plan->chunks(stage).end_layer(), {.num_microbatches_alive = alive})
        .activations();
  };
  EXPECT_EQ(plan->stages(0).memory().activations(), kept(0, 2));  // no more than there are
  EXPECT_EQ(plan->stages(1).memory().activations(), kept(1, 2));
  EXPECT_EQ(plan->stages(2).memory().activations(), kept(2, 1));
}

TEST(Planner, GivesRanksThatAreNotNeededToReplicas) {
  const auto plan = PlanFor(Toy(4), {.nodes = 2, .devices_per_node = 2, .gib = 1, .stages = 2});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->data_parallel_size(), 2);
  ASSERT_EQ(plan->stages_size(), 4);
  EXPECT_EQ(plan->stages(3).rank(), 3);
  EXPECT_EQ(plan->chunks_size(), 2);  // those of the first replica
  EXPECT_EQ(plan->stages(3).memory().total(), plan->stages(1).memory().total());
}

TEST(Planner, TakesTheShortestPipelineThatFits) {
  const Inventory inventory = Toy(40);
  const auto two = PlanFor(inventory, {.stages = 2});
  ASSERT_TRUE(two.ok()) << two.status();
  const double gib =
      std::max(two->stages(0).memory().total(), two->stages(1).memory().total()) / kGib;
  const auto plan = PlanFor(inventory, {.devices_per_node = 4, .gib = gib});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->pipeline_parallel_size(), 2);
  EXPECT_EQ(plan->data_parallel_size(), 2);
}

TEST(Planner, SaysHowMuchIsMissingAndWhatWouldFit) {
  const Inventory inventory = Toy(40);
  const auto two = PlanFor(inventory, {.stages = 2});
  ASSERT_TRUE(two.ok()) << two.status();
  const double gib =
      std::max(two->stages(0).memory().total(), two->stages(1).memory().total()) / kGib;
  const auto plan = PlanFor(inventory, {.devices_per_node = 1, .gib = gib});
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetExitCode(plan.status()), ExitCode::kDoesNotFit);
  EXPECT_THAT(Message(plan), HasSubstr("rank 0 (source embedding 0 .. output layer 0) needs"));
  EXPECT_THAT(Message(plan),
              HasSubstr("what fits: pipeline_parallel_size 2, data_parallel_size 1"));
  EXPECT_THAT(Message(plan), Not(HasSubstr("data.microbatch")));
  ASSERT_TRUE(ClosestPlan(plan.status()).has_value());
  EXPECT_GT(ClosestPlan(plan.status())->stages(0).memory().total(), gib * kGib);
}

TEST(Planner, AdvisesSmallerMicrobatchesWhereALongerPipelineDoesNotHelp) {
  Inventory inventory = Toy(4);  // 1F1B keeps one whole model's activations on rank 0, whatever p
  for (Layer& layer : inventory.layers) layer.activation_bytes = 1 << 20;
  const auto plan = PlanFor(inventory, {.devices_per_node = 1, .gib = 6.0 / 1024});
  EXPECT_EQ(GetExitCode(plan.status()), ExitCode::kDoesNotFit);
  EXPECT_THAT(Message(plan), HasSubstr("data.microbatch at 1/"));
}

TEST(Planner, AdvisesALayoutOfTheRanksThatThereAre) {
  Inventory inventory = Toy(4);
  for (Layer& layer : inventory.layers) layer.activation_bytes = 1 << 20;
  const auto plan =
      PlanFor(inventory, {.devices_per_node = 4, .gib = 6.0 / 1024, .stages = 1, .replicas = 4});
  EXPECT_THAT(Message(plan), HasSubstr("with pipeline_parallel_size 1 rank 0"));
  EXPECT_THAT(Message(plan), HasSubstr("what fits: pipeline_parallel_size 1, data_parallel_size 4, "
                                       "data.microbatch at 1/4 of its size"));
}

TEST(Planner, SaysWhenNoPipelineFits) {
  const auto plan = PlanFor(Toy(2), {.devices_per_node = 1, .gib = 1e-9});
  EXPECT_EQ(GetExitCode(plan.status()), ExitCode::kDoesNotFit);
  EXPECT_THAT(Message(plan), HasSubstr("no pipeline_parallel_size up to 7 fits"));
}

TEST(Planner, CountsPartialSumsOfVirtualReplicas) {
  const auto one = PlanFor(Toy(2), {.virtual_replicas = 1});
  const auto four = PlanFor(Toy(2), {.virtual_replicas = 4});
  ASSERT_TRUE(one.ok() && four.ok());
  EXPECT_EQ(four->stages(0).memory().gradients(), 3 * one->stages(0).memory().gradients());
}

TEST(Planner, NamesTheFieldThatCannotBe) {
  const Inventory inventory = Toy(2);
  const auto expect = [&](const Asked& asked, const std::string& text) {
    const auto plan = PlanFor(inventory, asked);
    EXPECT_EQ(GetExitCode(plan.status()), ExitCode::kBadConfig);
    EXPECT_THAT(Message(plan), HasSubstr(text));
  };
  expect({.stages = 8}, "parallel.pipeline_parallel_size: 8 stages, but the model has only 7");
  expect({.devices_per_node = 4, .stages = 3}, "3 x data_parallel_size 1 = 3 ranks");
  expect({.microbatches = 8, .replicas = 3}, "data.microbatches_per_step: 8 cannot be dealt");
  expect({.virtual_replicas = 1, .replicas = 2}, "optim.virtual_replicas: 1 is not a multiple");
  expect({.schedule = "zb"}, "parallel.schedule: \"zb\" is unknown");
  expect({.stages = 2, .schedule = "trivial"}, "\"trivial\" is for one stage");
  expect({.stages = -1}, "parallel.pipeline_parallel_size: must not be negative");
}

TEST(Planner, MakesTheScheduleOfOneReplica) {
  const auto one = PlanFor(Toy(2), {.microbatches = 3});
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(MakeSchedule(*one), MakeTrivial(3));
  const auto four = PlanFor(Toy(2), {.microbatches = 6, .stages = 2, .replicas = 2});
  ASSERT_TRUE(four.ok()) << four.status();
  EXPECT_EQ(MakeSchedule(*four),
            MakeOneForwardOneBackward({.num_ranks = 2, .num_microbatches = 3}));
}

TEST(Planner, PrintsOneRowAStage) {
  const Inventory inventory = Toy(2);
  const auto plan = PlanFor(inventory, {.stages = 2, .replicas = 2});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::string text = ToText(*plan, inventory);
  EXPECT_THAT(text, HasSubstr("2 stages x 2 replicas, schedule 1f1b, 8 microbatches a step"));
  EXPECT_THAT(text, HasSubstr("source embedding 0 .. decoder layer 1\n"));
}

}  // namespace
}  // namespace deepnet
