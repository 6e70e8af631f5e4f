#include "parallel/plan/planner.h"

#include <algorithm>
#include <bit>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/units.h"
#include "parallel/plan/check_schedule.h"
#include "parallel/plan/memory.h"
#include "parallel/plan/partition.h"
#include "parallel/plan/plan_accessors.h"
#include "parallel/plan/planner_text.h"
#include "parallel/plan/schedule.h"
#include "parallel/plan/schedule_generators.h"
#include "tests/parallel/plan/planner_toy.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kDecoderFlops;
using testing::kEncoderFlops;
using ::testing::Not;
using testing::Toy;

// For 1,000 layers on 512 ranks; instrumented builds only have to end.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kMaxSeconds = 60.0;
#else
constexpr double kMaxSeconds = 2.0;
#endif

// The fields that a test sets; everything else is as a user would leave it. Devices are so slow
// that messages take no time beside them.
struct Asked {
  int microbatches = 8;
  int virtual_replicas = 0;
  int nodes = 0, devices_per_node = 0;
  double bytes = 0;
  int stages = 0, replicas = 0;
  std::string schedule = {};
  int virtual_pipeline_size = 0;
  PlacementShape placement = PLACEMENT_UNSPECIFIED;
  Recompute recompute = RECOMPUTE_UNSPECIFIED;
  int recompute_segment = 0;
};

ClusterSpec ClusterOf(const Asked& asked) {
  ClusterSpec cluster;
  cluster.set_nodes(asked.nodes);
  cluster.set_devices_per_node(asked.devices_per_node);
  cluster.set_device_memory_gib(asked.bytes / kGib);
  cluster.set_flops_per_second(1000);
  return cluster;
}

ParallelSpec ParallelOf(const Asked& asked) {
  ParallelSpec parallel;
  parallel.set_pipeline_parallel_size(asked.stages);
  parallel.set_data_parallel_size(asked.replicas);
  parallel.set_schedule(asked.schedule);
  parallel.set_virtual_pipeline_size(asked.virtual_pipeline_size);
  parallel.set_placement(asked.placement);
  parallel.set_recompute(asked.recompute);
  parallel.set_recompute_segment(asked.recompute_segment);
  return parallel;
}

absl::StatusOr<Plan> PlanFor(const Inventory& inventory, const Asked& asked) {
  DataSpec data;
  data.set_global_microbatches(asked.microbatches);
  OptimSpec optim;
  optim.set_virtual_replicas(asked.virtual_replicas);
  return MakePlan(inventory, {data, optim, ComputeSpec(), ClusterOf(asked), ParallelOf(asked)});
}

Plan GoodPlan(const Inventory& inventory, const Asked& asked) {
  auto plan = PlanFor(inventory, asked);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *plan : Plan();
}

std::string Message(const absl::StatusOr<Plan>& plan) {
  return std::string(plan.status().message());
}

int64_t MostBytes(const Plan& plan) {
  int64_t most = 0;
  for (const StagePlan& stage : plan.stages()) most = std::max(most, stage.memory().total());
  return most;
}

std::vector<double> Totals(const Inventory& inventory) {
  std::vector<double> totals;
  for (const Layer& layer : inventory.layers) totals.push_back(layer.forward_flops);
  return totals;
}

TEST(Planner, KeepsInOnePieceWhatCannotBeCut) {
  Inventory inventory = Toy(3);
  inventory.one_piece = "model.residual: DLCL: a layer reads all before it";
  Asked four;
  four.nodes = 4;
  four.devices_per_node = 1;
  const Plan plan = GoodPlan(inventory, four);
  EXPECT_EQ(plan.pipeline_parallel_size(), 1);
  EXPECT_EQ(plan.chunks_size(), 1);
  four.microbatches = 1;
  EXPECT_THAT(Message(PlanFor(inventory, four)), HasSubstr("4 replicas, but a step has only 1"));
  Asked cut;
  cut.stages = 2;
  EXPECT_EQ(
      Message(PlanFor(inventory, cut)),
      "parallel.pipeline_parallel_size: 2: must be 1 with model.residual: DLCL: a layer reads "
      "all before it");
  EXPECT_THAT(Message(PlanFor(inventory, {.virtual_pipeline_size = 3})),
              HasSubstr("parallel.virtual_pipeline_size: 3: must be 1 with model.residual"));
}

TEST(Planner, PutsEverythingOnOneRankByDefault) {
  const Plan plan = GoodPlan(Toy(3), {});
  ASSERT_EQ(plan.stages_size(), 1);
  EXPECT_EQ(plan.schedule(), "single_stage");
  ASSERT_EQ(plan.chunks_size(), 1);
  EXPECT_EQ(plan.chunks(0).end_layer(), 9);
  EXPECT_EQ(plan.chunks(0).recompute(), NONE);
  EXPECT_EQ(plan.virtual_replicas(), 8);
  const double flops = 3 * (3 * kEncoderFlops + 3 * kDecoderFlops + 2.0 * 4 * 8 * 10);
  EXPECT_EQ(plan.stages(0).flops_per_step(), 8 * flops);
  EXPECT_EQ(GoodPlan(Toy(3), {.replicas = 2}).stages(1).flops_per_step(), 4 * flops);
  const Plan uneven = GoodPlan(Toy(3), {.microbatches = 3, .replicas = 2});
  EXPECT_DOUBLE_EQ(uneven.stages(1).busy_seconds(), 2 * flops / 1000);  // as the first replica
  EXPECT_DOUBLE_EQ(plan.step_seconds(), 8 * flops / 1000 + plan.update_seconds());
  EXPECT_EQ(plan.bubble(), 0);
  EXPECT_EQ(GoodPlan(Toy(3), {.schedule = "trivial"}).schedule(), "single_stage");  // as in 0.1
}

