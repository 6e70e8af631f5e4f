#include "parallel/plan/message_order.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/plan/check_schedule.h"
#include "parallel/plan/schedule.h"
#include "parallel/plan/schedule_generators.h"

namespace deepnet {
namespace {

using ::testing::ElementsAre;

// "receive @ posted_behind" of everything that `rank` receives.
std::vector<std::string> Posts(int rank, const Schedule& schedule, const Placement& placement,
                               int look_ahead) {
  std::vector<std::string> posts;
  for (const LaneMessage& message : MessagesTo(rank, schedule, placement, look_ahead)) {
    posts.push_back(absl::StrCat(ToText(OtherEnd(message.send)), " @ ", message.posted_behind));
  }
  return posts;
}

// Rank 1 makes the gradient for 0B0 before the input of 3F1, and rank 0 needs them the other way
// round.
Schedule Crossing() {
  return *ParseSchedule(
      "rank 0: 0F0 3F0 3B0 0F1 3F1 0B0 3B1 0B1\n"
      "rank 1: 1F0 2F0 2B0 1B0 1F1 2F1 2B1 1B1\n");
}

TEST(MessageOrder, IsThatOfTheSenderWhateverIsNeededFirst) {
  const Placement placement = MakeV(2, 2);
  const Schedule schedule = WithSends(Crossing(), placement);
  // 0RB0 may come once 3B0 is computed, 3RF1 once 0F1 is.
  EXPECT_THAT(Posts(0, schedule, placement, 3),
              ElementsAre("3RF0 @ 1", "0RB0 @ 3", "3RF1 @ 4", "0RB1 @ 7"));
  EXPECT_THAT(Posts(0, schedule, placement, 0),
              ElementsAre("3RF0 @ 1", "0RB0 @ 4", "3RF1 @ 4", "0RB1 @ 7"));
  EXPECT_THAT(Posts(1, schedule, placement, 3),
              ElementsAre("1RF0 @ 0", "2RB0 @ 2", "1RF1 @ 2", "2RB1 @ 6"));
}

TEST(MessageOrder, CountsTheActionsBeforeTheSendAndTheOneThatNeedsIt) {
  const Placement placement = MakeV(2, 2);
  const auto messages = MessagesTo(0, WithSends(Crossing(), placement), placement, 3);
  EXPECT_EQ(messages[2], (LaneMessage{.send = {Op::kSendForward, 2, 1},
                                      .from = 1,
                                      .sent_behind = 6,
                                      .needed_by = 4,
                                      .posted_behind = 4}));
}

TEST(MessageOrder, LanesAreIndependent) {
  const Placement placement = MakeLooped(3, 1);
  const Schedule schedule =
      WithSends(*MakeNamedSchedule("1f1b", {.num_ranks = 3, .num_microbatches = 2}), placement);
  // Rank 1: 1F0 1F1 1B0 1B1. Both come from rank 0 first, whatever rank 2 sends meanwhile.
  EXPECT_THAT(Posts(1, schedule, placement, 1),
              ElementsAre("1RF0 @ 0", "1RF1 @ 0", "1RB0 @ 1", "1RB1 @ 2"));
}

TEST(MessageOrder, FollowsSendsThatStandWhereTheSenderPutThem) {
  const Schedule schedule = *ParseSchedule(
      "rank 0: 0F0 0F1 0SF1 0SF0 0RB0 0B0 0RB1 0B1\n"
      "rank 1: 1RF1 1RF0 1F0 1F1 1B0 1SB0 1B1 1SB1\n");
  EXPECT_THAT(Posts(1, schedule, MakeLooped(2, 1), 0), ElementsAre("1RF1 @ 0", "1RF0 @ 0"));
}

TEST(MessageOrder, SendsFollowTheActionsThatMakeTheirData) {
  EXPECT_EQ(ToText(WithSends(*MakeNamedSchedule("zb-v", {2, 1, 2}), MakeV(2, 2))),
            "rank 0: 0F0 0SF0 3F0 3I0 3SB0 3W0 0I0 0W0\n"
            "rank 1: 1F0 2F0 2SF0 2I0 2W0 1I0 1SB0 1W0\n");
}

// Every shape of every kind, fixed and greedy, p <= 8, m <= 24.
template <typename Check>
void ForEveryShape(const Check& check) {
  for (const ScheduleKind& kind : ScheduleKinds()) {
    const bool alone = kind.name == "single_stage";
    for (int p = alone ? 1 : 2; p <= (alone ? 1 : 8); ++p) {
      for (int v = kind.min_virtual_pipeline_size; v <= std::min(3, kind.max_virtual_pipeline_size);
           ++v) {
        for (int m = 1; m <= 24; m += m < 8 ? 1 : 4) {
          const PipelineShape shape{p, m, v};
          SCOPED_TRACE(absl::StrCat(std::string(kind.name), " p=", p, " v=", v, " m=", m));
          const Placement placement = *MakeNamedPlacement(kind.name, shape);
          check(*MakeNamedSchedule(kind.name, shape), shape, placement);
          if (!kind.splits_backward) continue;
          std::vector<ChunkCost> costs(placement.NumChunks());
          for (size_t c = 0; c < costs.size(); ++c) {
            costs[c] = {.forward = 1.0 + static_cast<double>(c % 3),
                        .backward_input = 2,
                        .backward_weight = 1};
          }
          check(MakeGreedy(placement, costs, {.num_microbatches = m, .max_alive = v * p}), shape,
                placement);
        }
      }
    }
  }
}

// The posts of a rank, found by looking at every lane again before each of its actions.
class PlainPosting {
 public:
  PlainPosting(int rank, const Schedule& schedule, const Placement& placement, int look_ahead)
      : look_ahead_(look_ahead) {
    for (const Action& action : schedule.actions[rank]) {
      if (!IsTransfer(action.op)) computing_.push_back(action);
    }
    for (size_t from = 0; from < schedule.actions.size(); ++from) {
      for (const Action& action : schedule.actions[from]) {
        if (!IsSend(action.op)) continue;
        const Action receive = OtherEnd(action);
        if (placement.rank_of_chunk[receive.chunk] == rank) lanes_[from].push_back(receive);
      }
    }
  }

