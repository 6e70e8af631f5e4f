// Every schedule over a communicator that matches messages between two ranks in order and knows no
// tags, with the real executor.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "parallel/base/status_macros.h"
#include "parallel/exec/pipeline_executor.h"
#include "parallel/plan/check_schedule.h"
#include "parallel/plan/message_order.h"
#include "parallel/plan/schedule.h"
#include "parallel/plan/schedule_generators.h"
#include "tests/parallel/exec/checksum_stage.h"
#include "tests/support/forwarding_communicator.h"
#include "tests/support/ordered_communicator.h"
#include "tests/support/run_ranks.h"

namespace deepnet {
namespace {

using ::deepnet::testing::ChecksumStage;

constexpr int kMaxRanks = 8;
constexpr int kMicrobatches[] = {1, 2, 3, 5, 8, 12, 24};

struct Case {
  std::string name;
  PipelineShape shape;
  Placement placement;
  Schedule compute;
};

// Chunks that differ, so that a greedy order is another one than the fixed one.
std::vector<ChunkCost> UnequalCosts(int num_chunks) {
  std::vector<ChunkCost> costs;
  for (int c = 0; c < num_chunks; ++c) {
    costs.push_back({.forward = 1.0 + c * 7 % 5 * 0.25,
                     .backward_input = 1.0 + c * 3 % 4 * 0.25,
                     .backward_weight = 1.0 + c * 5 % 3 * 0.25});
  }
  return costs;
}

// The fixed order of `kind`, and where there is one a greedy order.
void AddCases(const ScheduleKind& kind, const PipelineShape& shape, std::vector<Case>& cases) {
  const std::string name(kind.name);
  const std::string text =
      absl::StrCat(name, " p=", shape.num_ranks, " v=", shape.virtual_pipeline_size,
                   " m=", shape.num_microbatches);
  const Placement placement = *MakeNamedPlacement(name, shape);
  cases.push_back({text, shape, placement, *MakeNamedSchedule(name, shape)});
  if (!kind.splits_backward) return;
  const std::vector<int> alive = ClaimedAlive(name, shape);
  const double patience = shape.num_microbatches % 2 == 0 ? 0.25 : 0.0;
  cases.push_back({absl::StrCat(text, " greedy"), shape, placement,
                   MakeGreedy(placement, UnequalCosts(placement.NumChunks()),
                              {.num_microbatches = shape.num_microbatches,
                               .max_alive = *std::max_element(alive.begin(), alive.end()),
                               .patience = patience})});
}

std::vector<Case> CasesOf(const ScheduleKind& kind) {
  std::vector<Case> cases;
  const bool alone = kind.name == "single_stage";
  for (int p = alone ? 1 : 2; p <= (alone ? 1 : kMaxRanks); ++p) {
    for (const int m : kMicrobatches) {
      for (int v = kind.min_virtual_pipeline_size; v <= std::min(3, kind.max_virtual_pipeline_size);
           ++v) {
        if (v == 3 && p > 4) continue;
        AddCases(kind, {p, m, v}, cases);
      }
    }
  }
  return cases;
}

std::vector<uint64_t> GradientsOfOneRank(int num_chunks, int num_microbatches) {
  SelfCommunicator comm;
  Schedule schedule{{{}}};
  for (int m = 0; m < num_microbatches; ++m) {
    for (int c = 0; c < num_chunks; ++c) schedule.actions[0].push_back({Op::kForward, c, m});
    for (int c = num_chunks; c-- > 0;) schedule.actions[0].push_back({Op::kBackward, c, m});
  }
  ChecksumStage stage(Placement{std::vector<int>(num_chunks, 0)});
  EXPECT_TRUE(RunSchedule(schedule, Placement{}, stage, comm).ok());
  return stage.gradients;
}

// The most messages for which `rank` has memory at once, by what message_order.h says: from the
// post to the end of the action that needs it.
int MostReceived(int rank, const Schedule& schedule, const Placement& placement, int look_ahead) {
  std::vector<LaneMessage> messages = MessagesTo(rank, schedule, placement, look_ahead);
  PostBehindOwnWork(rank, schedule, placement, messages);
  int most = 0;
  for (int number = 0; number <= std::ssize(schedule.actions[rank]); ++number) {
    const auto has_memory = [&](const LaneMessage& message) {
      return message.posted_behind <= number && number <= message.needed_by;
    };
    most = std::max(most,
                    static_cast<int>(std::count_if(messages.begin(), messages.end(), has_memory)));
  }
  return most;
}

// Runs it over ordered lanes. OK if all gradients are those of one rank, and ranks have memory for
// as many messages at once as they say.
absl::Status RunOverLanes(const Case& it, int look_ahead) {
  const Schedule schedule = *WithTransfers(it.compute, it.placement);
  const std::vector<uint64_t> expected =
      GradientsOfOneRank(it.placement.NumChunks(), it.shape.num_microbatches);
  return FirstError(RunRanks(it.placement.NumRanks(), [&](Communicator& world) -> absl::Status {
    OrderedCommunicator comm(world);
    ChecksumStage stage(it.placement);
    ExecutorOptions options{.look_ahead = look_ahead, .comm_timeout = absl::Seconds(30)};
    RETURN_IF_ERROR(RunSchedule(schedule, it.placement, stage, comm, options));
    for (int c = 0; c < it.placement.NumChunks(); ++c) {
      if (it.placement.rank_of_chunk[c] == comm.rank() && stage.gradients[c] != expected[c]) {
        return absl::InternalError(absl::StrCat("chunk ", c, ": another gradient"));
      }
    }
    if (!stage.NothingLive()) return absl::InternalError("buffers left");
    const int most = MostReceived(comm.rank(), schedule, it.placement, look_ahead);
    if (stage.most_received == most) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("memory for ", stage.most_received, " messages, expected ", most));
  }));
}

class OrderedLanes : public ::testing::TestWithParam<std::string> {};

TEST_P(OrderedLanes, CarryTheScheduleInEveryShape) {
  for (const Case& it : CasesOf(*FindScheduleKind(GetParam()))) {
    const absl::Status status = RunOverLanes(it, kLookAhead);
    EXPECT_EQ(status, absl::OkStatus()) << it.name;
    ASSERT_FALSE(absl::IsDeadlineExceeded(status)) << "further shapes are left out";
  }
}

TEST_P(OrderedLanes, CarryTheScheduleWithAnyLookAhead) {
  const ScheduleKind& kind = *FindScheduleKind(GetParam());
  const int p = kind.name == "single_stage" ? 1 : 4;
  std::vector<Case> cases;
  AddCases(kind, {p, 12, std::min(2, kind.max_virtual_pipeline_size)}, cases);
  for (const Case& it : cases) {
    for (const int look_ahead : {0, 1, 2, 10, 1000}) {
      EXPECT_EQ(RunOverLanes(it, look_ahead), absl::OkStatus()) << it.name << " " << look_ahead;
    }
  }
}

// A communicator whose rank can wait for everything that it has under way.
class WatchedCommunicator final : public ForwardingCommunicator {
 public:
  explicit WatchedCommunicator(Communicator& inner) : ForwardingCommunicator(inner) {}