// One tied table of 10 rows and six matrices of 16, of width 8.
TEST(Planner, TheUpdateTakesAsLongAsTheRankWithTheMostWeightsNeedsForItsShare) {
  const double weights = 10 * 8 + 6 * 16 * 8;
  const Inventory inventory = Toy(3);
  EXPECT_DOUBLE_EQ(GoodPlan(inventory, {}).update_seconds(), weights / 2.5e8);
  EXPECT_DOUBLE_EQ(GoodPlan(inventory, {.replicas = 4}).update_seconds(), weights / 4 / 2.5e8);
  const Plan cut = GoodPlan(inventory, {.stages = 2, .schedule = "1f1b"});
  EXPECT_LT(cut.update_seconds(), weights / 2.5e8);
  EXPECT_GE(cut.update_seconds(), weights / 2 / 2.5e8);
  ClusterSpec cluster;
  cluster.set_optimizer_params_per_second(10);
  const auto slow = MakePlan(inventory, {DataSpec(), OptimSpec(), ComputeSpec(), cluster, {}});
  ASSERT_TRUE(slow.ok()) << slow.status();
  EXPECT_DOUBLE_EQ(slow->update_seconds(), weights / 10);
  EXPECT_GT(slow->step_seconds(), weights / 10);
  cluster.set_optimizer_params_per_second(-1);
  EXPECT_THAT(Message(MakePlan(inventory, {{}, {}, {}, cluster, {}})),
              HasSubstr("cluster.optimizer_params_per_second"));
}

TEST(Planner, CutsByCostNotByCount) {
  const Inventory inventory = Toy(6);
  const Plan plan = GoodPlan(inventory, {.stages = 3, .schedule = "1f1b"});
  EXPECT_EQ(ChunkEnds(plan), PartitionByCost(Totals(inventory), 3));
  EXPECT_LT(plan.chunks(2).end_layer() - plan.chunks(2).first_layer(),
            plan.chunks(0).end_layer() - plan.chunks(0).first_layer());
}

TEST(Planner, TheOutputLayersRankHasSmallerOtherChunks) {
  // The output costs as much as six decoder layers, an even chunk as four.
  const Inventory inventory = Toy(12, /*vocabulary=*/600);
  const Plan plan =
      GoodPlan(inventory, {.stages = 2, .schedule = "interleaved", .virtual_pipeline_size = 4});
  EXPECT_EQ(plan.chunks(7).first_layer(), plan.chunks(7).end_layer() - 1);
  EXPECT_LT(plan.chunks(1).end_layer() - plan.chunks(1).first_layer(),
            plan.chunks(2).end_layer() - plan.chunks(2).first_layer());
  EXPECT_NEAR(plan.stages(0).busy_seconds() / plan.stages(1).busy_seconds(), 1, 0.05);
}

TEST(Planner, AnyNumberOfRanksAndChunksCoversEveryLayerOnce) {
  const Inventory inventory = Toy(9);
  for (int stages = 1; stages <= 7; ++stages) {
    for (int chunks = 1; chunks <= 3; ++chunks) {
      if (stages * chunks > 21) continue;
      const Plan plan = GoodPlan(inventory, {.microbatches = 5,
                                             .stages = stages,
                                             .schedule = "interleaved",
                                             .virtual_pipeline_size = chunks});
      ASSERT_EQ(plan.chunks_size(), stages * chunks);
      int layer = 0;
      for (const ChunkPlan& chunk : plan.chunks()) {
        EXPECT_EQ(chunk.first_layer(), layer);
        EXPECT_GT(chunk.end_layer(), layer);
        layer = chunk.end_layer();
      }
      EXPECT_EQ(layer, 21);
      EXPECT_TRUE(CheckSchedule(MakeSchedule(plan), PipelineShapeOf(plan)).ok());
    }
  }
}

TEST(Planner, ReplicasRepeatThePipeline) {
  const Plan plan =
      GoodPlan(Toy(4), {.nodes = 2, .devices_per_node = 2, .stages = 2, .schedule = "1f1b"});
  EXPECT_EQ(plan.data_parallel_size(), 2);
  EXPECT_EQ(plan.virtual_replicas(), 8);
  ASSERT_EQ(plan.stages_size(), 4);
  EXPECT_EQ(plan.chunks_size(), 2);
  EXPECT_EQ(plan.stages(3).rank(), 3);
  EXPECT_EQ(plan.stages(3).memory().total(), plan.stages(1).memory().total());
}

TEST(Planner, SlotsAreWhatTheScheduleKeepsInFlight) {
  const Plan plan = GoodPlan(Toy(4), {.microbatches = 2, .stages = 3, .schedule = "1f1b"});
  EXPECT_EQ(plan.chunks(0).slots(), 2);  // no more than there are
  EXPECT_EQ(plan.chunks(1).slots(), 2);
  EXPECT_EQ(plan.chunks(2).slots(), 1);
  EXPECT_EQ(plan.stages(0).memory().activations(), 2 * plan.chunks(0).kept_bytes());
  EXPECT_EQ(plan.stages(0).peak_alive(), 2);
  EXPECT_EQ(plan.stages(2).peak_alive(), 1);
}

// The twin: every layout asked for by name, one by one.
std::optional<Plan> BestOfAll(const Inventory& inventory, Asked asked) {
  std::optional<Plan> best;
  const int ranks = asked.nodes * asked.devices_per_node;
  for (int stages = 1; stages <= ranks; ++stages) {
    for (const ScheduleKind& kind : ScheduleKinds()) {
      for (const int chunks : {1, 2, 4, 8}) {
        if (ranks % stages != 0 || (stages == 1) != (kind.name == "single_stage")) continue;
        if (!std::has_single_bit(static_cast<unsigned>(ranks / stages))) continue;
        if (kind.max_virtual_pipeline_size > 2 && chunks == 1) continue;  // as 1f1b
        asked.stages = stages;
        asked.replicas = ranks / stages;
        asked.schedule = std::string(kind.name);
        asked.virtual_pipeline_size = chunks;
        auto plan = PlanFor(inventory, asked);
        if (!plan.ok()) continue;
        if (!best || plan->step_seconds() < best->step_seconds()) best = *plan;
      }
    }
  }
  return best;
}

