// Times in these tests are whole numbers, so they are exact.

#include "parallel/plan/simulator.h"

#include <algorithm>
#include <map>
#include <random>
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

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Runs a schedule tick by tick: the slow, obvious twin. A rank that is free looks at its next
// action and begins it if its inputs have arrived; messages of a pair of ranks queue up.
class TickingRanks {
 public:
  TickingRanks(const Schedule& schedule, const Placement& placement,
               const std::vector<ChunkCost>& costs, int latency)
      : schedule_(schedule),
        placement_(placement),
        costs_(costs),
        latency_(latency),
        ranks_(schedule.actions.size()) {}

  // False if nothing has moved for longer than anything takes.
  bool Run() {
    for (int idle = 0; !Finished(); ++now_, ++idle) {
      if (idle > kLongest) return false;
      for (bool moved = true; moved;) {  // actions may take no time at all
        moved = false;
        for (size_t r = 0; r < ranks_.size(); ++r) moved |= Step(static_cast<int>(r));
        if (moved) idle = 0;
      }
    }
    return true;
  }
  int makespan() const { return makespan_; }
  // When the actions of `rank` ended.
  const std::vector<double>& Ends(int rank) const { return ranks_[rank].ended; }

 private:
  static constexpr int kLongest = 200;
  struct Rank {
    size_t position = 0;
    bool running = false;
    int ends = 0;
    std::vector<double> ended;
  };

  bool Finished() const {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].running || ranks_[r].position < schedule_.actions[r].size()) return false;
    }
    return true;
  }

  bool Arrived(const std::string& what, int chunk, int mb) const {
    const auto found = arrives_.find(absl::StrCat(what, chunk, "/", mb));
    return found != arrives_.end() && found->second <= now_;
  }

  bool Ready(const Action& a) const {
    switch (a.op) {
      case Op::kForward:
        return a.chunk == 0 || Arrived("output", a.chunk - 1, a.microbatch);
      case Op::kBackwardWeight:
        return Arrived("own gradient", a.chunk, a.microbatch);
      default:
        return Arrived("own output", a.chunk, a.microbatch) &&
               (a.chunk + 1 == placement_.NumChunks() ||
                Arrived("gradient", a.chunk + 1, a.microbatch));
    }
  }

  int Duration(const Action& a) const {
    const ChunkCost& cost = costs_[a.chunk];
    const double seconds = a.op == Op::kForward         ? cost.forward
                           : a.op == Op::kBackwardInput ? cost.backward_input
                           : a.op == Op::kBackwardWeight
                               ? cost.backward_weight
                               : cost.backward_input + cost.backward_weight;
    return static_cast<int>(seconds);
  }

  bool Step(int r) {
    Rank& rank = ranks_[r];
    if (rank.running && rank.ends <= now_) {
      Finish(r, schedule_.actions[r][rank.position++]);
      rank.running = false;
      return true;
    }
    if (rank.running || rank.position == schedule_.actions[r].size()) return false;
    const Action& action = schedule_.actions[r][rank.position];
    if (!Ready(action)) return false;
    rank.running = true;
    rank.ends = now_ + Duration(action);
    return true;
  }

  void Finish(int r, const Action& a) {
    const ChunkCost& cost = costs_[a.chunk];
    makespan_ = now_;
    ranks_[r].ended.push_back(now_);
    const std::string cell = absl::StrCat(a.chunk, "/", a.microbatch);
    if (a.op == Op::kForward) {
      arrives_["own output" + cell] = now_;
      if (a.chunk + 1 < placement_.NumChunks()) {
        Send("output" + cell, r, a.chunk, a.chunk + 1, costs_[a.chunk + 1].forward_bytes);
      }
    } else if (a.op != Op::kBackwardWeight) {
      arrives_["own gradient" + cell] = now_;
      if (a.chunk > 0) Send("gradient" + cell, r, a.chunk, a.chunk - 1, cost.backward_bytes);
    }
  }

  // One byte a tick.
  void Send(const std::string& what, int from, int chunk, int to_chunk, double bytes) {
    const int to = placement_.rank_of_chunk[to_chunk];
    if (placement_.rank_of_chunk[chunk] == to) {
      arrives_[what] = now_;
      return;
    }
    int& wire = wire_free_[{from, to}];
    wire = std::max(wire, now_) + static_cast<int>(bytes);
    arrives_[what] = wire + latency_;
  }

  const Schedule& schedule_;
  const Placement& placement_;
  const std::vector<ChunkCost>& costs_;
  const int latency_;
  int now_ = 0, makespan_ = 0;
  std::vector<Rank> ranks_;
  std::map<std::string, int> arrives_;
  std::map<std::pair<int, int>, int> wire_free_;
};

