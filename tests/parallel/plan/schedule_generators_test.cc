#include "parallel/plan/schedule_generators.h"

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/plan/check_schedule.h"
#include "parallel/plan/schedule.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;

TEST(Schedule, ASingleStageHasTheNameOfEarlierPlansToo) {
  ASSERT_NE(FindScheduleKind("trivial"), nullptr);
  EXPECT_EQ(FindScheduleKind("trivial")->name, "single_stage");
  EXPECT_EQ(*MakeNamedSchedule("trivial", {.num_microbatches = 3}),
            *MakeNamedSchedule("single_stage", {.num_microbatches = 3}));
  EXPECT_EQ(ClaimedAlive("trivial", {.num_microbatches = 3}), std::vector<int>{1});
}

TEST(Schedule, ASingleStageFinishesEachMicrobatchBeforeTheNext) {
  EXPECT_EQ(ToText(*MakeNamedSchedule("single_stage", {.num_microbatches = 3})),
            "rank 0: 0F0 0B0 0F1 0B1 0F2 0B2\n");
  EXPECT_EQ(PeakAlive(*MakeNamedSchedule("single_stage", {.num_microbatches = 3}), 0), 1);
}

TEST(Schedule, OneForwardOneBackwardHoldsOneMicrobatchLessOnEachLaterRank) {
  const Schedule schedule = *MakeNamedSchedule("1f1b", {.num_ranks = 4, .num_microbatches = 9});
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(PeakAlive(schedule, rank), 4 - rank);
  EXPECT_EQ(ClaimedAlive("1f1b", {.num_ranks = 4, .num_microbatches = 2}),
            (std::vector<int>{2, 2, 2, 1}));  // no more than there are
}

TEST(Schedule, OneForwardOneBackwardHoldsNoMoreThanThereIs) {
  const Schedule schedule = *MakeNamedSchedule("1f1b", {.num_ranks = 4, .num_microbatches = 2});
  EXPECT_EQ(PeakAlive(schedule, 0), 2);
}

TEST(Schedule, EverySmallOneForwardOneBackwardPassesTheCheck) {
  for (int ranks = 1; ranks <= 6; ++ranks) {
    for (int microbatches = 1; microbatches <= 12; ++microbatches) {
      const PipelineShape shape{.num_ranks = ranks, .num_microbatches = microbatches};
      EXPECT_TRUE(CheckSchedule(*MakeNamedSchedule("1f1b", shape), shape).ok())
          << ranks << " ranks, " << microbatches << " microbatches";
    }
  }
}

void ExpectAtMostAlive(const Schedule& schedule, const std::vector<int>& most) {
  for (size_t rank = 0; rank < most.size(); ++rank) {
    EXPECT_LE(PeakAlive(schedule, static_cast<int>(rank)), most[rank]) << ToText(schedule);
  }
}

constexpr double kRounding = 1e-9;  // relative, of sums of a few hundred doubles

struct Case {
  const ScheduleKind& kind;
  PipelineShape shape;

  std::string Name() const {
    return absl::StrCat(std::string(kind.name), ", ", shape.num_ranks, " ranks, ",
                        shape.num_microbatches, " microbatches, ", shape.virtual_pipeline_size,
                        " chunks");
  }
};

// All names at p <= 6, m <= 12, v <= 3.
void ForEverySmallCase(const std::function<void(const Case&)>& run) {
  for (const ScheduleKind& kind : ScheduleKinds()) {
    for (int p = 1; p <= (kind.name == "single_stage" ? 1 : 6); ++p) {
      for (int m = 1; m <= 12; ++m) {
        for (int v = kind.min_virtual_pipeline_size;
             v <= std::min(3, kind.max_virtual_pipeline_size); ++v) {
          run({kind, {p, m, v}});
        }
      }
    }
  }
}

std::vector<ChunkCost> RandomCosts(int num_chunks, std::mt19937& random) {
  const auto roll = [&] { return static_cast<double>(random() % 100); };
  std::vector<ChunkCost> costs;
  for (int c = 0; c < num_chunks; ++c) {
    costs.push_back({.forward = roll(), .backward_input = roll(), .backward_weight = roll()});
  }
  return costs;
}

TEST(ScheduleGenerators, EverySmallScheduleKeepsItsClaims) {
  std::mt19937 random(5);
  ForEverySmallCase([&](const Case& c) {
    const Placement placement = *MakeNamedPlacement(c.kind.name, c.shape);
    const std::vector<int> claimed = ClaimedAlive(c.kind.name, c.shape);
    const absl::StatusOr<Schedule> schedule = MakeNamedSchedule(c.kind.name, c.shape);
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    EXPECT_EQ(CheckSchedule(*schedule, c.shape, placement), absl::OkStatus()) << c.Name();
    ExpectAtMostAlive(*schedule, claimed);
    const Schedule fitted =
        *MakeNamedSchedule(c.kind.name, c.shape, RandomCosts(placement.NumChunks(), random));
    EXPECT_EQ(CheckSchedule(fitted, c.shape, placement), absl::OkStatus()) << c.Name();
    ExpectAtMostAlive(fitted, claimed);
  });
}

