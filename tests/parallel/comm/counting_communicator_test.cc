#include "tests/support/counting_communicator.h"

#include <vector>

#include "gtest/gtest.h"

#include "parallel/base/status_macros.h"
#include "tests/parallel/comm/communicator_contract.h"
#include "tests/support/run_ranks.h"

namespace deepnet {
namespace {

class CountingContract : public testing::TestWithParam<ContractCase> {};

TEST_P(CountingContract, Holds) {
  const auto statuses = RunRanks(3, [](Communicator& world) {
    CommMeter meter;
    CountingCommunicator comm(world, meter);
    GetParam().run(comm);
    return absl::OkStatus();
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
}

INSTANTIATE_TEST_SUITE_P(Cases, CountingContract,
                         testing::ValuesIn(ContractCases().begin(), ContractCases().end()),
                         [](const auto& info) { return std::string(info.param.name); });

CommCounts WithoutSeconds(CommCounts counts) {
  counts.waited_seconds = 0;
  return counts;
}

TEST(CountingCommunicator, CountsMessagesAndCollectivesAlsoInGroups) {
  const auto statuses = RunRanks(4, [](Communicator& world) -> absl::Status {
    CommMeter meter;
    CountingCommunicator comm(world, meter);
    std::vector<char> memory(1000);
    const Buffer buffer = Buffer::Of(std::span(memory));
    if (comm.rank() == 0) {
      ASSIGN_OR_RETURN(const auto sent, comm.Send(buffer, 1, 0));
      RETURN_IF_ERROR(sent->Wait());
    }
    if (comm.rank() == 1) {
      ASSIGN_OR_RETURN(const auto got, comm.Receive(buffer, 0, 0));
      RETURN_IF_ERROR(got->Wait());
    }
    const CommCounts before = meter.counts();
    EXPECT_EQ(before.sent_messages, comm.rank() == 0 ? 1 : 0);
    EXPECT_EQ(before.sent_bytes, comm.rank() == 0 ? 1000 : 0);
    EXPECT_EQ(before.received_bytes, comm.rank() == 1 ? 1000 : 0);

    // 2,048 doubles do not fit into one small exchange: each half of them travels twice.
    ASSIGN_OR_RETURN(const auto half, comm.Split(comm.rank() / 2, 0));
    const CommCounts at_split = meter.counts();
    std::vector<double> values(2048, 1.0);
    RETURN_IF_ERROR(half->AllReduceSum(std::span(values)));
    EXPECT_EQ(meter.counts().sent_bytes - at_split.sent_bytes, 2048 * 8);
    EXPECT_EQ(meter.counts().received_bytes - at_split.received_bytes, 2048 * 8);
    return absl::OkStatus();
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
}

TEST(CountingCommunicator, CountsNothingThatStaysOnTheRankOrIsEmpty) {
  const auto statuses = RunRanks(2, [](Communicator& world) -> absl::Status {
    CommMeter meter;
    CountingCommunicator comm(world, meter);
    std::vector<char> a(10), b(10);
    std::vector<Buffer> send(2), receive(2);
    send[comm.rank()] = Buffer::Of(std::span(a));
    receive[comm.rank()] = Buffer::Of(std::span(b));
    ASSIGN_OR_RETURN(const auto done, comm.AllToAll(send, receive));
    RETURN_IF_ERROR(done->Wait());
    EXPECT_EQ(WithoutSeconds(meter.counts()), CommCounts());
    return absl::OkStatus();
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
}

TEST(CountingCommunicator, CountsTheSecondsOfWaiting) {
  const auto statuses = RunRanks(2, [](Communicator& world) -> absl::Status {
    CommMeter meter;
    CountingCommunicator comm(world, meter);
    char byte = 0;
    const Buffer buffer = Buffer::Of(std::span(&byte, 1));
    ASSIGN_OR_RETURN(const auto got, comm.Receive(buffer, 1 - comm.rank(), 0));
    EXPECT_TRUE(absl::IsDeadlineExceeded(got->Wait(absl::Milliseconds(20))));
    EXPECT_GE(meter.counts().waited_seconds, 0.019);  // clocks may differ by a little
    RETURN_IF_ERROR(comm.Barrier());  // nobody sends before both have waited in vain
    ASSIGN_OR_RETURN(const auto sent, comm.Send(buffer, 1 - comm.rank(), 0));
    RETURN_IF_ERROR(sent->Wait());
    return got->Wait();
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
}

}  // namespace
}  // namespace deepnet
