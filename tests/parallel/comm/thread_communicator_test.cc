#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/backends.h"
#include "tests/parallel/comm/communicator_contract.h"
#include "tests/support/run_ranks.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ThreadContract : public testing::TestWithParam<std::tuple<int, ContractCase>> {};

TEST_P(ThreadContract, Holds) {
  const auto [num_ranks, contract_case] = GetParam();
  const std::vector<absl::Status> statuses =
      RunRanks(num_ranks, [run = contract_case.run](Communicator& comm) {
        run(comm);
        return absl::OkStatus();
      });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
}

INSTANTIATE_TEST_SUITE_P(Ranks, ThreadContract,
                         testing::Combine(testing::Values(2, 3, 4),
                                          testing::ValuesIn(ContractCases().begin(),
                                                            ContractCases().end())),
                         [](const auto& info) {
                           return std::get<1>(info.param).name +
                                  std::to_string(std::get<0>(info.param)) + "Ranks";
                         });

TEST(ThreadCommunicator, AGroupOfOneHasItsCollectives) {
  const auto comms = MakeThreadCommunicators(1);
  std::vector<float> values = {3};
  EXPECT_TRUE(comms[0]->AllReduceSum(std::span(values)).ok());
  EXPECT_TRUE(comms[0]->Barrier().ok());
  EXPECT_EQ(values[0], 3);
}

TEST(ThreadCommunicator, AbortEndsWhatOthersWaitForAndAllThatFollows) {
  const auto statuses = RunRanks(4, [](Communicator& comm) {
    if (comm.rank() == 2) comm.Abort(8);
    absl::Status waiting = comm.Barrier();  // rank 2 never joins it well
    EXPECT_FALSE(comm.Split(0, 0).ok());
    return waiting;
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_EQ(GetExitCode(status), ExitCode::kHang);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("Abort by rank 2"), HasSubstr("exit code 8")));
  }
}

