#include "parallel/plan/check_schedule.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/plan/schedule_generators.h"
#include "parallel/plan/schedule_text.h"
#include "parallel/plan/simulator.h"

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

TEST(CheckSchedule, HoldsAScheduleToItsOwners) {
  const Schedule schedule = *ParseSchedule("rank 0: 1F0 1B0\nrank 1: 0F0 0B0");
  const PipelineShape shape{.num_ranks = 2};
  EXPECT_THAT(std::string(CheckSchedule(schedule, shape, MakeLooped(2, 1)).message()),
              HasSubstr("rank 0, action 1F0: the chunk belongs to rank 1"));
  EXPECT_THAT(std::string(CheckSchedule(schedule, shape, MakeLooped(2, 2)).message()),
              HasSubstr("4 chunks placed, expected 2"));
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
    const int p = kind.name == "single_stage" ? 1 : 3;
    const int v = std::min(2, kind.max_virtual_pipeline_size);
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

// Lists with transfers are run by an interpreter in which a send blocks until its receive is
// reached, and a rank knows only what it computed or received.

class RendezvousRanks {
 public:
  RendezvousRanks(const Schedule& schedule, const Placement& placement)
      : schedule_(schedule),
        placement_(placement),
        position_(schedule.actions.size(), 0),
        has_(schedule.actions.size()) {}

  // "" if every rank came to its end, else "rank action" of those that did not.
  std::string Run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < position_.size(); ++rank) moved |= Step(static_cast<int>(rank));
    }
    std::string stuck;
    for (size_t rank = 0; rank < position_.size(); ++rank) {
      if (Head(static_cast<int>(rank)) == nullptr) continue;
      absl::StrAppend(&stuck, rank, " ", ToText(*Head(static_cast<int>(rank))), "\n");
    }
    return stuck;
  }

 private:
  using Datum = std::pair<std::string, std::pair<int, int>>;  // what, chunk, microbatch

  const Action* Head(int rank) const {
    const std::vector<Action>& actions = schedule_.actions[rank];
    return position_[rank] < actions.size() ? &actions[position_[rank]] : nullptr;
  }
  bool Has(int rank, const std::string& what, int chunk, int mb) const {
    return has_[rank].count({what, {chunk, mb}}) > 0;
  }

  bool Step(int rank) {
    const Action* head = Head(rank);
    if (head == nullptr) return false;
    const int c = head->chunk, mb = head->microbatch;
    switch (head->op) {
      case Op::kForward:
        return (c == 0 || Has(rank, "output", c - 1, mb)) && Compute(rank, {{"output", {c, mb}}});
      case Op::kBackward:
      case Op::kBackwardInput:
        if (!Has(rank, "output", c, mb)) return false;
        if (c + 1 < placement_.NumChunks() && !Has(rank, "gradient", c + 1, mb)) return false;
        return Compute(rank, {{"gradient", {c, mb}}});
      case Op::kBackwardWeight:
        return Has(rank, "gradient", c, mb) && Compute(rank, {});
      case Op::kSendForward:
        return Has(rank, "output", c, mb) &&
               Meet(rank, {Op::kReceiveForward, c + 1, mb}, {"output", {c, mb}});
      case Op::kSendBackward:
        return Has(rank, "gradient", c, mb) &&
               Meet(rank, {Op::kReceiveBackward, c - 1, mb}, {"gradient", {c, mb}});
      default:
        return false;  // a receive moves with its send
    }
  }

  bool Compute(int rank, const std::vector<Datum>& made) {
    has_[rank].insert(made.begin(), made.end());
    ++position_[rank];
    return true;
  }

  bool Meet(int rank, const Action& receive, const Datum& datum) {
    const int peer = placement_.rank_of_chunk[receive.chunk];
    if (Head(peer) == nullptr || *Head(peer) != receive) return false;
    has_[peer].insert(datum);
    ++position_[peer];
    ++position_[rank];
    return true;
  }

  const Schedule& schedule_;
  const Placement& placement_;
  std::vector<size_t> position_;
  std::vector<std::set<Datum>> has_;
};

TEST(WithTransfers, PutsSendAndReceiveWhereTheDataAreMade) {
  const absl::StatusOr<Schedule> schedule = WithTransfers(
      *MakeNamedSchedule("1f1b", {.num_ranks = 2, .num_microbatches = 2}), MakeLooped(2, 1));
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_EQ(ToText(*schedule),
            "rank 0: 0F0 0SF0 0F1 0SF1 0RB0 0B0 0RB1 0B1\n"
            "rank 1: 1RF0 1F0 1RF1 1B0 1SB0 1F1 1B1 1SB1\n");
}