// Costs from 0 to 4 ticks, messages of up to 3, different for every chunk.
std::vector<ChunkCost> RandomCosts(int num_chunks, std::mt19937& random) {
  const auto roll = [&](int most) { return static_cast<double>(random() % (most + 1)); };
  std::vector<ChunkCost> costs;
  for (int c = 0; c < num_chunks; ++c) {
    costs.push_back({.forward = roll(4),
                     .backward_input = roll(4),
                     .backward_weight = roll(4),
                     .forward_bytes = roll(3),
                     .backward_bytes = roll(3)});
  }
  return costs;
}

Network OneBytePerTick(int latency) {
  const Link link{.latency_seconds = static_cast<double>(latency), .bytes_per_second = 1};
  return {.inside_node = link, .between_nodes = link};
}

void ExpectAgreement(const Schedule& schedule, const Placement& placement,
                     const std::vector<ChunkCost>& costs, int latency) {
  const absl::StatusOr<Simulation> fast =
      Simulate(schedule, placement, costs, OneBytePerTick(latency));
  ASSERT_TRUE(fast.ok()) << fast.status();
  TickingRanks slow(schedule, placement, costs, latency);
  ASSERT_TRUE(slow.Run());
  ASSERT_EQ(fast->makespan, slow.makespan()) << ToText(schedule);
  for (int rank = 0; rank < placement.NumRanks(); ++rank) {
    std::vector<double> ends;
    for (const TimedAction& timed : fast->timeline[rank]) ends.push_back(timed.end);
    ASSERT_EQ(ends, slow.Ends(rank)) << ToText(schedule);
  }
}

TEST(Simulator, AgreesWithTheTickingTwinOnEverySmallScheduleAtRandomCosts) {
  std::mt19937 random(7);
  for (const ScheduleKind& kind : ScheduleKinds()) {
    for (int p = 1; p <= (kind.name == "single_stage" ? 1 : 6); ++p) {
      for (int m = 1; m <= 12; ++m) {
        for (int v = kind.min_virtual_pipeline_size;
             v <= std::min(3, kind.max_virtual_pipeline_size); ++v) {
          const PipelineShape shape{p, m, v};
          const Placement placement = *MakeNamedPlacement(kind.name, shape);
          const std::vector<ChunkCost> costs = RandomCosts(p * v, random);
          for (const bool fitted : {false, true}) {
            const absl::StatusOr<Schedule> schedule =
                MakeNamedSchedule(kind.name, shape, fitted ? costs : std::vector<ChunkCost>());
            ASSERT_TRUE(schedule.ok()) << schedule.status();
            ExpectAgreement(*schedule, placement, costs, static_cast<int>(random() % 3));
          }
        }
      }
    }
  }
}

constexpr ChunkCost kUnit = {.forward = 1, .backward_input = 1, .backward_weight = 1};

TEST(Simulator, TimesEveryAction) {
  const absl::StatusOr<Simulation> simulation =
      Simulate(*ParseSchedule("rank 0: 0F0 0B0\nrank 1: 1F0 1B0"), MakeLooped(2, 1),
               std::vector<ChunkCost>{{.forward = 2, .backward_input = 1, .backward_weight = 1},
                                      {.forward = 3, .backward_input = 2, .backward_weight = 2}});
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  const TimedAction last = simulation->timeline[0][1];
  EXPECT_EQ(ToText(last.action), "0B0");
  EXPECT_EQ(last.start, 9);
  EXPECT_EQ(last.end, 11);
  EXPECT_EQ(simulation->makespan, 11);
  EXPECT_THAT(simulation->busy, ElementsAre(4, 7));
  EXPECT_THAT(simulation->bubble, DoubleEq(0.5));
  EXPECT_EQ(simulation->exposed_communication, 0);
}