TEST(ThreadCommunicator, AbortInOneGroupReachesEveryOther) {
  const auto statuses = RunRanks(4, [](Communicator& comm) {
    ASSIGN_OR_RETURN(const auto half, comm.Split(comm.rank() / 2, 0));
    if (comm.rank() == 3) half->Abort(9);  // rank 1 of its half
    char byte = 0;
    const Buffer buffer = Buffer::Of(std::span(&byte, 1));
    ASSIGN_OR_RETURN(const auto got, half->Receive(buffer, 1 - half->rank(), 0));
    return got->Wait();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(GetExitCode(status), ExitCode::kPeerLost);
    EXPECT_THAT(std::string(status.message()), HasSubstr("Abort by rank 3"));
  }
}

TEST(ThreadCommunicator, ADroppedTransferGivesTheGroupUp) {
  const auto statuses = RunRanks(2, [](Communicator& comm) -> absl::Status {
    if (comm.rank() == 1) return comm.Barrier();
    std::vector<char> bytes(8);
    return comm.Receive(Buffer::Of(std::span(bytes)), 1, 5).ok()
               ? absl::DataLossError("left on an error")
               : absl::OkStatus();
  });
  EXPECT_EQ(FirstError(statuses).code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(statuses[1].message()),
              HasSubstr("rank 0 gave up Receive from rank 1 with tag 5, 8 B"));
  EXPECT_EQ(GetExitCode(statuses[1]), ExitCode::kInternal);
}

TEST(ThreadCommunicator, TheFirstEndCounts) {
  const auto comms = MakeThreadCommunicators(2);
  comms[0]->Abort(8);
  comms[1]->Abort(9);
  const absl::Status status = comms[1]->Barrier();
  EXPECT_EQ(GetExitCode(status), ExitCode::kHang);
  EXPECT_THAT(std::string(status.message()), HasSubstr("Abort by rank 0"));
}

TEST(ThreadCommunicator, BothEndsHearThatTheirBytesDifferWhoeverComesFirst) {
  for (const bool sender_first : {false, true}) {
    const auto comms = MakeThreadCommunicators(2);
    std::vector<char> out(4), in(6);
    Communicator::TransferOr sent, got;
    for (const bool sends : {sender_first, !sender_first}) {
      if (sends) sent = comms[0]->Send(Buffer::Of(std::span(out)), 1, 0);
      if (!sends) got = comms[1]->Receive(Buffer::Of(std::span(in)), 0, 0);
    }
    EXPECT_THAT(std::string(Finish(sent).message()), HasSubstr("the peer states 6 B"));
    EXPECT_THAT(std::string(Finish(got).message()), HasSubstr("the peer states 4 B"));
  }
}

TEST(ThreadCommunicator, MessagesThatStartAtOnceHaveTagsInARow) {
  const auto comms = MakeThreadCommunicators(2);
  char out[] = {5, 6}, in[] = {0, 0};
  const auto sent = comms[0]->StartMessages(
      Communicator::Direction::kSend,
      std::vector<Buffer>{Buffer::Of(std::span(&out[0], 1)), Buffer::Of(std::span(&out[1], 1))}, 1,
      /*tag=*/4);
  const auto second = comms[1]->Receive(Buffer::Of(std::span(&in[1], 1)), 0, 5);
  const auto first = comms[1]->Receive(Buffer::Of(std::span(&in[0], 1)), 0, 4);
  for (const auto* transfer : {&second, &first, &sent}) {
    EXPECT_TRUE(Finish(*transfer, absl::Seconds(60)).ok());
  }
  EXPECT_EQ(in[0], 5);
  EXPECT_EQ(in[1], 6);
}

// Rank 1 comes to nothing, or to the first half of a large sum alone.
TEST(ThreadCommunicator, BlockingCollectivesKeepTheirLimits) {
  constexpr absl::Duration kInVain = absl::Milliseconds(1);
  constexpr size_t kLarge = 5000;
  const auto expect_late = [](const absl::Status& status) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  };
  expect_late(MakeThreadCommunicators(2)[0]->Barrier(kInVain));
  std::vector<float> values(kLarge), theirs(kLarge), rows(kLarge);
  for (const size_t count : {size_t{1}, kLarge}) {
    expect_late(
        MakeThreadCommunicators(2)[0]->AllReduceSum(std::span(values).first(count), kInVain));
  }
  const auto halves = [](std::vector<float>& all) {
    const std::span<float> both(all);
    return std::vector<Buffer>{Buffer::Of(both.first(kLarge / 2)),
                               Buffer::Of(both.last(kLarge / 2))};
  };
  const auto comms = MakeThreadCommunicators(2);
  const auto begun = comms[1]->AllToAll(halves(theirs), halves(rows));
  expect_late(comms[0]->AllReduceSum(std::span(values), absl::Milliseconds(20)));
  EXPECT_TRUE(begun.ok() && (*begun)->Wait().ok());
}

TEST(ThreadCommunicator, MovesHostMemoryOnly) {
  const auto comms = MakeThreadCommunicators(2);
  Buffer buffer;
  buffer.device = {.kind = Device::Kind::kCuda, .index = 3};
  const absl::Status status = comms[0]->Send(buffer, 1, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("accelerator 3"));
}

TEST(ThreadCommunicator, GroupsOfOneRankServeSeveralThreads) {
  const auto statuses = RunRanks(2, [](Communicator& comm) -> absl::Status {
    ASSIGN_OR_RETURN(const auto second, comm.Split(0, 0));
    absl::Status background;
    std::thread thread([&] {
      for (int i = 0; i < 100 && background.ok(); ++i) background = second->Barrier();
    });
    absl::Status foreground;
    for (int i = 0; i < 100 && foreground.ok(); ++i) foreground = comm.Barrier();
    thread.join();
    return foreground.ok() ? background : foreground;
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
}

}  // namespace
}  // namespace deepnet
