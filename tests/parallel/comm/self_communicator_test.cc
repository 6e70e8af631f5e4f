#include <memory>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
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
  EXPECT_EQ(*comm.Split(Communicator::kNoGroup, 0), nullptr);
  std::vector<float> values(2);
  const Buffer buffer = Buffer::Of(std::span<float>(values));
  EXPECT_EQ(buffer.bytes, 8);
  EXPECT_THAT(comm.Send(buffer, 0, 3).status().message(), HasSubstr("Send to rank 0 with tag 3"));
  EXPECT_EQ(comm.Receive(buffer, 1, 0).status().code(), absl::StatusCode::kInvalidArgument);
}

// Is late so many times, and then ends.
class LateTransfer final : public Transfer {
 public:
  LateTransfer(int times, absl::Status end, std::vector<absl::Duration>& limits)
      : times_(times), end_(std::move(end)), limits_(limits) {}
  absl::Status Wait(absl::Duration limit) override {
    limits_.push_back(limit);
    absl::SleepFor(absl::Milliseconds(1));
    return times_-- > 0 ? absl::DeadlineExceededError("late") : end_;
  }
  bool Done() override { return times_ <= 0; }

 private:
  int times_;
  const absl::Status end_;
  std::vector<absl::Duration>& limits_;
};

TEST(JoinTransfers, HaveOneTimeTogetherAndTheFirstErrorStays) {
  std::vector<absl::Duration> limits;
  std::vector<std::unique_ptr<Transfer>> parts;
  parts.push_back(std::make_unique<LateTransfer>(0, absl::OkStatus(), limits));
  parts.push_back(std::make_unique<LateTransfer>(1, absl::DataLossError("broken"), limits));
  parts.push_back(std::make_unique<LateTransfer>(0, absl::OkStatus(), limits));
  const auto joined = JoinTransfers("all", std::move(parts));
  EXPECT_FALSE(joined->Done());
  EXPECT_EQ(joined->Wait(absl::Seconds(9)), absl::DeadlineExceededError("all: late"));
  EXPECT_LE(limits.at(1), absl::Seconds(9) - absl::Milliseconds(1));
  EXPECT_TRUE(joined->Done());
  EXPECT_EQ(joined->Wait(absl::Seconds(9)), absl::DataLossError("all: broken"));
  EXPECT_EQ(joined->Wait(absl::Seconds(9)), absl::DataLossError("all: broken"));
  EXPECT_EQ(limits.size(), 3);  // neither the first again nor any behind the error
}

}  // namespace
}  // namespace deepnet