TEST(Planner, IsAsFastAsTheBestOfEveryLayout) {
  for (const int num : {4, 10}) {
    for (const int64_t vocabulary : {10, 400}) {
      const Inventory inventory = Toy(num, vocabulary);
      const auto roomy = PlanFor(inventory, {});
      ASSERT_TRUE(roomy.ok());
      const auto whole = static_cast<double>(MostBytes(*roomy));
      for (const double bytes : {whole * 10, whole, whole * 0.6, whole * 0.4}) {
        for (const int ranks : {2, 4, 6}) {
          const Asked asked{
              .microbatches = 12, .nodes = 1, .devices_per_node = ranks, .bytes = bytes};
          const std::optional<Plan> best = BestOfAll(inventory, asked);
          const auto plan = PlanFor(inventory, asked);
          ASSERT_EQ(plan.ok(), best.has_value()) << plan.status();
          if (!plan.ok()) continue;
          EXPECT_EQ(plan->step_seconds(), best->step_seconds())
              << num << " layers, " << vocabulary << ", " << ranks << " ranks, " << bytes << "\n"
              << PlanText(*plan, inventory) << PlanText(*best, inventory);
          EXPECT_LE(static_cast<double>(MostBytes(*plan)), bytes);
        }
      }
    }
  }
}

TEST(Planner, EachRankRecomputesAsLittleAsLetsItFit) {
  const Inventory inventory = Toy(20);
  const auto bytes = [&](Recompute level) {
    return static_cast<double>(
        MostBytes(GoodPlan(inventory, {.stages = 4, .schedule = "1f1b", .recompute = level})));
  };
  for (const Recompute level : {NONE, SELECTIVE_FFN, SELECTIVE_GEMM}) {
    const Plan plan = GoodPlan(inventory, {.bytes = bytes(level), .stages = 4, .schedule = "1f1b"});
    EXPECT_EQ(plan.chunks(0).recompute(), level);  // the rank with most in flight
    EXPECT_EQ(plan.chunks(3).recompute(), NONE);   // the one with least
    for (int c = 0; c < 3; ++c) {                  // each recomputes in its own passes back
      const ChunkPlan& chunk = plan.chunks(c);
      EXPECT_EQ(chunk.backward_weight_seconds(), chunk.forward_seconds()) << c;
      EXPECT_EQ(chunk.backward_input_seconds() == chunk.forward_seconds(),
                chunk.recompute() == NONE)
          << c;
    }
  }
  // Where FULL everywhere just fits, other cuts and less of it do too, and are no slower.
  const Plan all = GoodPlan(inventory, {.stages = 4, .schedule = "1f1b", .recompute = FULL});
  const Plan layer = GoodPlan(inventory, {.bytes = bytes(FULL), .stages = 4, .schedule = "1f1b"});
  EXPECT_GE(layer.chunks(0).recompute(), SELECTIVE_GEMM);
  EXPECT_LE(layer.step_seconds(), all.step_seconds());
  EXPECT_LE(static_cast<double>(MostBytes(layer)), bytes(FULL));
}

TEST(Planner, RanksThatRecomputeHaveFewerLayers) {
  const Inventory inventory = Toy(40);
  const Plan none = GoodPlan(inventory, {.stages = 4, .schedule = "1f1b", .recompute = NONE});
  const Plan tight = GoodPlan(
      inventory,
      {.bytes = 0.8 * static_cast<double>(MostBytes(none)), .stages = 4, .schedule = "1f1b"});
  EXPECT_GT(tight.chunks(0).recompute(), NONE);
  EXPECT_LT(tight.chunks(0).end_layer(), none.chunks(0).end_layer());
}

TEST(Planner, TakesTheRecomputationItIsGiven) {
  const Plan plan = GoodPlan(Toy(4), {.recompute = FULL, .recompute_segment = 3});
  EXPECT_EQ(plan.chunks(0).recompute(), FULL);
  EXPECT_EQ(plan.chunks(0).recompute_segment(), 3);
  const Plan none = GoodPlan(Toy(4), {});
  EXPECT_GT(plan.step_seconds(), 1.2 * none.step_seconds());
  EXPECT_LT(plan.chunks(0).kept_bytes(), none.chunks(0).kept_bytes());
}

TEST(Planner, AHeldUpScheduleIsWorthItsBubble) {
  const Asked asked{.microbatches = 16, .stages = 4};
  const Plan best = GoodPlan(Toy(40), asked);
  Asked plain = asked;
  plain.schedule = "1f1b";
  EXPECT_LT(best.step_seconds(), GoodPlan(Toy(40), plain).step_seconds());
  EXPECT_LT(best.bubble(), 0.08);
}

TEST(Planner, IsDeterministic) {
  const Asked asked{.nodes = 1, .devices_per_node = 8};
  EXPECT_EQ(GoodPlan(Toy(12), asked).SerializeAsString(),
            GoodPlan(Toy(12), asked).SerializeAsString());
}

TEST(Planner, SimulatesWhatItPromises) {
  const Asked asked{.microbatches = 12, .stages = 3, .schedule = "zb-v"};
  const Plan plan = GoodPlan(Toy(12), asked);
  EXPECT_EQ(plan.placement(), V);
  const Simulation simulation = SimulatePlan(plan, ClusterOf(asked), ComputeSpec());
  EXPECT_NEAR(simulation.makespan + plan.gradient_exchange_seconds() + plan.update_seconds(),
              plan.step_seconds(), 1e-9 * plan.step_seconds());
  EXPECT_EQ(simulation.bubble, plan.bubble());
  for (const int rank : {0, 1, 2}) {
    EXPECT_EQ(simulation.busy[rank], plan.stages(rank).busy_seconds());
  }
}

TEST(Planner, TakesTheChunksThatAreAskedForWithASchedule) {
  for (const int chunks : {2, 3}) {
    const Plan plan = GoodPlan(Toy(12), {.stages = 2, .virtual_pipeline_size = chunks});
    EXPECT_EQ(plan.virtual_pipeline_size(), chunks);
  }
}