  absl::Status AwaitAll(absl::Duration limit) {
    for (Transfer* transfer : under_way_) RETURN_IF_ERROR(transfer->Wait(limit));
    return absl::OkStatus();
  }

 private:
  class Watch final : public Transfer {
   public:
    Watch(std::unique_ptr<Transfer> inner, std::set<Transfer*>& under_way)
        : inner_(std::move(inner)), under_way_(under_way) {
      under_way_.insert(inner_.get());
    }
    ~Watch() override { under_way_.erase(inner_.get()); }
    absl::Status Wait(absl::Duration limit) override { return inner_->Wait(limit); }
    bool Done() override { return inner_->Done(); }

   private:
    const std::unique_ptr<Transfer> inner_;
    std::set<Transfer*>& under_way_;
  };

  TransferOr StartMessage(Direction direction, const Buffer& buffer, int peer, int tag) override {
    ASSIGN_OR_RETURN(auto transfer,
                     ForwardingCommunicator::StartMessage(direction, buffer, peer, tag));
    return std::make_unique<Watch>(std::move(transfer), under_way_);
  }

  std::set<Transfer*> under_way_;
};

// A stage that calls `before(n)` before its action n.
class CountedStage final : public Stage {
 public:
  CountedStage(Stage& inner, std::function<absl::Status(int)> before)
      : inner_(inner), before_(std::move(before)) {}

  absl::Status Forward(int chunk, int mb) override {
    RETURN_IF_ERROR(before_(number_++));
    return inner_.Forward(chunk, mb);
  }
  absl::Status Backward(int chunk, int mb) override {
    RETURN_IF_ERROR(before_(number_++));
    return inner_.Backward(chunk, mb);
  }
  absl::Status BackwardInput(int chunk, int mb) override {
    RETURN_IF_ERROR(before_(number_++));
    return inner_.BackwardInput(chunk, mb);
  }
  absl::Status BackwardWeight(int chunk, int mb) override {
    RETURN_IF_ERROR(before_(number_++));
    return inner_.BackwardWeight(chunk, mb);
  }
  std::vector<Buffer> Buffers(Boundary boundary, int chunk, int mb) override {
    return inner_.Buffers(boundary, chunk, mb);
  }
  void Release(Boundary boundary, int chunk, int mb) override {
    inner_.Release(boundary, chunk, mb);
  }

 private:
  Stage& inner_;
  const std::function<absl::Status(int)> before_;
  int number_ = 0;
};

// Runs it with a rank whose action `idle_at` needs an idle device: it waits for whatever was
// started before it, early receives included.
absl::Status RunWithIdleDevice(const Case& it, const Schedule& schedule, int idle_rank,
                               int idle_at) {
  return FirstError(RunRanks(it.placement.NumRanks(), [&](Communicator& world) {
    OrderedCommunicator ordered(world);
    WatchedCommunicator comm(ordered);
    ChecksumStage inner(it.placement);
    CountedStage stage(inner, [&](int number) {
      if (comm.rank() != idle_rank || number != idle_at) return absl::OkStatus();
      return comm.AwaitAll(absl::Seconds(20));
    });
    return RunSchedule(schedule, it.placement, stage, comm);
  }));
}

TEST_P(OrderedLanes, NoReceiveWaitsForWhatItsRankIsStillToDo) {
  const ScheduleKind& kind = *FindScheduleKind(GetParam());
  const int p = kind.name == "single_stage" ? 1 : 3, m = 4;
  const int v = std::min(2, kind.max_virtual_pipeline_size);
  std::vector<Case> cases;
  AddCases(kind, {p, m, v}, cases);
  for (const Case& it : cases) {
    const Schedule schedule = *WithTransfers(it.compute, it.placement);
    for (int rank = 0; rank < p; ++rank) {
      for (int number = 0; number < std::ssize(it.compute.actions[rank]); ++number) {
        ASSERT_EQ(RunWithIdleDevice(it, schedule, rank, number), absl::OkStatus())
            << it.name << ", rank " << rank << ", action " << number;
      }
    }
  }
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const ScheduleKind& kind : ScheduleKinds()) names.emplace_back(kind.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Schedules, OrderedLanes, ::testing::ValuesIn(Names()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace deepnet
