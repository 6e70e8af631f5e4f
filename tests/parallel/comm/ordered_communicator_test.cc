#include "tests/support/ordered_communicator.h"

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/base/status_macros.h"
#include "tests/parallel/comm/communicator_contract.h"
#include "tests/support/run_ranks.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;

// The cases that lean on no tags: all but one, as long as the two neighbours of a rank differ.
std::vector<ContractCase> CasesOfOneChannel() {
  std::vector<ContractCase> cases;
  for (const ContractCase& contract_case : ContractCases()) {
    if (std::string_view(contract_case.name) == "MessagesWithDifferentTagsAreIndependent") continue;
    cases.push_back(contract_case);
  }
  return cases;
}

class OrderedContract : public testing::TestWithParam<ContractCase> {};

TEST_P(OrderedContract, Holds) {
  for (const int num_ranks : {3, 4}) {
    const auto statuses = RunRanks(num_ranks, [](Communicator& world) {
      OrderedCommunicator comm(world);
      GetParam().run(comm);
      return absl::OkStatus();
    });
    EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, OrderedContract, testing::ValuesIn(CasesOfOneChannel()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(OrderedContractCases, AreAllButOne) {
  EXPECT_EQ(CasesOfOneChannel().size() + 1, ContractCases().size());
}

struct Stated {
  int tag;
  size_t bytes;
};

// Rank 0 sends two messages and rank 1 receives two; returns how each of the receives ended.
std::vector<absl::Status> Received(const std::vector<Stated>& sent,
                                   const std::vector<Stated>& received) {
  std::vector<absl::Status> ends;
  const auto statuses = RunRanks(2, [&](Communicator& world) -> absl::Status {
    OrderedCommunicator comm(world);
    std::vector<std::vector<char>> memory;
    std::vector<std::unique_ptr<Transfer>> transfers;
    for (const Stated& stated : comm.rank() == 0 ? sent : received) {
      memory.emplace_back(stated.bytes, static_cast<char>(stated.tag));
      const Buffer buffer = Buffer::Of(std::span(memory.back()));
      ASSIGN_OR_RETURN(transfers.emplace_back(), comm.rank() == 0
                                                     ? comm.Send(buffer, 1, stated.tag)
                                                     : comm.Receive(buffer, 0, stated.tag));
    }
    for (const auto& transfer : transfers) {
      const absl::Status status = transfer->Wait();
      if (comm.rank() == 1) ends.push_back(status);
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
  return ends;
}

TEST(OrderedCommunicator, TagsDoNotReorder) {
  for (const absl::Status& end : Received({{5, 8}, {7, 9}}, {{5, 8}, {7, 9}})) {
    EXPECT_TRUE(end.ok()) << end;
  }
}

TEST(OrderedCommunicator, ReceivesInAnotherOrderNameBothTags) {
  const auto ends = Received({{5, 8}, {7, 8}}, {{7, 8}, {5, 8}});
  EXPECT_EQ(ends[0].message(),
            "Receive from rank 0 with tag 7, 8 B: the message that stands here in the sender's "
            "order has tag 5, 8 B");
  EXPECT_EQ(ends[1].message(),
            "Receive from rank 0 with tag 5, 8 B: the message that stands here in the sender's "
            "order has tag 7, 8 B");
  EXPECT_TRUE(absl::IsInvalidArgument(ends[0]));
}

TEST(OrderedCommunicator, AnotherSizeIsNamedWithBoth) {
  const auto ends = Received({{5, 8}}, {{5, 6}});
  EXPECT_THAT(std::string(ends[0].message()), HasSubstr("with tag 5, 6 B: the message"));
  EXPECT_THAT(std::string(ends[0].message()), HasSubstr("has tag 5, 8 B"));
}

}  // namespace
}  // namespace deepnet