// Links are so slow that a replica's gradients are not hidden behind one microbatch.
TEST(Planner, AStepEndsWithTheExchangesOfTheSlowestRankThatNothingHides) {
  const Inventory inventory = Toy(4);
  const Asked asked{
      .stages = 2, .replicas = 2, .schedule = "interleaved", .virtual_pipeline_size = 2};
  ClusterSpec cluster = ClusterOf(asked);
  cluster.mutable_inside_node()->set_bytes_per_second(10);
  DataSpec data;
  data.set_global_microbatches(8);
  const auto plan = MakePlan(inventory, {data, {}, {}, cluster, ParallelOf(asked)});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::vector<StageExchange> exchanges = StageExchanges(*plan, inventory, cluster, {});
  const std::vector<int64_t> gradients = GradientBytes(*plan, inventory);
  const std::vector<ChunkCost> costs = ChunkCosts(*plan);
  double exposed = 0;
  for (const int rank : {0, 1}) {
    const StageExchange& own = exchanges.at(rank);
    EXPECT_EQ(own.gradient_bytes, gradients.at(rank) + gradients.at(rank + 2));
    EXPECT_EQ(own.gradient_bytes, plan->stages(rank).memory().gradients());
    int uses = 0;  // of the tied table
    for (const int layer : {0, 5, 10}) {
      for (const int chunk : {rank, rank + 2}) {
        uses +=
            plan->chunks(chunk).first_layer() <= layer && layer < plan->chunks(chunk).end_layer();
      }
    }
    EXPECT_EQ(own.foreign_bytes, (3 - uses) * 4 * 80);
    const double hidden = costs[rank].backward_input + costs[rank].backward_weight +
                          costs[rank + 2].backward_input + costs[rank + 2].backward_weight;
    EXPECT_GT(own.reduce_seconds, hidden);
    exposed =
        std::max(exposed, own.reduce_seconds - hidden + own.gather_seconds + own.tied_seconds);
    for (const int chunk : {rank, rank + 2}) {
      EXPECT_EQ(costs[chunk].forward_bytes, plan->chunks(chunk).forward_bytes());
      EXPECT_EQ(costs[chunk].backward_bytes, plan->chunks(chunk).backward_bytes());
    }
  }
  EXPECT_NE(plan->chunks(3).forward_bytes(), plan->chunks(3).backward_bytes());
  EXPECT_DOUBLE_EQ(plan->gradient_exchange_seconds(), exposed);
  EXPECT_DOUBLE_EQ(plan->step_seconds(),
                   SimulatePlan(*plan, cluster, {}).makespan + exposed + plan->update_seconds());
}

TEST(Planner, AThousandLayersOn512RanksTakeLessThanTwoSeconds) {
  const Inventory inventory = Toy(500, /*vocabulary=*/4000);
  const double whole = static_cast<double>(MostBytes(GoodPlan(inventory, {})));
  for (const double bytes : {whole, whole / 4, whole / 4000}) {  // the last fits nowhere
    const std::clock_t start = std::clock();  // of this process: other work does not count
    (void)PlanFor(inventory,
                  {.microbatches = 1024, .nodes = 64, .devices_per_node = 8, .bytes = bytes});
    EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, kMaxSeconds) << bytes;
  }
}

// --- schedules that users write ------------------------------------------------------------------

TEST(Planner, FollowsAScheduleOfTheUser) {
  const Schedule mine = *MakeNamedSchedule("gpipe", {.num_ranks = 2, .num_microbatches = 4});
  const Plan plan = GoodPlan(Toy(4), {.microbatches = 4, .stages = 2, .schedule = ToText(mine)});
  EXPECT_EQ(plan.schedule(), "custom");
  EXPECT_EQ(MakeSchedule(plan), mine);
  EXPECT_EQ(plan.chunks(0).slots(), 4);
  EXPECT_THAT(PlacementOf(plan).rank_of_chunk, ElementsAre(0, 1));
}

TEST(Planner, RefusesAScheduleThatCannotBe) {
  const std::string text =
      ToText(*MakeNamedSchedule("1f1b", {.num_ranks = 2, .num_microbatches = 4}));
  const auto expect = [&](const Asked& asked, const std::string& part) {
    const auto plan = PlanFor(Toy(4), asked);
    EXPECT_EQ(GetExitCode(plan.status()), ExitCode::kBadConfig);
    EXPECT_THAT(Message(plan), AllOf(HasSubstr("parallel.schedule"), HasSubstr(part)));
  };
  expect({.microbatches = 5, .stages = 2, .schedule = text}, "");
  expect({.microbatches = 4, .stages = 3, .schedule = text},
         "is for 2 ranks, parallel.pipeline_parallel_size is 3");
  expect({.microbatches = 4, .devices_per_node = 3, .schedule = text}, "is for 2 ranks");
  expect({.microbatches = 4, .stages = 2, .schedule = "rank 0: 0F0 0X0\n"}, "0X0");
  expect({.stages = 2, .schedule = "rank 0: 0F0 0B0\nrank 1: 1F0 1B0 2F0 2B0\n"},
         "3 chunks cannot be dealt to 2 ranks");
  expect({.microbatches = 2,
          .stages = 2,
          .schedule = "rank 0: 0F0 0SF0 0F1 0SF1 0RB0 0B0 0RB1 0B1\n"
                      "rank 1: 1RF1 1RF0 1F0 1F1 1B0 1SB0 1B1 1SB1\n"},
         "messages from rank 0 to rank 1 cross: rank 0 has 0SF0 before 0SF1, but rank 1 has 1RF1 "
         "before 1RF0");
}

// --- what cannot be ------------------------------------------------------------------------------

