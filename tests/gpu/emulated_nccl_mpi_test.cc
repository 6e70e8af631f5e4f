// NCCL's communicator between processes that MPI started, on emulated GPUs: rank r has device r.
#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/comm/backends.h"
#include "tests/gpu/emulated/device.h"
#include "tests/mpi/mpi_main.h"
#include "tests/parallel/comm/communicator_contract.h"

namespace deepnet {
namespace {

constexpr absl::Duration kSoon = absl::Minutes(1);

std::vector<uint8_t> Pattern(int64_t bytes, int salt) {
  std::vector<uint8_t> pattern(bytes);
  for (int64_t i = 0; i < bytes; ++i) pattern[i] = static_cast<uint8_t>(i * (salt + 3) + salt);
  return pattern;
}

Buffer OnDevice(const std::vector<uint8_t>& bytes, int device) {
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, bytes.size()), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(pointer, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return {
      pointer, static_cast<int64_t>(bytes.size()), {.kind = Device::Kind::kCuda, .index = device}};
}

std::vector<uint8_t> ToHost(const Buffer& buffer) {
  std::vector<uint8_t> bytes(buffer.bytes);
  EXPECT_EQ(cudaMemcpy(bytes.data(), buffer.data, bytes.size(), cudaMemcpyDeviceToHost),
            cudaSuccess);
  return bytes;
}

void ExpectDone(const Communicator::TransferOr& transfer) {
  ASSERT_TRUE(transfer.ok()) << transfer.status();
  const absl::Status status = (*transfer)->Wait(kSoon);
  EXPECT_TRUE(status.ok()) << status;
}

void ARingShiftDeliversTheNeighboursBytes(Communicator& comm) {
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  for (const int64_t bytes : {1, 4096, 3 << 20}) {
    const Buffer out = OnDevice(Pattern(bytes, comm.rank()), comm.rank());
    const Buffer in = OnDevice(std::vector<uint8_t>(bytes), comm.rank());
    const auto got = comm.Receive(in, previous, 0);  // posted before anybody sends
    const auto sent = comm.Send(out, next, 0);
    ExpectDone(got);
    ExpectDone(sent);
    EXPECT_TRUE(ToHost(in) == Pattern(bytes, previous));
  }
}

void AllGatherInPlace(Communicator& comm) {
  std::vector<Buffer> all;
  for (int rank = 0; rank < comm.size(); ++rank) {
    all.push_back(OnDevice(Pattern(500 + rank, rank == comm.rank() ? rank : 100), comm.rank()));
  }
  ExpectDone(comm.AllGather(all[comm.rank()], all));
  for (int rank = 0; rank < comm.size(); ++rank) {
    EXPECT_TRUE(ToHost(all[rank]) == Pattern(500 + rank, rank));
  }
}

}  // namespace

void AddMpiTests(Communicator& world) {
  EXPECT_EQ(cudaSetDevice(world.rank()), cudaSuccess);
  auto made = MakeNcclCommunicator(world, world.rank());
  ASSERT_TRUE(made.ok()) << made.status();
  const std::shared_ptr<Communicator> comm = *std::move(made);
  const Buffer scratch = OnDevice(std::vector<uint8_t>(1 << 16), world.rank());
  const absl::Status connected = comm->Connect(AllLinks(*comm, scratch), kSoon);
  ASSERT_TRUE(connected.ok()) << connected;
  for (const ContractCase& contract_case : ContractCases()) {
    AddMpiTest("NcclContract", contract_case.name,
               [comm, &contract_case] { contract_case.run(*comm); });
  }
  AddMpiTest("NcclOnEmulatedGpus", "ARingShiftDeliversTheNeighboursBytes",
             [comm] { ARingShiftDeliversTheNeighboursBytes(*comm); });
  AddMpiTest("NcclOnEmulatedGpus", "AllGatherInPlace", [comm] { AllGatherInPlace(*comm); });
}

}  // namespace deepnet