TEST(ScheduleGenerators, EveryGreedyScheduleIsCompleteHoweverLittleMemoryThereIs) {
  std::mt19937 random(6);
  for (int p = 1; p <= 5; ++p) {
    for (int m = 1; m <= 9; ++m) {
      for (int v = 1; v <= 3; ++v) {
        for (const Placement& placement : {MakeLooped(p, v), MakeV(p, v)}) {
          for (int max_alive = v; max_alive <= v * p + 2; ++max_alive) {
            const Schedule schedule =
                MakeGreedy(placement, RandomCosts(p * v, random),
                           {.num_microbatches = m,
                            .max_alive = max_alive,
                            .patience = 0.25 * static_cast<double>(random() % 5)});
            ASSERT_EQ(CheckSchedule(schedule, {p, m, v}, placement), absl::OkStatus())
                << p << " " << m << " " << v << " " << max_alive;
            ExpectAtMostAlive(schedule, std::vector<int>(p, max_alive));
          }
        }
      }
    }
  }
}

// Idle seconds of each rank by the table in the header; -1 where it claims nothing.
double ClaimedIdle(const Case& c, double forward, double input, double weight) {
  const int p = c.shape.num_ranks, m = c.shape.num_microbatches, v = c.shape.virtual_pipeline_size;
  const bool equal = forward == input && input == weight;
  if (c.kind.name == "single_stage") return 0;
  if (c.kind.name == "gpipe" || c.kind.name == "1f1b") {
    return m >= p ? (p - 1) * (forward + input + weight) : -1;
  }
  if (c.kind.name == "interleaved") {
    return m % p == 0 ? (p - 1) * (forward + input + weight) / v : -1;
  }
  if (c.kind.name == "zb-v") return equal && m >= 2 * p - 1 ? (p - 1) * forward / 2 : -1;
  return equal && m % p == 0 ? (p - 1) * (forward + input - weight) / v : -1;
}

void ExpectClaimedIdle(const Case& c, double forward, double input, double weight) {
  const double claimed = ClaimedIdle(c, forward, input, weight);
  if (claimed < 0) return;
  const double v = c.shape.virtual_pipeline_size;
  const Placement placement = *MakeNamedPlacement(c.kind.name, c.shape);
  const std::vector<ChunkCost> costs(
      placement.NumChunks(),
      {.forward = forward / v, .backward_input = input / v, .backward_weight = weight / v});
  const Simulation simulation =
      *Simulate(*MakeNamedSchedule(c.kind.name, c.shape, costs), placement, costs);
  const double busy = c.shape.num_microbatches * (forward + input + weight);
  EXPECT_LE(simulation.makespan - busy, claimed + kRounding * simulation.makespan) << c.Name();
}

TEST(ScheduleGenerators, NoScheduleIdlesMoreThanItsFormula) {
  ForEverySmallCase([&](const Case& c) {
    ExpectClaimedIdle(c, 6, 6, 6);
    ExpectClaimedIdle(c, 6, 9, 3);
    ExpectClaimedIdle(c, 6, 18, 6);  // layers computed again in the backward pass
  });
}

TEST(ScheduleGenerators, CostsNeverMakeAFittedScheduleSlowerThanTheFixedOne) {
  std::mt19937 random(8);
  ForEverySmallCase([&](const Case& c) {
    const Placement placement = *MakeNamedPlacement(c.kind.name, c.shape);
    const std::vector<ChunkCost> costs = RandomCosts(placement.NumChunks(), random);
    const auto makespan = [&](const Schedule& schedule) {
      return Simulate(schedule, placement, costs)->makespan;
    };
    EXPECT_LE(makespan(*MakeNamedSchedule(c.kind.name, c.shape, costs)),
              makespan(*MakeNamedSchedule(c.kind.name, c.shape)))
        << c.Name();
  });
}

TEST(ScheduleGenerators, OneChunkPerRankIsTheNotInterleavedForm) {
  for (const PipelineShape& shape : {PipelineShape{3, 7, 1}, PipelineShape{4, 2, 1}}) {
    // Surplus microbatches apart, which leave no trace.
    EXPECT_EQ(*MakeNamedSchedule("zb-interleaved", shape), *MakeNamedSchedule("zb-h1", shape));
    const Schedule interleaved = *MakeNamedSchedule("interleaved", shape);
    EXPECT_EQ(interleaved.actions[2], MakeNamedSchedule("1f1b", shape)->actions[2]);
  }
}