TEST(Planner, NamesTheFieldThatCannotBe) {
  const Inventory inventory = Toy(2);
  const auto expect = [&](const Asked& asked, const std::string& text) {
    const auto plan = PlanFor(inventory, asked);
    EXPECT_EQ(GetExitCode(plan.status()), ExitCode::kBadConfig) << text;
    EXPECT_THAT(Message(plan), HasSubstr(text));
  };
  expect({.stages = 8}, "parallel.pipeline_parallel_size: 8 stages, but the model has only 7");
  expect({.stages = 4, .schedule = "interleaved", .virtual_pipeline_size = 2},
         "parallel.virtual_pipeline_size: 4 x 2 chunks, but the model has only 7");
  expect({.devices_per_node = 4, .stages = 3}, "3 x data_parallel_size 1 = 3 ranks");
  expect({.microbatches = 2, .replicas = 3}, "parallel.data_parallel_size: 3 replicas, but a step");
  expect({.microbatches = 8, .devices_per_node = 3, .stages = 1},
         "data.global_microbatches: 8 cannot be dealt");
  expect({.virtual_replicas = 1, .devices_per_node = 2, .stages = 1},
         "optim.virtual_replicas: 1 is not a multiple of data_parallel_size 2; give it 2 from the "
         "start");
  expect({.microbatches = 3, .replicas = 2, .schedule = "rank 0: 0F0 0B0\n"},
         "parallel.schedule: is for one number of microbatches");
  expect({.schedule = "zb"},
         "parallel.schedule: \"zb\" is unknown; known: single_stage, gpipe, 1f1b");
  expect({.stages = 2, .schedule = "single_stage"}, "\"single_stage\" is for one stage");
  expect({.stages = 2, .schedule = "1f1b", .virtual_pipeline_size = 2},
         "parallel.virtual_pipeline_size");
  expect({.stages = 2, .schedule = "1f1b", .placement = V},
         "parallel.placement: schedule \"1f1b\"");
  expect({.stages = -1}, "parallel.pipeline_parallel_size: must not be negative");
  expect({.replicas = -1}, "parallel.data_parallel_size: must not be negative");
  expect({.virtual_pipeline_size = -1}, "parallel.virtual_pipeline_size: must not be negative");
  expect({.recompute = SELECTIVE_FFN, .recompute_segment = 2}, "only with recompute FULL");
  expect({.microbatches = 3'000'000},
         "data.global_microbatches: 3000000: the schedule of a step has 9000000 actions; at most");
}

TEST(Planner, LeftAloneItMakesNoReplicasThatVirtualOnesCannotBe) {
  const Plan plan = GoodPlan(Toy(6), {.microbatches = 12, .nodes = 1, .devices_per_node = 6});
  EXPECT_THAT(plan.data_parallel_size(), AnyOf(1, 2));
  const auto three = PlanFor(Toy(6), {.microbatches = 12, .devices_per_node = 3, .stages = 1});
  EXPECT_EQ(GetExitCode(three.status()), ExitCode::kBadConfig);
  EXPECT_THAT(Message(three), HasSubstr("parallel.data_parallel_size: 3"));
}

TEST(Planner, TheNumberOfRanksDoesNotDecideTheVirtualReplicas) {
  for (const auto& [microbatches, expected] :
       {std::pair(1, 1), std::pair(6, 2), std::pair(12, 4), std::pair(32, 8)}) {
    for (int ranks = 1; ranks <= 64; ranks *= 2) {
      const Plan plan =
          GoodPlan(Toy(40), {.microbatches = microbatches, .devices_per_node = ranks});
      EXPECT_EQ(plan.virtual_replicas(), expected) << ranks << " ranks";
      EXPECT_EQ(expected % plan.data_parallel_size(), 0) << ranks << " ranks";
    }
  }
}

TEST(Planner, WarnsWhereTheDefaultOfVirtualReplicasCostsTime) {
  const auto warning = [](int ranks, double bytes, int virtual_replicas = 0) {
    const Asked asked{.microbatches = 64, .devices_per_node = ranks, .bytes = bytes};
    DataSpec data;
    data.set_global_microbatches(asked.microbatches);
    OptimSpec optim;
    optim.set_virtual_replicas(virtual_replicas);
    std::string text;
    const auto plan = MakePlan(Toy(8), {data, optim, ComputeSpec(), ClusterOf(asked), {}}, &text);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return text;
  };
  EXPECT_EQ(warning(1, 0), "");
  EXPECT_EQ(warning(8, 0), "");
  EXPECT_THAT(warning(64, 0),
              AllOf(HasSubstr("optim.virtual_replicas: left open it is 8 on any number of ranks"),
                    HasSubstr("with optim.virtual_replicas 64 ")));
  EXPECT_EQ(warning(64, 0, /*virtual_replicas=*/8), "");
  const Asked apart{.microbatches = 64, .recompute = FULL};
  EXPECT_THAT(warning(1, static_cast<double>(MostBytes(GoodPlan(Toy(8), apart)))),
              HasSubstr("with optim.virtual_replicas 1 "));
}

TEST(Planner, WhatFitsWithFewerVirtualReplicasIsAdvised) {
  const Asked one{.virtual_replicas = 1, .devices_per_node = 1, .recompute = FULL};
  const auto bytes = static_cast<double>(MostBytes(GoodPlan(Toy(8), one)));
  const auto plan = PlanFor(Toy(8), {.devices_per_node = 1, .bytes = bytes});
  EXPECT_EQ(GetExitCode(plan.status()), ExitCode::kDoesNotFit);
  EXPECT_THAT(Message(plan), HasSubstr("what fits on 1 rank: optim.virtual_replicas 1 (from the"));
}

TEST(Planner, MakesAnyNumberOfReplicasThatIsAskedFor) {
  const Plan plan = GoodPlan(
      Toy(6),
      {.microbatches = 8, .virtual_replicas = 8, .stages = 2, .replicas = 3, .schedule = "1f1b"});
  EXPECT_EQ(plan.virtual_replicas(), 8);
  ASSERT_EQ(plan.stages_size(), 6);
  for (const int replica : {0, 1, 2}) {
    const PipelineShape shape = PipelineShapeOf(plan, replica);
    EXPECT_EQ(shape.num_microbatches, replica == 2 ? 2 : 3);
    EXPECT_TRUE(CheckSchedule(MakeSchedule(plan, replica), shape).ok());
  }
  for (const StagePlan& stage : plan.stages()) EXPECT_EQ(stage.memory().partial_sums(), 0);
  EXPECT_EQ(GoodPlan(Toy(6), {.microbatches = 8, .replicas = 3}).virtual_replicas(), 8);
  EXPECT_EQ(GoodPlan(Toy(6), {.microbatches = 48, .replicas = 16}).virtual_replicas(), 16);
}

