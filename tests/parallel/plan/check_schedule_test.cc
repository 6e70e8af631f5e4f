#include "parallel/plan/check_schedule.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/plan/message_order.h"
#include "parallel/plan/schedule.h"
#include "parallel/plan/schedule_generators.h"
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

TEST(CheckSchedule, RefusesATransferInsideOfARank) {
  const std::string text =
      "rank 0: 0F0 0SF0 3RF0 3F0 3B0 3SB0 0RB0 0B0\n"
      "rank 1: 1RF0 1F0 1SF0 2RF0 2F0 2RB0 2B0 2SB0 1RB0 1B0 1SB0";
  EXPECT_THAT(Complaint(text, {.num_ranks = 2, .virtual_pipeline_size = 2}),
              HasSubstr("2RF0: there is no cut between ranks here"));
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

TEST(WithTransfers, LeavesThoseThatAreStatedAsTheyAre) {
  const Schedule stated = *ParseSchedule(
      "rank 0: 0F0 0F1 0SF1 0SF0 0RB0 0B0 0RB1 0B1\n"
      "rank 1: 1RF1 1RF0 1F0 1F1 1B0 1SB0 1B1 1SB1\n");
  EXPECT_EQ(*WithTransfers(stated, MakeLooped(2, 1)), stated);
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
              HasSubstr("action 1RF0: is missing"));
  EXPECT_THAT(complaint("rank 0: 1F0\nrank 1: 0F0"),
              HasSubstr("rank 0, action 1F0: not of this placement"));
}

// The messages from one rank to another, in the order of the sender's list or of the receiver's.
std::vector<Action> Lane(const Schedule& schedule, const Placement& placement, int from, int to,
                         bool of_sender) {
  std::vector<Action> messages;
  for (const Action& action : schedule.actions[of_sender ? from : to]) {
    if (!IsTransfer(action.op) || IsSend(action.op) != of_sender) continue;
    const int peer = placement.rank_of_chunk[OtherEnd(action).chunk];
    if (peer == (of_sender ? to : from)) messages.push_back(of_sender ? action : OtherEnd(action));
  }
  return messages;
}

bool SomeMessagesCross(const Schedule& schedule, const Placement& placement) {
  for (int from = 0; from < placement.NumRanks(); ++from) {
    for (int to = 0; to < placement.NumRanks(); ++to) {
      if (Lane(schedule, placement, from, to, true) != Lane(schedule, placement, from, to, false)) {
        return true;
      }
    }
  }
  return false;
}

// Swaps in lists with transfers: the checker and the interpreter above agree on each.
TEST(WithTransfers, CheckScheduleFindsEveryDeadlockThatASwapMakes) {
  const PipelineShape shape{.num_ranks = 3, .num_microbatches = 3};
  const Placement placement = MakeLooped(3, 1);
  const Schedule good = *WithTransfers(*MakeNamedSchedule("1f1b", shape), placement);
  int num_stuck = 0, num_crossing = 0;
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
        if (SomeMessagesCross(swapped, placement)) {
          ++num_crossing;
          EXPECT_THAT(message, HasSubstr(" cross: rank "));
          continue;
        }
        ++num_stuck;
        const std::string first = stuck.substr(0, stuck.find('\n'));
        EXPECT_THAT(message, HasSubstr(absl::StrCat("rank ", first.substr(0, 1), ", action ",
                                                    first.substr(2), ": waits for ever")));
      }
    }
  }
  EXPECT_GT(num_stuck, 50);
  EXPECT_GT(num_crossing, 50);
}

// Rank 1 makes the gradient for 0B0 before the input of 3F1, and rank 0 needs them the other way
// round. Over tags its lists could be run: each of them is fine.
TEST(CheckSchedule, NamesTheFirstMessagesThatCross) {
  const PipelineShape shape{.num_ranks = 2, .num_microbatches = 2, .virtual_pipeline_size = 2};
  const std::string sender =
      "rank 1: 1RF0 1F0 2F0 2SF0 2RB0 2B0 1B0 1SB0 1RF1 1F1 2F1 2SF1 2RB1 "
      "2B1 1B1 1SB1\n";
  EXPECT_EQ(Complaint("rank 0: 0F0 0SF0 3RF0 3F0 3B0 3SB0 0F1 0SF1 3RF1 3F1 0RB0 0B0 3B1 3SB1 "
                      "0RB1 0B1\n" +
                          sender,
                      shape),
            "schedule: messages from rank 1 to rank 0 cross: rank 1 has 1SB0 before 2SF1, but rank "
            "0 has 3RF1 before 0RB0");
  EXPECT_EQ(Complaint("rank 0: 0F0 0SF0 3RF0 3F0 3B0 3SB0 0RB0 0F1 0SF1 3RF1 3F1 0B0 3B1 3SB1 "
                      "0RB1 0B1\n" +
                          sender,
                      shape),
            "");
}