TEST(WithTransfers, LeavesCutsInsideARankAlone) {
  const PipelineShape shape{.num_ranks = 2, .num_microbatches = 1, .virtual_pipeline_size = 2};
  const absl::StatusOr<Schedule> schedule =
      WithTransfers(*MakeNamedSchedule("zb-v", shape), MakeV(2, 2));
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_EQ(ToText(*schedule),
            "rank 0: 0F0 0SF0 3RF0 3F0 3I0 3SB0 3W0 0RB0 0I0 0W0\n"
            "rank 1: 1RF0 1F0 2F0 2SF0 2RB0 2I0 2W0 1I0 1SB0 1W0\n");
}

TEST(WithTransfers, NoSmallScheduleDeadlocksThoughEverySendBlocks) {
  for (const ScheduleKind& kind : ScheduleKinds()) {
    for (int p = 1; p <= 6; ++p) {
      for (int m = 1; m <= 12; ++m) {
        for (int v = kind.min_virtual_pipeline_size;
             v <= std::min(3, kind.max_virtual_pipeline_size); ++v) {
          if (kind.name == "single_stage" && p > 1) continue;
          const PipelineShape shape{p, m, v};
          const Placement placement = *MakeNamedPlacement(kind.name, shape);
          const absl::StatusOr<Schedule> schedule =
              WithTransfers(*MakeNamedSchedule(kind.name, shape), placement);
          ASSERT_TRUE(schedule.ok()) << schedule.status();
          const std::string where = absl::StrCat(std::string(kind.name), " ", p, " ", m, " ", v);
          ASSERT_EQ(RendezvousRanks(*schedule, placement).Run(), "") << where;
          ASSERT_EQ(CheckSchedule(*schedule, shape, placement), absl::OkStatus()) << where;
        }
      }
    }
  }
}

TEST(WithTransfers, ReordersNoComputation) {
  const PipelineShape shape{.num_ranks = 3, .num_microbatches = 7, .virtual_pipeline_size = 2};
  const Schedule compute = *MakeNamedSchedule("interleaved", shape);
  Schedule schedule = *WithTransfers(compute, MakeLooped(3, 2));
  for (std::vector<Action>& actions : schedule.actions) {
    std::erase_if(actions, [](const Action& action) { return IsTransfer(action.op); });
  }
  EXPECT_EQ(schedule, compute);
}

TEST(WithTransfers, NamesTheActionOfAScheduleThatCannotRun) {
  const auto complaint = [](const std::string& text) {
    return std::string(WithTransfers(*ParseSchedule(text), MakeLooped(2, 1)).status().message());
  };
  EXPECT_THAT(complaint("rank 0: 0F0 0B0 0F1 0B1\nrank 1: 1F0 1F1 1B0 1B1"),
              HasSubstr("rank 0, action 0B0: waits for ever"));
  EXPECT_THAT(complaint("rank 0: 0F0 0SF0 0B0\nrank 1: 1F0 1B0"),
              HasSubstr("rank 0, action 0SF0: transfers already"));
  EXPECT_THAT(complaint("rank 0: 1F0\nrank 1: 0F0"),
              HasSubstr("rank 0, action 1F0: not of this placement"));
}

// Swaps in lists with transfers: the checker and the interpreter above agree on each.
TEST(WithTransfers, CheckScheduleFindsEveryDeadlockThatASwapMakes) {
  const PipelineShape shape{.num_ranks = 3, .num_microbatches = 3};
  const Placement placement = MakeLooped(3, 1);
  const Schedule good = *WithTransfers(*MakeNamedSchedule("1f1b", shape), placement);
  int num_stuck = 0;
  for (size_t rank = 0; rank < good.actions.size(); ++rank) {
    for (size_t i = 0; i + 1 < good.actions[rank].size(); ++i) {
      for (size_t j = i + 1; j < good.actions[rank].size(); ++j) {
        Schedule swapped = good;
        std::swap(swapped.actions[rank][i], swapped.actions[rank][j]);
        const std::string stuck = RendezvousRanks(swapped, placement).Run();
        const absl::Status status = CheckSchedule(swapped, shape, placement);
        const std::string message(status.message());
        if (message.find("ascending") != std::string::npos) continue;
        ASSERT_EQ(status.ok(), stuck.empty()) << ToText(swapped) << message;
        if (stuck.empty()) continue;
        ++num_stuck;
        const std::string first = stuck.substr(0, stuck.find('\n'));
        EXPECT_THAT(message, HasSubstr(absl::StrCat("rank ", first.substr(0, 1), ", action ",
                                                    first.substr(2), ": waits for ever")));
      }
    }
  }
  EXPECT_GT(num_stuck, 100);
}

}  // namespace

}  // namespace deepnet