  // Returns what is posted before action `number`; asked for every number in turn.
  std::vector<Action> At(int number) {
    std::vector<Action> posted;
    for (auto& [from, lane] : lanes_) {
      while (!lane.empty() && MayCome(lane.front(), number) && IsDue(lane, number)) {
        posted.push_back(lane.front());
        lane.erase(lane.begin());
      }
    }
    return posted;
  }

  int NumActions() const { return static_cast<int>(computing_.size()); }

 private:
  int NumberOfUser(const Action& receive) const {
    const auto user = std::find_if(computing_.begin(), computing_.end(), [&](const Action& action) {
      const bool forward = action.op == Op::kForward;
      return action.op != Op::kBackwardWeight && action.chunk == receive.chunk &&
             action.microbatch == receive.microbatch &&
             forward == (receive.op == Op::kReceiveForward);
    });
    return static_cast<int>(user - computing_.begin());
  }
  // All that the rank takes on the microbatch before the user is done.
  bool MayCome(const Action& receive, int number) const {
    for (int i = number; i < NumberOfUser(receive); ++i) {
      const Action& action = computing_[i];
      if (action.microbatch == receive.microbatch && action.op != Op::kBackwardWeight) return false;
    }
    return true;
  }
  bool IsDue(const std::vector<Action>& lane, int number) const {
    return std::any_of(lane.begin(), lane.end(), [&](const Action& receive) {
      return NumberOfUser(receive) <= number + look_ahead_;
    });
  }

