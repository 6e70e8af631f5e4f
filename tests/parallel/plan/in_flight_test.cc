#include "parallel/plan/in_flight.h"

#include <vector>

#include "gtest/gtest.h"

namespace deepnet {
namespace {

using Pending = std::vector<std::vector<PendingMatrices>>;

constexpr Op F = Op::kForward, I = Op::kBackwardInput, W = Op::kBackwardWeight, B = Op::kBackward;

int64_t DeferredBytes(const std::vector<Action>& actions, const Pending& pending, int per_sum) {
  return CountInFlight(Schedule{{actions}}, pending, per_sum).deferred_bytes.at(0);
}

TEST(CountInFlight, FindsTheMostOfEveryChunkAndTheMomentsWhenNoOtherHasAsMuch) {
  const InFlight most = CountInFlight(Schedule{{{{F, 0, 0},
                                                 {F, 0, 1},
                                                 {F, 1, 0},
                                                 {B, 0, 0},
                                                 {F, 1, 1},
                                                 {B, 1, 0},
                                                 {B, 1, 1},
                                                 {B, 0, 1}}}},
                                      Pending(2), /*per_sum=*/2);
  EXPECT_EQ(most.slots, (std::vector<int>{2, 2}));
  EXPECT_EQ(most.moments.at(0), (std::vector<std::vector<int>>{{2, 1}, {1, 2}}));
  EXPECT_EQ(most.deferred_bytes, std::vector<int64_t>{0});
}

TEST(CountInFlight, WeightGradientsOfAVirtualReplicaAreThereBeforeTheNextOneBegins) {
  const Pending pending = {{{.rows = 5, .columns = 2, .bytes = 10}}};
  const std::vector<Action> late = {{F, 0, 0}, {F, 0, 1}, {F, 0, 2}, {I, 0, 0}, {I, 0, 1},
                                    {I, 0, 2}, {W, 0, 0}, {W, 0, 1}, {W, 0, 2}};
  EXPECT_EQ(DeferredBytes(late, pending, 3), 30);
  EXPECT_EQ(DeferredBytes(late, pending, 2), 20);
  EXPECT_EQ(DeferredBytes(late, pending, 1), 10);
}

TEST(CountInFlight, AWholeBackwardPassBeginsAVirtualReplicaToo) {
  const Pending pending = {{{.rows = 5, .columns = 2, .bytes = 10}}};
  const std::vector<Action> mixed = {{F, 0, 0}, {F, 0, 1}, {F, 0, 2}, {I, 0, 0},
                                     {B, 0, 1}, {I, 0, 2}, {W, 0, 0}, {W, 0, 2}};
  EXPECT_EQ(DeferredBytes(mixed, pending, 3), 20);
  EXPECT_EQ(DeferredBytes(mixed, pending, 1), 10);
}

// The first chunk's matrices wait before those of the second.
TEST(CountInFlight, ChunksLendEachOtherBuffersOfOneShapeAlone) {
  const std::vector<Action> turns = {{F, 0, 0}, {F, 1, 0}, {I, 1, 0},
                                     {W, 1, 0}, {I, 0, 0}, {W, 0, 0}};
  const PendingMatrices small{.rows = 5, .columns = 2, .bytes = 10};
  const PendingMatrices large{.rows = 5, .columns = 2, .bytes = 30};
  const PendingMatrices other{.rows = 2, .columns = 5, .bytes = 10};
  EXPECT_EQ(DeferredBytes(turns, {{small}, {large}}, 1), 30);
  EXPECT_EQ(DeferredBytes(turns, {{other}, {large}}, 1), 40);
  EXPECT_EQ(DeferredBytes(turns, {{small, other}, {large}}, 1), 40);
}

}  // namespace
}  // namespace deepnet
