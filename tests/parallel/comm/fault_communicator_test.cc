#include "tests/support/fault_communicator.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/base/status_macros.h"
#include "tests/parallel/comm/communicator_contract.h"
#include "tests/support/run_ranks.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;

class FaultlessContract : public testing::TestWithParam<ContractCase> {};

TEST_P(FaultlessContract, HoldsOnALateRank) {
  const auto statuses = RunRanks(2, [](Communicator& world) {
    std::vector<Fault> faults;
    if (world.rank() == 1) faults = {{Fault::Kind::kDelay, 0, absl::Milliseconds(3)}};
    FaultCommunicator comm(world, faults);
    GetParam().run(comm);
    return absl::OkStatus();
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
}

INSTANTIATE_TEST_SUITE_P(Cases, FaultlessContract,
                         testing::ValuesIn(ContractCases().begin(), ContractCases().end()),
                         [](const auto& info) { return std::string(info.param.name); });

// Rank 0 sends 1, 2, 3 to rank 1 with one tag.
absl::Status SendThree(Communicator& comm) {
  for (char byte : {1, 2, 3}) {
    ASSIGN_OR_RETURN(const auto sent, comm.Send(Buffer::Of(std::span(&byte, 1)), 1, 0));
    RETURN_IF_ERROR(sent->Wait());
  }
  return absl::OkStatus();
}

TEST(FaultCommunicator, ADroppedSendEndsWellAndNeverArrives) {
  const auto statuses = RunRanks(2, [](Communicator& world) -> absl::Status {
    if (world.rank() == 0) {
      FaultCommunicator comm(world, {{.kind = Fault::Kind::kDrop, .at_call = 1}});
      RETURN_IF_ERROR(SendThree(comm));
      EXPECT_EQ(comm.num_calls(), 3);
      return absl::OkStatus();
    }
    for (const char expected : {1, 3}) {
      char byte = 0;
      ASSIGN_OR_RETURN(const auto got, world.Receive(Buffer::Of(std::span(&byte, 1)), 0, 0));
      RETURN_IF_ERROR(got->Wait());
      EXPECT_EQ(byte, expected);
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
}

TEST(FaultCommunicator, ADeadRankIsSilentToItsPeers) {
  const auto statuses = RunRanks(2, [](Communicator& world) -> absl::Status {
    if (world.rank() == 0) {
      FaultCommunicator comm(world, {{.kind = Fault::Kind::kDie, .at_call = 0}});
      absl::Status first = SendThree(comm);
      EXPECT_EQ(comm.Split(0, 0).status().code(), absl::StatusCode::kUnavailable);
      return first;
    }
    char byte = 0;
    ASSIGN_OR_RETURN(const auto got, world.Receive(Buffer::Of(std::span(&byte, 1)), 0, 0));
    return got->Wait();
  });
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("rank 0 died at call 0"));
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kAborted) << "RunRanks ends the others";
}

}  // namespace
}  // namespace deepnet