TEST(Planner, RefusesSpeedsBelowZero) {
  ClusterSpec cluster;
  cluster.mutable_between_nodes()->set_bytes_per_second(-1);
  const auto plan =
      MakePlan(Toy(1), {DataSpec(), OptimSpec(), ComputeSpec(), cluster, ParallelSpec()});
  EXPECT_EQ(GetExitCode(plan.status()), ExitCode::kBadConfig);
  EXPECT_THAT(Message(plan), HasSubstr("cluster.between_nodes"));
}

TEST(Planner, SaysHowMuchIsMissingAndOnHowManyRanksItWouldFit) {
  const Inventory inventory = Toy(40);
  const auto bytes = static_cast<double>(
      MostBytes(GoodPlan(inventory, {.stages = 2, .schedule = "1f1b", .recompute = FULL})));
  const auto plan = PlanFor(inventory, {.devices_per_node = 1, .bytes = bytes});
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetExitCode(plan.status()), ExitCode::kDoesNotFit);
  EXPECT_THAT(Message(plan), HasSubstr("rank 0 (source embedding 0 .. output layer 0) needs"));
  EXPECT_THAT(Message(plan), HasSubstr("too little"));
  EXPECT_THAT(Message(plan), HasSubstr("2 ranks: pipeline_parallel_size 2"));
  ASSERT_TRUE(ClosestPlan(plan.status()).has_value());
  EXPECT_GT(static_cast<double>(MostBytes(*ClosestPlan(plan.status()))), bytes);
}

TEST(Planner, AdvisesTheLeastChangeOnTheRanksThatThereAre) {
  const Inventory inventory = Toy(20);
  const Asked none{
      .devices_per_node = 4, .stages = 4, .replicas = 1, .schedule = "1f1b", .recompute = NONE};
  Asked asked = none;
  asked.bytes = 0.8 * static_cast<double>(MostBytes(GoodPlan(inventory, none)));
  const std::string recompute = Message(PlanFor(inventory, asked));
  EXPECT_THAT(recompute, HasSubstr("what fits on 4 ranks: pipeline_parallel_size 4, "
                                   "data_parallel_size 1, schedule 1f1b, recomputing NONE to"));
  EXPECT_THAT(recompute, Not(HasSubstr("data.microbatch ")));

  const Plan replicated =
      GoodPlan(inventory, {.devices_per_node = 4, .stages = 1, .recompute = FULL});
  const auto degrees =
      PlanFor(inventory, {.devices_per_node = 4,
                          .bytes = 0.7 * static_cast<double>(MostBytes(replicated)),
                          .stages = 1});
  EXPECT_THAT(Message(degrees), HasSubstr("with pipeline_parallel_size 1"));
  EXPECT_THAT(Message(degrees), HasSubstr("what fits on 4 ranks: pipeline_parallel_size"));
  const auto without_cluster =  // whose ranks are those that are asked for
      PlanFor(
          inventory,
          {.bytes = 0.7 * static_cast<double>(MostBytes(replicated)), .stages = 1, .replicas = 4});
  EXPECT_THAT(Message(without_cluster), HasSubstr("what fits on 4 ranks: pipeline_parallel_size"));
}

// Each of these needs more than the least that 1F1B does.
TEST(Planner, AdvisesAnotherScheduleWhereThatOfTheUserDoesNotFit) {
  Inventory inventory = Toy(20);
  for (Layer& layer : inventory.layers) {
    for (ActivationBytes& kept : layer.kept) kept.bytes += 10'000;
  }
  Asked plain{.microbatches = 16, .bytes = 1, .stages = 2, .schedule = "1f1b"};
  const auto least = ClosestPlan(PlanFor(inventory, plain).status());
  ASSERT_TRUE(least.has_value());
  plain.bytes = 1.02 * static_cast<double>(MostBytes(*least));
  Asked written = plain, chunks = plain, placed = plain;
  written.schedule = ToText(*MakeNamedSchedule("gpipe", {.num_ranks = 2, .num_microbatches = 16}));
  chunks.schedule = "interleaved";
  chunks.virtual_pipeline_size = 8;
  placed.schedule = "zb-v";
  placed.placement = V;
  for (const Asked& other : {written, chunks, placed}) {
    const auto plan = PlanFor(inventory, other);
    EXPECT_EQ(GetExitCode(plan.status()), ExitCode::kDoesNotFit) << other.schedule;
    EXPECT_THAT(Message(plan), HasSubstr("what fits on 2 ranks: pipeline_parallel_size 2, "
                                         "data_parallel_size 1, schedule "));
  }
}

TEST(Planner, AdvisesSmallerMicrobatchesWhereRanksDoNotHelp) {
  Inventory inventory = Toy(4);  // one layer's state is more than a device has
  for (Layer& layer : inventory.layers) {
    for (const Recompute level : {NONE, SELECTIVE_FFN, SELECTIVE_GEMM})
      layer.kept[level].bytes = 1 << 20;
  }
  const auto plan = PlanFor(
      inventory, {.microbatches = 1, .devices_per_node = 1, .bytes = 1 << 19, .recompute = NONE});
  EXPECT_EQ(GetExitCode(plan.status()), ExitCode::kDoesNotFit);
  EXPECT_THAT(Message(plan), HasSubstr("data.microbatch at 1/"));
}

