#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/comm/communicator.h"

namespace deepnet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SelfCommunicator, IsRankZeroOfOne) {
  const SelfCommunicator comm;
  EXPECT_EQ(comm.rank(), 0);
  EXPECT_EQ(comm.size(), 1);
}

TEST(SelfCommunicator, CollectivesLeaveTheBufferAsItIs) {
  SelfCommunicator comm;
  std::vector<float> floats = {1.0f, -2.0f};
  std::vector<double> doubles = {0.1, 0.2};
  EXPECT_TRUE(comm.AllReduceSum(std::span<float>(floats)).ok());
  EXPECT_TRUE(comm.AllReduceSum(std::span<double>(doubles)).ok());
  EXPECT_TRUE(comm.Barrier().ok());
  EXPECT_THAT(floats, ElementsAre(1.0f, -2.0f));
  EXPECT_THAT(doubles, ElementsAre(0.1, 0.2));
}

TEST(SelfCommunicator, HasNobodyToTalkTo) {
  SelfCommunicator comm;
  std::vector<float> values(2);
  const Buffer buffer = Buffer::Of(std::span<float>(values));
  EXPECT_EQ(buffer.bytes, 8);
  EXPECT_THAT(comm.Send(buffer, 0, 3).status().message(), HasSubstr("Send to rank 0 with tag 3"));
  EXPECT_EQ(comm.Receive(buffer, 1, 0).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace deepnet