// Chunks of 500 + 500 layers with the output layer last, which does all its work in its forward; in
// units of an encoder layer's forward. Ranks are even: where the output layer is more than an even
// chunk, the other chunks of its rank are smaller.
std::vector<ChunkCost> ThousandLayers(const Placement& placement, int virtual_pipeline_size,
                                      double output) {
  constexpr double kEncoder = 1, kDecoder = 1.339;
  const auto chunk = [](double total) {
    return ChunkCost{
        .forward = total / 3, .backward_input = total / 3, .backward_weight = total / 3};
  };
  const double rank = 3 * (500 * kEncoder + 500 * kDecoder + output) / placement.NumRanks();
  const double even = rank / virtual_pipeline_size, rest = std::max(0.0, even - 3 * output);
  std::vector<ChunkCost> costs(placement.NumChunks(), chunk(even));
  for (int c = 0; c + 1 < placement.NumChunks(); ++c) {
    if (placement.rank_of_chunk[c] != placement.rank_of_chunk.back()) continue;
    costs[c] = chunk((rank - rest - 3 * output) / (virtual_pipeline_size - 1));
  }
  costs.back() = chunk(rest);
  costs.back().forward += 3 * output;
  return costs;
}

double ThousandLayersIdle(std::string_view name, int virtual_pipeline_size, double output) {
  const PipelineShape shape{8, 32, virtual_pipeline_size};
  const Placement placement = *MakeNamedPlacement(name, shape);
  const std::vector<ChunkCost> costs = ThousandLayers(placement, virtual_pipeline_size, output);
  const Link link{.latency_seconds = 0.005 * 1210 / 8};
  return Simulate(*MakeNamedSchedule(name, shape, costs), placement, costs,
                  {.inside_node = link, .between_nodes = link})
      ->bubble;
}

TEST(ScheduleGenerators, AThousandLayersOnEightRanksIdleLittle) {
  constexpr double kLargeVocabulary = 40.4, kSmallVocabulary = 20.7;  // 250,002 and 128,000 rows
  EXPECT_LE(ThousandLayersIdle("zb-interleaved", 4, kLargeVocabulary), 0.05);
  EXPECT_LE(ThousandLayersIdle("zb-v", 2, kLargeVocabulary), 0.05);
  EXPECT_LE(ThousandLayersIdle("interleaved", 4, kLargeVocabulary), 0.06);
  EXPECT_LE(ThousandLayersIdle("zb-interleaved", 4, kSmallVocabulary), 0.045);
  EXPECT_LE(ThousandLayersIdle("zb-v", 2, kSmallVocabulary), 0.045);
  EXPECT_LE(ThousandLayersIdle("interleaved", 8, kSmallVocabulary), 0.045);
}

std::string Text(std::string_view name, const PipelineShape& shape) {
  return ToText(*MakeNamedSchedule(name, shape));
}

TEST(ScheduleGenerators, SmallOnesReadAsInThePapers) {
  EXPECT_EQ(Text("gpipe", {2, 3, 1}),
            "rank 0: 0F0 0F1 0F2 0B0 0B1 0B2\n"
            "rank 1: 1F0 1F1 1F2 1B0 1B1 1B2\n");
  EXPECT_EQ(Text("1f1b", {2, 3, 1}),
            "rank 0: 0F0 0F1 0B0 0F2 0B1 0B2\n"
            "rank 1: 1F0 1B0 1F1 1B1 1F2 1B2\n");
  EXPECT_EQ(Text("interleaved", {2, 4, 2}),
            "rank 0: 0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3\n"
            "rank 1: 1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3\n");
  EXPECT_EQ(Text("interleaved", {2, 3, 2}),
            "rank 0: 0F0 0F1 2F0 2F1 0F2 2B0 2B1 2F2 0B0 0B1 2B2 0B2\n"
            "rank 1: 1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1B1 3F2 3B2 1B2\n");
  EXPECT_EQ(Text("zb-h1", {2, 3, 1}),
            "rank 0: 0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2\n"
            "rank 1: 1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2\n");
  EXPECT_EQ(Text("zb-v", {2, 3, 2}),
            "rank 0: 0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2\n"
            "rank 1: 1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2\n");
}

std::string Complaint(std::string_view name, const PipelineShape& shape) {
  return std::string(MakeNamedSchedule(name, shape).status().message());
}

TEST(ScheduleGenerators, RefusesWhatANameDoesNotTake) {
  EXPECT_THAT(
      Complaint("2f2b", {}),
      HasSubstr("parallel.schedule: \"2f2b\" is unknown; known: single_stage, gpipe, 1f1b"));
  EXPECT_THAT(Complaint("single_stage", {.num_ranks = 2}), HasSubstr("is for one stage, not 2"));
  EXPECT_THAT(Complaint("1f1b", {.num_ranks = 2, .virtual_pipeline_size = 2}),
              HasSubstr("parallel.virtual_pipeline_size: \"1f1b\" needs 1, not 2"));
  EXPECT_THAT(Complaint("zb-v", {.num_ranks = 2}), HasSubstr("\"zb-v\" needs 2, not 1"));
  EXPECT_THAT(Complaint("1f1b", {.num_microbatches = 0}), HasSubstr("must be positive"));
}

}  // namespace
}  // namespace deepnet
