#include "parallel/comm/links.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/base/clock.h"
#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "tests/support/fault_communicator.h"
#include "tests/support/forwarding_communicator.h"
#include "tests/support/run_ranks.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<std::pair<int, int>> kRing = {{0, 1}, {1, 2}, {2, 3}, {0, 3}};

TEST(Links, EveryDirectionOfEveryPairHasARateThatAllRanksKnow) {
  std::vector<std::vector<LinkRate>> rates(4);
  const auto statuses = RunRanks(4, [&](Communicator& comm) -> absl::Status {
    RETURN_IF_ERROR(CheckReachable(comm, absl::Seconds(20)));
    RETURN_IF_ERROR(ConnectLinks(comm, kRing, {}));
    ASSIGN_OR_RETURN(rates[comm.rank()], MeasureLinks(comm, kRing, {.rate_bytes = 1 << 16}));
    return absl::OkStatus();
  });
  ASSERT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
  ASSERT_EQ(rates[0].size(), 2 * kRing.size());
  for (size_t i = 0; i < rates[0].size(); ++i) {
    const auto [a, b] = kRing[i / 2];
    EXPECT_EQ(rates[0][i].from, i % 2 == 0 ? a : b);
    EXPECT_EQ(rates[0][i].to, i % 2 == 0 ? b : a);
    EXPECT_GT(rates[0][i].latency_seconds, 0.0);
    EXPECT_GT(rates[0][i].bytes_per_second, 0.0);
    EXPECT_EQ(rates[0][i].bytes_per_second, rates[3][i].bytes_per_second);
  }
}