TEST(Planner, SaysWhenNothingFits) {
  const auto plan = PlanFor(Toy(2), {.devices_per_node = 1, .bytes = 1});
  EXPECT_EQ(GetExitCode(plan.status()), ExitCode::kDoesNotFit);
  EXPECT_THAT(Message(plan), HasSubstr("nothing fits on up to"));
  const auto message = [](const Inventory& inventory, const Asked& asked) {
    return Message(PlanFor(inventory, asked));
  };
  EXPECT_THAT(message(Toy(2), {.devices_per_node = 2, .bytes = 1}),
              HasSubstr("with pipeline_parallel_size 2, data_parallel_size 1"));  // the closest
  Inventory uneven = Toy(2);
  uneven.layers.back().constant_bytes = 1 << 20;
  EXPECT_THAT(message(uneven, {.bytes = 1 << 20, .stages = 2, .schedule = "1f1b"}),
              AllOf(HasSubstr(" rank 1 ("), HasSubstr(".. output layer 0) needs")));  // the fullest
  const auto replicas =
      ClosestPlan(PlanFor(Toy(2), {.bytes = 1, .stages = 1, .replicas = 2}).status());
  ASSERT_TRUE(replicas.has_value());
  EXPECT_EQ(replicas->stages_size(), 2);
}

TEST(WithMemoryShare, IsOfEachRankOfTheHostUnlessItIsGiven) {
  ClusterSpec cluster;
  EXPECT_EQ(WithMemoryShare(cluster, int64_t{64} << 30).device_memory_gib(), 64);
  cluster.set_devices_per_node(4);
  EXPECT_EQ(WithMemoryShare(cluster, int64_t{64} << 30).device_memory_gib(), 16);
  cluster.set_device_memory_gib(3);
  EXPECT_EQ(WithMemoryShare(cluster, int64_t{64} << 30).device_memory_gib(), 3);
}

TEST(Planner, CountsTheSentencesOfAStepWhereTheyLieInTheSameMemory) {
  DataSpec data;
  data.set_global_microbatches(64);
  data.mutable_microbatch()->set_max_source_tokens(1 << 20);
  data.mutable_microbatch()->set_max_target_tokens(1 << 20);
  ClusterSpec cluster;
  cluster.set_device_memory_gib(5);  // 6 GiB of sentences
  ComputeSpec compute;
  compute.set_device("cpu");
  const auto plan = MakePlan(Toy(2), {data, OptimSpec(), compute, cluster, {}});
  EXPECT_EQ(GetExitCode(plan.status()), ExitCode::kDoesNotFit);
  EXPECT_THAT(Message(plan), HasSubstr("beside 6.00 GiB for two steps' sentences "
                                       "(data.global_microbatches)"));
  compute.set_device("cuda");  // the host's memory has them
  EXPECT_TRUE(MakePlan(Toy(2), {data, OptimSpec(), compute, cluster, {}}).ok());
  compute.set_device("cpu");
  cluster.set_device_memory_gib(6.1);
  EXPECT_TRUE(MakePlan(Toy(2), {data, OptimSpec(), compute, cluster, {}}).ok());
}

TEST(Planner, CountsPartialSumsOfVirtualReplicas) {
  const Plan one = GoodPlan(Toy(2), {.virtual_replicas = 1});
  const Plan four = GoodPlan(Toy(2), {.virtual_replicas = 4});
  EXPECT_EQ(one.stages(0).memory().partial_sums(), 0);
  EXPECT_EQ(four.stages(0).memory().partial_sums(), 2 * four.stages(0).memory().gradients());
}

// Two stages of two replicas: four of eight microbatches on each rank.
TEST(Planner, CountsWhatTheSettingsOfTheRunAskFor) {
  Inventory inventory = Toy(2);
  inventory.batch_bytes = 1000;
  DataSpec data;
  data.set_global_microbatches(8);
  OptimSpec optim;
  ComputeSpec compute;
  ParallelSpec parallel = ParallelOf({.stages = 2, .replicas = 2, .schedule = "1f1b"});
  InstrumentsSpec instruments;
  const auto memory = [&] {
    const auto plan = MakePlan(inventory, {data, optim, compute, {}, parallel, instruments});
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? plan->stages(0).memory() : MemoryEstimate();
  };
  const MemoryEstimate plain = memory();
  EXPECT_EQ(plain.moments(), plain.weights());  // twice as many numbers, on two replicas
  EXPECT_EQ(plain.snapshot(), 12 * plain.weights() / 4 / 2);
  EXPECT_EQ(plain.partial_sums(), 2 * plain.gradients());
  EXPECT_EQ(plain.instruments(), 0);
  parallel.set_gradient_sum(FAST);
  EXPECT_EQ(memory().partial_sums(), 0);
  instruments.set_every_steps(1);
  EXPECT_EQ(memory().instruments(), plain.weights() / 2);
  optim.set_ema_decay(0.9);
  EXPECT_EQ(2 * memory().moments(), 3 * plain.moments());
  parallel.set_blocking_saves(true);
  EXPECT_EQ(memory().snapshot(), 0);
  parallel.set_blocking_saves(false);
  compute.set_device("cuda");
  const MemoryEstimate gpu = memory();
  EXPECT_EQ(gpu.snapshot(), 0);
  EXPECT_EQ(gpu.gpu().messages(), 6 * kLaneBytes + ReplicasBytes(2));
  inventory.batch_bytes = 0;
  EXPECT_EQ(gpu.gpu().uploads(), memory().gpu().uploads() + 4 * 1000);
  parallel.set_pipeline_parallel_size(1);
  parallel.clear_schedule();
  EXPECT_EQ(memory().gpu().messages(), ReplicasBytes(2));
}

// --- texts ---------------------------------------------------------------------------------------