  const int look_ahead_;
  std::vector<Action> computing_;
  std::map<size_t, std::vector<Action>> lanes_;  // by sender, what is not posted
};

TEST(MessageOrder, IsWhatLookingAtTheLanesEachTimeGives) {
  for (const auto& [name, shape] :
       std::vector<std::pair<std::string, PipelineShape>>{{"1f1b", {3, 6, 1}},
                                                          {"interleaved", {3, 6, 2}},
                                                          {"zb-v", {2, 8, 2}},
                                                          {"zb-v", {4, 12, 2}},
                                                          {"zb-interleaved", {3, 7, 3}}}) {
    const Placement placement = *MakeNamedPlacement(name, shape);
    const Schedule schedule = *WithTransfers(*MakeNamedSchedule(name, shape), placement);
    for (const int look_ahead : {0, 1, 3, 100}) {
      for (int rank = 0; rank < shape.num_ranks; ++rank) {
        PlainPosting plain(rank, schedule, placement, look_ahead);
        for (int number = 0; number < plain.NumActions(); ++number) {
          std::vector<Action> expected = plain.At(number), posted;
          for (const LaneMessage& message : MessagesTo(rank, schedule, placement, look_ahead)) {
            if (message.posted_behind == number) posted.push_back(OtherEnd(message.send));
          }
          ASSERT_EQ(posted, expected) << name << ", rank " << rank << ", action " << number;
        }
      }
    }
  }
}

// Returns true if `send` is reached though `rank` stops behind its first `count` computing actions.
bool IsSentThough(const Action& send, Schedule schedule, const Placement& placement, int rank,
                  int count) {
  std::vector<Action>& list = schedule.actions[rank];
  auto end = list.begin();
  for (int number = 0; end != list.end(); ++end) {
    if (!IsTransfer(end->op) && number++ == count) break;
  }
  list.erase(end, list.end());
  ScheduleProgress progress{placement.NumChunks()};
  std::vector<size_t> position(schedule.actions.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < position.size(); ++r) {
      for (; position[r] < schedule.actions[r].size(); ++position[r], moved = true) {
        const Action& action = schedule.actions[r][position[r]];
        if (!IsReceive(action.op) && progress.WaitsFor(action)) break;
        progress.done.insert(action);
      }
    }
  }
  return progress.done.contains(send);
}

TEST(MessageOrder, BehindOwnWorkNoPostWaitsForALaterActionOfItsRank) {
  int num_moved = 0;
  for (const ScheduleKind& kind : ScheduleKinds()) {
    if (kind.name == "single_stage") continue;
    for (const int m : {1, 4, 7}) {
      const PipelineShape shape{3, m, std::min(2, kind.max_virtual_pipeline_size)};
      const Placement placement = *MakeNamedPlacement(kind.name, shape);
      const Schedule schedule = *WithTransfers(*MakeNamedSchedule(kind.name, shape), placement);
      for (int rank = 0; rank < shape.num_ranks; ++rank) {
        const auto due = MessagesTo(rank, schedule, placement, 3);
        auto posted = due;
        PostBehindOwnWork(rank, schedule, placement, posted);
        for (size_t i = 0; i < due.size(); ++i) {
          const LaneMessage& message = posted[i];
          ASSERT_LE(message.posted_behind, message.needed_by);
          ASSERT_TRUE(i == 0 || posted[i - 1].from != message.from ||
                      posted[i - 1].posted_behind <= message.posted_behind);
          EXPECT_TRUE(IsSentThough(message.send, schedule, placement, rank, message.posted_behind));
          if (message == due[i]) continue;
          ++num_moved;  // and no farther than it must be
          EXPECT_FALSE(
              IsSentThough(message.send, schedule, placement, rank, message.posted_behind - 1));
        }
      }
    }
  }
  EXPECT_GT(num_moved, 30);
}

TEST(MessageOrder, NoReceiveIsPostedTooLateInAnyShape) {
  int num_crossing = 0;
  ForEveryShape(
      [&](const Schedule& compute, const PipelineShape& shape, const Placement& placement) {
        const Schedule schedule = *WithTransfers(compute, placement);
        ASSERT_EQ(CheckSchedule(schedule, shape, placement), absl::OkStatus());
        bool crosses = false;
        for (int rank = 0; rank < shape.num_ranks; ++rank) {
          const auto messages = MessagesTo(rank, schedule, placement, 3);
          for (size_t i = 0; i < messages.size(); ++i) {
            ASSERT_LE(messages[i].posted_behind, messages[i].needed_by);
            crosses |= i > 0 && messages[i - 1].from == messages[i].from &&
                       messages[i - 1].needed_by > messages[i].needed_by;
          }
        }
        num_crossing += crosses;
      });
  EXPECT_GT(num_crossing, 100);  // shapes in which ranks need messages in another order
}

}  // namespace
}  // namespace deepnet