// Ranks that start sends in order and do not wait for them, and that post receives as
// message_order.h says: a message passes when it is the first of its lane on both sides.
class LaneRanks {
 public:
  LaneRanks(const Schedule& schedule, const Placement& placement)
      : schedule_(schedule), placement_(placement), position_(schedule.actions.size(), 0) {
    for (size_t rank = 0; rank < schedule.actions.size(); ++rank) {
      const int to = static_cast<int>(rank);
      PostBehindOwnWork(to, schedule, placement,
                        messages_.emplace_back(MessagesTo(to, schedule, placement, 3)));
      computed_.push_back(0);
    }
  }

  // Returns true if every rank came to its end.
  bool Run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < position_.size(); ++rank) {
        while (Step(rank)) moved = true;
      }
    }
    for (size_t rank = 0; rank < position_.size(); ++rank) {
      if (position_[rank] < schedule_.actions[rank].size()) return false;
    }
    return true;
  }

 private:
  using Key = std::pair<int, std::pair<int, int>>;  // op, chunk, microbatch

  static Key KeyOf(const Action& action) {
    const bool backward = action.op == Op::kBackward || action.op == Op::kBackwardInput;
    const Op op = backward ? Op::kBackward : action.op;
    return {static_cast<int>(op), {action.chunk, action.microbatch}};
  }
  bool Did(Op op, int chunk, int mb) const { return did_.count(KeyOf({op, chunk, mb})) > 0; }

  // Returns true if the message has passed: all messages of the lane up to it are sent and posted.
  bool Arrived(int rank, const Action& receive) const {
    int from = -1;
    bool open = true;  // everything so far in the lane has passed
    for (const LaneMessage& message : messages_[rank]) {
      if (message.from != from) open = true;
      from = message.from;
      const Action& send = message.send;
      open = open && Did(send.op, send.chunk, send.microbatch) &&
             message.posted_behind <= computed_[rank];
      if (OtherEnd(send) == receive) return open;
    }
    return false;
  }

  bool Step(size_t rank) {
    const std::vector<Action>& actions = schedule_.actions[rank];
    if (position_[rank] == actions.size()) return false;
    const Action& action = actions[position_[rank]];
    if (!IsTransfer(action.op) && !HasInputs(static_cast<int>(rank), action)) return false;
    did_.insert(KeyOf(action));
    computed_[rank] += IsTransfer(action.op) ? 0 : 1;
    ++position_[rank];
    return true;
  }

  bool HasInputs(int rank, const Action& action) const {
    const int c = action.chunk, mb = action.microbatch;
    if (action.op == Op::kForward) {
      if (c == 0) return true;
      return placement_.Crosses(c) ? Arrived(rank, {Op::kReceiveForward, c, mb})
                                   : Did(Op::kForward, c - 1, mb);
    }
    if (action.op == Op::kBackwardWeight) return Did(Op::kBackward, c, mb);
    if (!Did(Op::kForward, c, mb)) return false;
    if (c + 1 == placement_.NumChunks()) return true;
    return placement_.Crosses(c + 1) ? Arrived(rank, {Op::kReceiveBackward, c, mb})
                                     : Did(Op::kBackward, c + 1, mb);
  }

  const Schedule& schedule_;
  const Placement& placement_;
  std::vector<size_t> position_;
  std::vector<std::vector<LaneMessage>> messages_;  // [rank] to it
  std::vector<int> computed_;                       // [rank]
  std::set<Key> did_;
};

// Swaps in lists with transfers and without: what CheckSchedule accepts runs over ordered lanes.
TEST(CheckSchedule, WhatPassesRunsOverLanesThatMatchInOrder) {
  int num_run = 0;
  for (const auto& [name, shape] : Samples()) {
    const Placement placement = *MakeNamedPlacement(name, shape);
    const Schedule compute = *MakeNamedSchedule(name, shape);
    for (const Schedule& good : {compute, *WithTransfers(compute, placement)}) {
      const bool complete = good != compute;
      for (size_t rank = 0; rank < good.actions.size(); ++rank) {
        const size_t size = good.actions[rank].size();
        for (size_t i = 0; i + 1 < size; ++i) {
          for (size_t j = i + 1; j < std::min(size, i + 9); ++j) {
            Schedule swapped = good;
            std::swap(swapped.actions[rank][i], swapped.actions[rank][j]);
            if (!CheckSchedule(swapped, shape, placement).ok()) continue;
            if (!complete) swapped = *WithTransfers(swapped, placement);
            ++num_run;
            ASSERT_TRUE(LaneRanks(swapped, placement).Run()) << name << "\n" << ToText(swapped);
          }
        }
      }
    }
  }
  EXPECT_GT(num_run, 500);
}

}  // namespace

}  // namespace deepnet
