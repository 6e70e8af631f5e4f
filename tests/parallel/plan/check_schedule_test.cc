#include "parallel/plan/check_schedule.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/plan/schedule_generators.h"
#include "parallel/plan/schedule_text.h"
#include "parallel/plan/simulator.h"
#include "parallel/plan/with_transfers.h"

namespace deepnet {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

// CheckSchedule's complaint about `text`, "" if it has none.
std::string Complaint(const std::string& text, const PipelineShape& shape) {
  const absl::StatusOr<Schedule> schedule = ParseSchedule(text);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  return std::string(CheckSchedule(*schedule, shape).message());
}

TEST(CheckSchedule, AcceptsASplitBackward) {
  EXPECT_EQ(Complaint("rank 0: 0F0 0F1 0I0 0I1 0W0 0W1", {.num_microbatches = 2}), "");
}

TEST(CheckSchedule, NamesWhatIsMissing) {
  EXPECT_THAT(Complaint("rank 0: 0F0 0B0 0F1", {.num_microbatches = 2}),
              HasSubstr("chunk 0, microbatch 1: needs one F"));
  EXPECT_THAT(Complaint("rank 0: 0F0 0I0", {}), HasSubstr("one I and one W"));
  EXPECT_THAT(Complaint("rank 0: 0F0 0B0", {.num_ranks = 2}), HasSubstr("1 ranks listed"));
}

TEST(CheckSchedule, RejectsWhatIsDoneTwiceOrTwoWays) {
  EXPECT_THAT(Complaint("rank 0: 0F0 0F0 0B0", {}), HasSubstr("0F0: a second time"));
  EXPECT_THAT(Complaint("rank 0: 0F0 0B0 0W0", {}), HasSubstr("either one B or"));
}

TEST(CheckSchedule, RejectsWhatIsOutOfRange) {
  EXPECT_THAT(Complaint("rank 0: 1F0", {}), HasSubstr("there are only 1 chunks"));
  EXPECT_THAT(Complaint("rank 0: 0F1", {}), HasSubstr("there are only 1 microbatches"));
}

TEST(CheckSchedule, GivesAChunkToOneRank) {
  EXPECT_THAT(Complaint("rank 0: 0F0 1F0 1B0\nrank 1: 0B0", {.num_ranks = 2}),
              HasSubstr("rank 1, action 0B0: the chunk belongs to rank 0"));
}

TEST(CheckSchedule, WantsWeightGradientsInAscendingOrder) {
  EXPECT_THAT(Complaint("rank 0: 0F0 0F1 0B1 0B0", {.num_microbatches = 2}),
              HasSubstr("0B0: weight gradients must come in ascending"));
}

TEST(CheckSchedule, NamesTheActionThatIsStuck) {
  EXPECT_THAT(Complaint("rank 0: 0B0 0F0", {}), HasSubstr("action 0B0: waits for ever"));
  EXPECT_THAT(Complaint("rank 0: 0F0 0W0 0I0", {}), HasSubstr("action 0W0: waits for ever"));
  // Rank 0 wants the gradient of microbatch 0 before it sends microbatch 1; rank 1 waits for 1.
  EXPECT_THAT(Complaint("rank 0: 0F0 0B0 0F1 0B1\nrank 1: 1F0 1F1 1B0 1B1",
                        {.num_ranks = 2, .num_microbatches = 2}),
              HasSubstr("rank 0, action 0B0: waits for ever"));
}

TEST(CheckSchedule, WantsForwardsInAscendingOrder) {
  EXPECT_THAT(Complaint("rank 0: 0F1 0F0 0B0 0B1", {.num_microbatches = 2}),
              HasSubstr("0F0: forwards must come in ascending"));
}

TEST(CheckSchedule, HoldsAScheduleToItsClaims) {
  const Schedule schedule = *ParseSchedule("rank 0: 1F0 1B0\nrank 1: 0F0 0B0");
  const PipelineShape shape{.num_ranks = 2};
  EXPECT_THAT(
      std::string(CheckSchedule(schedule, shape, {.placement = MakeLooped(2, 1)}).message()),
      HasSubstr("rank 0, action 1F0: the chunk belongs to rank 1"));
  EXPECT_THAT(
      std::string(CheckSchedule(schedule, shape, {.placement = MakeLooped(2, 2)}).message()),
      HasSubstr("4 chunks placed, expected 2"));
  EXPECT_THAT(std::string(CheckSchedule(*ParseSchedule("rank 0: 0F0 0F1 0B0 0B1"),
                                        {.num_microbatches = 2}, {.peak_alive = {1}})
                              .message()),
              HasSubstr("rank 0: 2 microbatches alive, at most 1 claimed"));
}

TEST(CheckSchedule, WantsAllTransfersOrNone) {
  const PipelineShape shape{.num_ranks = 2};
  EXPECT_EQ(Complaint("rank 0: 0F0 0SF0 0RB0 0B0\nrank 1: 1RF0 1F0 1B0 1SB0", shape), "");
  EXPECT_THAT(Complaint("rank 0: 0F0 0SF0 0RB0 0B0\nrank 1: 1RF0 1F0 1B0", shape),
              HasSubstr("action 1SB0: is missing"));
  EXPECT_THAT(Complaint("rank 0: 0F0 0SF0 0B0", {}), HasSubstr("no cut between ranks"));
}

TEST(CheckSchedule, NamesWhatAStuckTransferWaitsFor) {
  // Each rank sends first: neither send can end.
  EXPECT_THAT(
      Complaint("rank 0: 0F0 0SF0 0F1 0SF1 0RB0 0B0 0RB1 0B1\n"
                "rank 1: 1RF0 1F0 1B0 1SB0 1RF1 1F1 1B1 1SB1",
                {.num_ranks = 2, .num_microbatches = 2}),
      HasSubstr("rank 0, action 0SF1: waits for ever: 1RF1 of rank 1 comes later or never"));
}

// Every name with two microbatches more than ranks.
std::vector<std::pair<std::string, PipelineShape>> Samples() {
  std::vector<std::pair<std::string, PipelineShape>> samples;
  for (const ScheduleKind& kind : ScheduleKinds()) {
    const int p = kind.name == "trivial" ? 1 : 3;
    const int v = std::min(2, kind.max_chunks_per_rank);
    samples.push_back({std::string(kind.name), {p, p + 2, v}});
  }
  return samples;
}

TEST(CheckSchedule, RejectsEveryScheduleThatLacksAnActionOrHasOneTwice) {
  for (const auto& [name, shape] : Samples()) {
    const Schedule good =
        *WithTransfers(*MakeNamedSchedule(name, shape), *MakeNamedPlacement(name, shape));
    for (size_t rank = 0; rank < good.actions.size(); ++rank) {
      for (size_t i = 0; i < good.actions[rank].size(); ++i) {
        const Action action = good.actions[rank][i];
        Schedule dropped = good, doubled = good;
        dropped.actions[rank].erase(dropped.actions[rank].begin() + static_cast<int>(i));
        doubled.actions[rank].push_back(action);
        EXPECT_THAT(std::string(CheckSchedule(dropped, shape).message()),
                    AnyOf(HasSubstr(absl::StrCat("chunk ", action.chunk, ", microbatch ",
                                                 action.microbatch, ": needs one F")),
                          HasSubstr(absl::StrCat("action ", ToText(action), ": is missing"))));
        EXPECT_THAT(std::string(CheckSchedule(doubled, shape).message()),
                    HasSubstr(absl::StrCat("rank ", rank, ", action ", ToText(action), ": ")));
      }
    }
  }
}

TEST(CheckSchedule, RejectsEverySwapThatTheSimulatorCannotRunAndNamesTheSameAction) {
  int num_stuck = 0;
  for (const auto& [name, shape] : Samples()) {
    const Schedule good = *MakeNamedSchedule(name, shape);
    const Placement placement = *MakeNamedPlacement(name, shape);
    const std::vector<ChunkCost> costs(placement.NumChunks());
    for (size_t rank = 0; rank < good.actions.size(); ++rank) {
      for (size_t i = 0; i + 1 < good.actions[rank].size(); ++i) {
        for (size_t j = i + 1; j < good.actions[rank].size(); ++j) {
          Schedule swapped = good;
          std::swap(swapped.actions[rank][i], swapped.actions[rank][j]);
          const std::string message(CheckSchedule(swapped, shape).message());
          if (message.find("ascending") != std::string::npos) continue;
          const std::string stuck(Simulate(swapped, placement, costs).status().message());
          EXPECT_EQ(message.substr(0, stuck.size()), stuck);
          EXPECT_EQ(message.empty(), stuck.empty());
          num_stuck += !stuck.empty();
        }
      }
    }
  }
  EXPECT_GT(num_stuck, 500);
}

}  // namespace
}  // namespace deepnet