TEST(PlannerText, HasOneRowARankAndOneAChunk) {
  const Inventory inventory = Toy(6);
  const Plan plan =
      GoodPlan(inventory,
               {.stages = 2, .replicas = 2, .schedule = "interleaved", .virtual_pipeline_size = 2});
  const std::string text = PlanText(plan, inventory);
  EXPECT_THAT(text, HasSubstr("2 stages x 2 replicas, schedule interleaved, 2 chunks a rank, 8 "
                              "microbatches a step\n"));
  EXPECT_EQ(LayersText(plan, inventory, 3), LayersText(plan, inventory, 1));
  EXPECT_THAT(text, HasSubstr("source embedding 0 .. "));
  const auto rows = [](const std::string& table) {
    return std::count(table.begin(), table.end(), '\n');
  };
  EXPECT_EQ(rows(text), 4 + 1 + 2);
  EXPECT_THAT(text, HasSubstr("recomputing NONE; at most 0.00 GiB, on rank "));
  EXPECT_EQ(rows(ChunksText(plan, inventory)), 1 + 4);
  EXPECT_EQ(rows(MemoryText(plan)), 2 + 2);
}

// Single spaces between words.
std::string Words(const std::string& text) {
  return absl::StrJoin(absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty()), " ");
}

TEST(PlannerText, HasEachFigureInItsColumn) {
  constexpr int64_t kGiB = int64_t{1} << 30, kMiB = int64_t{1} << 20;
  Plan plan;
  plan.set_pipeline_parallel_size(1);
  plan.set_data_parallel_size(1);
  StagePlan& stage = *plan.add_stages();
  stage.set_flops_per_step(21e12);
  stage.set_busy_seconds(22);
  stage.set_peak_alive(23);
  MemoryEstimate& memory = *stage.mutable_memory();
  memory.set_weights(1 * kGiB);
  memory.set_working_copies(2 * kGiB);
  memory.set_gradients(3 * kGiB);
  memory.set_partial_sums(4 * kGiB);
  memory.set_moments(5 * kGiB);
  memory.set_activations(6 * kGiB);
  memory.set_boundary(7 * kGiB);
  memory.set_recompute(8 * kGiB);
  memory.set_workspace(9 * kGiB);
  memory.set_logits(10 * kGiB);
  memory.set_communication(11 * kGiB);
  memory.set_snapshot(12 * kGiB);
  memory.set_instruments(13 * kGiB);
  memory.set_total(91 * kGiB);
  GpuMemory& gpu = *memory.mutable_gpu();
  gpu.set_context(14 * kGiB);
  gpu.set_messages(15 * kGiB);
  gpu.set_products(16 * kGiB);
  gpu.set_uploads(17 * kGiB);
  gpu.set_graphs(18 * kGiB);
  gpu.set_fragmentation(19 * kGiB);
  ChunkPlan& chunk = *plan.add_chunks();
  chunk.set_end_layer(2);
  chunk.set_recompute(FULL);
  chunk.set_recompute_segment(2);
  chunk.set_forward_seconds(0.001);
  chunk.set_backward_input_seconds(0.002);
  chunk.set_backward_weight_seconds(0.003);
  chunk.set_kept_bytes(4 * kMiB);
  chunk.set_slots(5);
  chunk.set_forward_bytes(6 * kMiB);
  chunk.set_backward_bytes(7 * kMiB);
  const Inventory inventory = Toy(1);
  EXPECT_THAT(Words(PlanText(plan, inventory)),
              HasSubstr(" from .. to 0 2 21 22 FULL/2 23 | 15.000 6.000 70.000 91.000 source "
                        "embedding 0 .. encoder layer 0"));
  EXPECT_THAT(Words(ChunksText(plan, inventory)),
              HasSubstr(" from .. to 0 0 2 FULL/2 | 1.000 2.000 3.000 | 4.00 5 6.00 7.00 source "
                        "embedding 0 .. encoder layer 0"));
  const std::string text = Words(MemoryText(plan));
  EXPECT_THAT(text, HasSubstr("weights packed grads partial moments activ. boundary recomp. work "
                              "logits comm. saved instr. total 0 1.000 2.000 3.000 4.000 5.000 "
                              "6.000 7.000 8.000 9.000 10.000 11.000 12.000 13.000 91.000"));
  EXPECT_THAT(text, HasSubstr("context NCCL products uploads graphs fragm. 0 14.000 15.000 16.000 "
                              "17.000 18.000 19.000"));
  EXPECT_EQ(GpuMemoryText(memory),
            "14.00 GiB for CUDA's context, 15.00 for NCCL, 16.00 for products, 17.00 for uploads, "
            "19.00 lost between blocks");
}

TEST(PlannerCompare, HalvesByCountAreTheSlowest) {
  DataSpec data;
  data.set_global_microbatches(16);
  const Asked asked{.bytes = 1, .stages = 4};  // memory does not count
  const auto text = CompareText(
      Toy(40, 1000), {data, OptimSpec(), ComputeSpec(), ClusterOf(asked), ParallelOf(asked)});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, AllOf(HasSubstr("halves by count, 1f1b"), HasSubstr("interleaved, v=8"),
                           HasSubstr("zb-v")));
  const auto seconds = [&](const std::string& name) {
    return std::stod(text->substr(text->find("\n" + name + "  ") + name.size() + 2));
  };
  EXPECT_GT(seconds("halves by count, 1f1b"), seconds("1f1b"));
  EXPECT_GT(seconds("1f1b"), seconds("zb-v, v=2"));
  const std::string reference =
      text->substr(text->find("\n1f1b "));  // its activations are the unit
  EXPECT_THAT(reference.substr(0, reference.find('\n', 1)), HasSubstr(" 1.00 "));
  EXPECT_THAT(*text, HasSubstr("recomputing NONE\n"));
  Inventory single = Toy(6);  // one stack: equal numbers of layers on all ranks
  for (Layer& layer : single.layers) {
    std::erase_if(layer.inputs, [](const BoundaryTensor& input) { return input.name == "side"; });
  }
  EXPECT_TRUE(
      CompareText(single, {data, OptimSpec(), ComputeSpec(), ClusterOf(asked), ParallelOf(asked)})
          .ok());
  const auto one =
      CompareText(Toy(4), {data, OptimSpec(), ComputeSpec(), ClusterOf({}), ParallelSpec()});
  EXPECT_EQ(GetExitCode(one.status()), ExitCode::kBadConfig);
}

}  // namespace
}  // namespace deepnet