TEST(Simulator, ChargesLatencyAndBandwidthOfTheLinkBetweenTwoRanks) {
  std::vector<ChunkCost> costs(3, kUnit);
  costs[1].forward_bytes = costs[2].forward_bytes = 12;
  const Network network{.inside_node = {.latency_seconds = 1, .bytes_per_second = 6},
                        .between_nodes = {.latency_seconds = 5, .bytes_per_second = 2},
                        .ranks_per_node = 2};
  const absl::StatusOr<Simulation> simulation =
      Simulate(*MakeNamedSchedule("1f1b", {.num_ranks = 3, .num_microbatches = 1}),
               MakeLooped(3, 1), costs, network);
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  // Forward: 1, hop 2 + 1, 1, hop 6 + 5, 1; backward: 3 x 2, hops without bytes 5 and 1.
  EXPECT_EQ(simulation->makespan, 29);
  EXPECT_THAT(simulation->exposed_communication, DoubleEq(1 - 9.0 / 29));
}

TEST(Simulator, OneLinkCarriesOneMessageAtATime) {
  std::vector<ChunkCost> costs(2, kUnit);
  costs[1].forward_bytes = 10;
  const absl::StatusOr<Simulation> simulation =
      Simulate(*ParseSchedule("rank 0: 0F0 0F1 0B0 0B1\nrank 1: 1F0 1F1 1B0 1B1"), MakeLooped(2, 1),
               costs, OneBytePerTick(0));
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  EXPECT_EQ(simulation->timeline[1][0].start, 11);
  EXPECT_EQ(simulation->timeline[1][1].start, 21);  // not 12
}

TEST(Simulator, ImpliesTheTransfersThatAListMayHave) {
  const PipelineShape shape{.num_ranks = 3, .num_microbatches = 5};
  const Schedule compute = *MakeNamedSchedule("1f1b", shape);
  std::mt19937 random(1);
  const std::vector<ChunkCost> costs = RandomCosts(3, random);
  const Placement placement = MakeLooped(3, 1);
  const Simulation plain = *Simulate(compute, placement, costs, OneBytePerTick(1));
  const Simulation with =
      *Simulate(*WithTransfers(compute, placement), placement, costs, OneBytePerTick(1));
  EXPECT_EQ(with.makespan, plain.makespan);
  EXPECT_EQ(with.timeline[2].size(), plain.timeline[2].size());
}

TEST(Simulator, NamesTheStuckAction) {
  const absl::Status status =
      Simulate(*ParseSchedule("rank 0: 0F0 0B0 0F1 0B1\nrank 1: 1F0 1F1 1B0 1B1"), MakeLooped(2, 1),
               std::vector<ChunkCost>(2, kUnit))
          .status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0, action 0B0: waits for ever"));
}

TEST(Simulator, RefusesAScheduleOfAnotherPlacement) {
  const absl::StatusOr<Simulation> simulation =
      Simulate(*ParseSchedule("rank 0: 0F0 1F0 1B0 0B0"), MakeLooped(2, 1),
               std::vector<ChunkCost>(2, kUnit));
  EXPECT_THAT(std::string(simulation.status().message()), HasSubstr("1 ranks listed, expected 2"));
  const absl::StatusOr<Simulation> swapped =
      Simulate(*ParseSchedule("rank 0: 1F0 1B0\nrank 1: 0F0 0B0"), MakeLooped(2, 1),
               std::vector<ChunkCost>(2, kUnit));
  EXPECT_THAT(std::string(swapped.status().message()),
              HasSubstr("rank 0, action 1F0: not of this placement"));
}

}  // namespace
}  // namespace deepnet
