#include "parallel/comm/limited_communicator.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/base/exit_code.h"
#include "parallel/base/status_macros.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/collectives.h"
#include "tests/parallel/comm/communicator_contract.h"
#include "tests/support/fault_communicator.h"
#include "tests/support/run_ranks.h"

namespace deepnet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class LimitedContract : public testing::TestWithParam<ContractCase> {};

TEST_P(LimitedContract, Holds) {
  const auto statuses = RunRanks(3, [](Communicator& world) {
    LimitedCommunicator comm(world, {.longest = absl::Hours(1), .rank = world.rank()});
    GetParam().run(comm);
    return absl::OkStatus();
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
}

INSTANTIATE_TEST_SUITE_P(Cases, LimitedContract,
                         testing::ValuesIn(ContractCases().begin(), ContractCases().end()),
                         [](const auto& info) { return std::string(info.param.name); });

// Waits on the plain communicator until the job ends.
absl::Status WaitForTheEnd(Communicator& world, int peer) {
  char byte = 0;
  ASSIGN_OR_RETURN(const auto never, world.Receive({&byte, 1, {}}, peer, /*tag=*/9));
  return never->Wait();
}

TEST(LimitedCommunicator, APeerThatNeverComesIsNamedAndEndsTheJob) {
  const auto statuses = RunRanks(3, [](Communicator& world) -> absl::Status {
    if (world.rank() == 2) return WaitForTheEnd(world, 0);
    LimitedCommunicator comm(world, {.longest = absl::Milliseconds(20), .rank = 40 + world.rank()});
    comm.Begin("sum of everything");
    return AgreeOnStatus(comm, absl::OkStatus());
  });
  for (const absl::Status& status : statuses) EXPECT_EQ(GetExitCode(status), ExitCode::kHang);
  EXPECT_TRUE(absl::IsAborted(statuses[2])) << statuses[2];
  EXPECT_THAT(std::string(FirstError(statuses).message()),
              AllOf(HasSubstr("rank 4"), HasSubstr("sum of everything"),
                    HasSubstr("nothing has moved for 20ms (parallel.step_timeout_seconds)"),
                    HasSubstr("rank 2")));
}

TEST(LimitedCommunicator, AWaitWithALimitOfItsOwnKeepsIt) {
  const auto statuses = RunRanks(2, [](Communicator& world) -> absl::Status {
    LimitedCommunicator comm(world, {.longest = absl::Hours(1), .rank = world.rank()});
    char byte = 5;
    if (comm.rank() == 1) {
      RETURN_IF_ERROR(comm.Barrier());
      ASSIGN_OR_RETURN(const auto sent, comm.Send({&byte, 1, {}}, 0, 0));
      return sent->Wait();
    }
    ASSIGN_OR_RETURN(const auto got, comm.Receive({&byte, 1, {}}, 1, 0));
    const absl::Status early = got->Wait(absl::Milliseconds(1));
    EXPECT_TRUE(absl::IsDeadlineExceeded(early)) << early;
    EXPECT_EQ(GetExitCode(early), ExitCode::kInternal);  // nobody has ended anything
    RETURN_IF_ERROR(comm.Barrier());
    return got->Wait();
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
}

TEST(LimitedCommunicator, ALostPeerEndsTheJobWithItsOwnCode) {
  const auto statuses = RunRanks(2, [](Communicator& world) -> absl::Status {
    if (world.rank() == 1) return WaitForTheEnd(world, 0);
    FaultCommunicator dying(world, {{.kind = Fault::Kind::kDie, .at_call = 0, .delay = {}}});
    LimitedCommunicator comm(dying, {.longest = absl::Hours(1), .rank = 0});
    comm.Begin("gather");
    return comm.Barrier();
  });
  EXPECT_THAT(std::string(statuses[0].message()),
              AllOf(HasSubstr("rank 0, gather: a peer is lost"), HasSubstr("died at call 0")));
  for (const absl::Status& status : statuses) EXPECT_EQ(GetExitCode(status), ExitCode::kPeerLost);
}

}  // namespace
}  // namespace deepnet
