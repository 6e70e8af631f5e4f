// The communicator between processes, by MPI or by TCP, whatever started them.
#include <cstdlib>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "launch/launcher.h"
#include "parallel/base/exit_code.h"
#include "parallel/comm/backends.h"
#include "tests/mpi/mpi_main.h"
#include "tests/parallel/comm/communicator_contract.h"

namespace deepnet {
namespace {

using ::testing::HasSubstr;

void StartsOnceInAProcess() {
  const auto second = MakeMpiCommunicator();
  EXPECT_EQ(GetExitCode(second.status()), ExitCode::kPreflight);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("before"));
}

void MovesHostMemoryOnly(Communicator& world) {
  Buffer buffer;
  buffer.device.kind = Device::Kind::kCuda;
  const int peer = (world.rank() + 1) % world.size();
  EXPECT_EQ(world.Send(buffer, peer, 0).status().code(), absl::StatusCode::kInvalidArgument);
}

double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// A core that were kept busy would count as one second per second, from each rank.
void WaitingKeepsNoCoreBusy(Communicator& world) {
  constexpr absl::Duration kWait = absl::Seconds(1);
  constexpr double kMaxCpuSeconds = 0.25;
  char byte = 0;
  const Buffer buffer = Buffer::Of(std::span(&byte, 1));
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() + world.size() - 1) % world.size();
  const auto got = world.Receive(buffer, previous, 0);
  ASSERT_TRUE(got.ok());
  const double before = CpuSeconds();
  EXPECT_EQ((*got)->Wait(kWait).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(CpuSeconds() - before, kMaxCpuSeconds);
  EXPECT_TRUE(world.Barrier().ok());
  const auto sent = world.Send(buffer, next, 0);
  ASSERT_TRUE(sent.ok());
  EXPECT_TRUE((*got)->Wait().ok());
  EXPECT_TRUE((*sent)->Wait().ok());
}

void GroupsOfOneRankServeSeveralThreads(Communicator& world) {
  const auto second = world.Split(0, 0);
  ASSERT_TRUE(second.ok());
  std::thread thread([&] {
    for (int i = 0; i < 50; ++i) EXPECT_TRUE((*second)->Barrier().ok());
  });
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(world.Barrier().ok());
  thread.join();
}

}  // namespace

void AddMpiTests(Communicator& world) {
  for (const ContractCase& contract_case : ContractCases()) {
    AddMpiTest("Contract", contract_case.name, [&] { contract_case.run(world); });
  }
  if (FindLaunch(std::getenv, !MpiVersion().empty())->by == Launch::By::kMpi)
    AddMpiTest("MpiJob", "StartsOnceInAProcess", StartsOnceInAProcess);
  AddMpiTest("Communicator", "MovesHostMemoryOnly", [&] { MovesHostMemoryOnly(world); });
  AddMpiTest("Communicator", "WaitingKeepsNoCoreBusy", [&] { WaitingKeepsNoCoreBusy(world); });
  AddMpiTest("Communicator", "GroupsOfOneRankServeSeveralThreads",
             [&] { GroupsOfOneRankServeSeveralThreads(world); });
}

}  // namespace deepnet