TEST(Links, AClockThatIsAheadIsFound) {
  const auto statuses = RunRanks(3, [&](Communicator& comm) -> absl::Status {
    const double ahead = comm.rank() == 2 ? 100.0 : 0.0;
    ASSIGN_OR_RETURN(const std::vector<double> offsets,
                     ClockOffsets(comm, [&] { return SecondsNow() + ahead; }));
    EXPECT_EQ(offsets.size(), 3u);
    EXPECT_NEAR(offsets[1], 0.0, 1.0);
    EXPECT_NEAR(offsets[2], 100.0, 1.0);
    return absl::OkStatus();
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
}

TEST(Links, MessagesAndSumsThatAreRightHaveNoWrongNumber) {
  for (const int ranks : {1, 2, 3}) {
    const auto statuses = RunRanks(ranks, [&](Communicator& comm) -> absl::Status {
      ASSIGN_OR_RETURN(const auto checks, CheckMessages(comm, {}));
      EXPECT_EQ(checks.size(), ranks == 1 ? 0u : 12u);
      for (const LinkCheck& check : checks) EXPECT_EQ(check.wrong, 0) << check.name;
      return absl::OkStatus();
    });
    EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
  }
}

// The clock of rank 1 takes its time before and after it is read, that of rank 2 after it in every
// second answer, the last among them: the shortest trip says most, and half of it is the way there.
TEST(Links, OffsetsAreThoseInTheMiddleOfTheShortestTrip) {
  const auto statuses = RunRanks(3, [&](Communicator& comm) -> absl::Status {
    int calls = 0;
    const auto clock = [&] {
      if (comm.rank() == 1) absl::SleepFor(absl::Milliseconds(40));
      const double now = SecondsNow();
      if (comm.rank() == 1) absl::SleepFor(absl::Milliseconds(40));
      if (comm.rank() == 2 && ++calls % 2 == 0) absl::SleepFor(absl::Milliseconds(80));
      return now;
    };
    ASSIGN_OR_RETURN(const std::vector<double> offsets, ClockOffsets(comm, clock));
    for (const double offset : offsets) EXPECT_NEAR(offset, 0.0, 0.02);
    return absl::OkStatus();
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
}

// Sends long messages late.
class SlowSender final : public ForwardingCommunicator {
 public:
  explicit SlowSender(Communicator& inner) : ForwardingCommunicator(inner) {}

 private:
  TransferOr StartMessage(Direction direction, const Buffer& buffer, int peer, int tag) override {
    if (direction == Direction::kSend && buffer.bytes >= 1 << 16) {
      absl::SleepFor(absl::Milliseconds(200));
    }
    return ForwardingCommunicator::StartMessage(direction, buffer, peer, tag);
  }
};

TEST(Links, EachDirectionHasItsOwnRate) {
  const std::vector<std::pair<int, int>> pair = {{0, 1}};
  const auto statuses = RunRanks(2, [&](Communicator& quick) -> absl::Status {
    SlowSender slow(quick);
    Communicator& comm = quick.rank() == 0 ? quick : slow;
    ASSIGN_OR_RETURN(const auto rates, MeasureLinks(comm, pair, {.rate_bytes = 1 << 16}));
    constexpr double kSlow = (1 << 16) / 0.1;
    EXPECT_GT(rates[0].bytes_per_second, kSlow);
    EXPECT_LT(rates[1].bytes_per_second, kSlow);
    return absl::OkStatus();
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
}

// Gives the receiver of messages of `least` bytes or more a number that nobody sent.
class SpoilingCommunicator final : public ForwardingCommunicator {
 public:
  SpoilingCommunicator(Communicator& inner, int64_t least)
      : ForwardingCommunicator(inner), least_(least) {}

 private:
  TransferOr StartMessage(Direction direction, const Buffer& buffer, int peer, int tag) override {
    if (direction == Direction::kSend && buffer.bytes >= least_) {
      static_cast<float*>(buffer.data)[0] += 1.0f;
    }
    return ForwardingCommunicator::StartMessage(direction, buffer, peer, tag);
  }

  const int64_t least_;
};

TEST(Links, AMessageThatArrivesSpoiledIsCounted) {
  const auto statuses = RunRanks(2, [&](Communicator& inner) -> absl::Status {
    SpoilingCommunicator comm(inner, 1 << 21);
    ASSIGN_OR_RETURN(const auto checks, CheckMessages(comm, {}));
    for (const LinkCheck& check : checks) {
      EXPECT_EQ(check.wrong, check.name == "ring of 4096 KiB" ? 1 : 0) << check.name;
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
}

// Gathers into memory that nobody looks at.
class LosingCommunicator final : public ForwardingCommunicator {
 public:
  explicit LosingCommunicator(Communicator& inner) : ForwardingCommunicator(inner) {}
  TransferOr AllGather(Buffer mine, std::span<const Buffer> all) override {
    std::vector<Buffer> elsewhere;
    for (const Buffer& buffer : all) {
      lost_.emplace_back(buffer.bytes);
      elsewhere.push_back(Buffer::Of(std::span(lost_.back())));
    }
    return inner().AllGather(mine, elsewhere);
  }

 private:
  std::deque<std::vector<char>> lost_;
};

// What an earlier check left in the memory is not taken for what was to come.
TEST(Links, BlocksThatDoNotArriveAreCounted) {
  const auto statuses = RunRanks(2, [&](Communicator& inner) -> absl::Status {
    LosingCommunicator comm(inner);
    ASSIGN_OR_RETURN(const auto checks, CheckMessages(comm, {.checked_bytes = {4096}}));
    EXPECT_EQ(checks.size(), 4u);
    EXPECT_EQ(checks[1].name, "all-gather of 4 KiB");
    EXPECT_EQ(checks[1].wrong, 2 * 512 - 2);  // one 0 of each rank is right by chance
    EXPECT_EQ(checks[0].wrong + checks[2].wrong, 0);
    return absl::OkStatus();
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
}

// As messages of 4 KiB are among more than a thousand ranks.
TEST(Links, MessagesWithoutANumberForEachRankAreCheckedAllTheSame) {
  const auto statuses = RunRanks(3, [&](Communicator& inner) -> absl::Status {
    SpoilingCommunicator comm(inner, 1);
    ASSIGN_OR_RETURN(const auto checks, CheckMessages(comm, {.checked_bytes = {8}}));
    for (const LinkCheck& check : checks) {
      EXPECT_EQ(check.wrong, check.name == "ring of 0 KiB" ? 1 : 0) << check.name;
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
}

TEST(Links, AWayThatIsCutEndsTheJobAndNamesBothRanks) {
  const absl::Duration limit = absl::Seconds(2);
  const auto statuses = RunRanks(3, [&](Communicator& inner) -> absl::Status {
    // Rank 2's second call is its first Send, to rank 0.
    FaultCommunicator comm(inner, inner.rank() == 2 ? std::vector<Fault>{{Fault::Kind::kDrop, 1}}
                                                    : std::vector<Fault>{});
    RETURN_IF_ERROR(CheckReachable(comm, limit));
    return inner.Barrier();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(GetExitCode(status), ExitCode::kPreflight) << status;
  }
  EXPECT_THAT(std::string(statuses[0].message()),
              AllOf(HasSubstr("rank 0 (host "), HasSubstr("heard nothing from rank 2 within 2s")));
}

TEST(Links, APeerThatDoesNotAnswerIsNamed) {
  const auto statuses = RunRanks(2, [&](Communicator& comm) -> absl::Status {
    if (comm.rank() == 1) return comm.Barrier();
    return ClockOffsets(comm, SecondsNow, absl::Milliseconds(10)).status();
  });
  EXPECT_THAT(std::string(statuses[0].message()),
              HasSubstr("heard nothing from rank 1 within 10ms"));
  EXPECT_EQ(GetExitCode(statuses[1]), ExitCode::kPreflight) << statuses[1];
}

// Keeps what it is asked to connect.
class ConnectingCommunicator final : public ForwardingCommunicator {
 public:
  explicit ConnectingCommunicator(Communicator& inner) : ForwardingCommunicator(inner) {}
  absl::Status Connect(const Connections& connections, absl::Duration) override {
    asked = connections;
    return absl::OkStatus();
  }
  Connections asked;
};

TEST(Links, NeighboursAndBothRanksOfEachPairAreConnectedWithRoomForTheLargestCheck) {
  constexpr int64_t kLeast = 6 * 8 * sizeof(float), kLargest = 4096;
  const auto statuses = RunRanks(6, [&](Communicator& inner) -> absl::Status {
    ConnectingCommunicator comm(inner);
    const std::vector<std::pair<int, int>> pairs = {{1, 3}, {4, 1}};
    const std::vector<std::vector<int>> peers = {{1, 5},    {0, 2, 3, 4}, {1, 3},
                                                 {1, 2, 4}, {1, 3, 5},    {0, 4}};
    for (const int64_t largest : {int64_t{0}, kLargest}) {
      RETURN_IF_ERROR(ConnectLinks(comm, pairs, {.checked_bytes = {largest, 4}}));
      EXPECT_EQ(comm.asked.to, peers[comm.rank()]) << comm.rank();
      EXPECT_EQ(comm.asked.from, comm.asked.to);
      EXPECT_TRUE(comm.asked.all_to_all && comm.asked.all_gather && comm.asked.reduce_scatter);
      EXPECT_EQ(comm.asked.scratch.bytes, std::max(kLeast, largest));
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
}

class NeverSent final : public Transfer {
 public:
  NeverSent(std::unique_ptr<Transfer> sent, std::vector<absl::Duration>& limits)
      : sent_(std::move(sent)), limits_(limits) {}
  absl::Status Wait(absl::Duration limit) override {
    limits_.push_back(limit);
    absl::SleepFor(absl::Milliseconds(50));
    return absl::DeadlineExceededError("not sent");
  }
  bool Done() override { return false; }

 private:
  const std::unique_ptr<Transfer> sent_;
  std::vector<absl::Duration>& limits_;
};

class UnsentCommunicator final : public ForwardingCommunicator {
 public:
  explicit UnsentCommunicator(Communicator& inner) : ForwardingCommunicator(inner) {}
  const std::vector<absl::Duration>& limits() const { return limits_; }

 private:
  TransferOr StartMessage(Direction direction, const Buffer& buffer, int peer, int tag) override {
    ASSIGN_OR_RETURN(auto started,
                     ForwardingCommunicator::StartMessage(direction, buffer, peer, tag));
    if (direction == Direction::kReceive) return started;
    return std::make_unique<NeverSent>(std::move(started), limits_);
  }

  std::vector<absl::Duration> limits_;
};

// All have one time together.
TEST(Links, PeersThatTakeNothingAreNamedThoughTheyAreHeard) {
  const auto statuses = RunRanks(3, [&](Communicator& inner) -> absl::Status {
    if (inner.rank() > 0) return CheckReachable(inner, absl::Seconds(20));
    UnsentCommunicator comm(inner);
    absl::Status status = CheckReachable(comm, absl::Seconds(20));
    EXPECT_EQ(comm.limits().size(), 2);
    EXPECT_LE(comm.limits().back(), absl::Seconds(20) - absl::Milliseconds(50));
    return status;
  });
  EXPECT_EQ(GetExitCode(statuses[0]), ExitCode::kPreflight) << statuses[0];
  EXPECT_THAT(std::string(statuses[0].message()),
              HasSubstr("heard nothing from ranks 1, 2 within 20s"));
}

TEST(Links, AWayThatIsSlowHasALongLatency) {
  std::vector<LinkRate> rates;
  const std::vector<std::pair<int, int>> pairs = {{0, 1}, {1, 2}};
  const auto statuses = RunRanks(3, [&](Communicator& inner) -> absl::Status {
    std::vector<Fault> faults;
    for (int call = 0; inner.rank() == 2 && call < 200; ++call) {
      faults.push_back({Fault::Kind::kDelay, call, absl::Milliseconds(2)});
    }
    FaultCommunicator comm(inner, faults);
    ASSIGN_OR_RETURN(const auto mine, MeasureLinks(comm, pairs, {.rate_bytes = 1 << 16}));
    if (comm.rank() == 0) rates = mine;
    return absl::OkStatus();
  });
  ASSERT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
  EXPECT_LT(rates[0].latency_seconds, rates[2].latency_seconds / 2);
  EXPECT_GE(rates[3].latency_seconds, 1e-3);
}

}  // namespace
}  // namespace deepnet
