// Device memory between ranks. Where there is no GPU, or no NCCL in the build, what is tested is
// that every rank says so. Several ranks on one GPU are enough: each pretends to be another host.
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/base/exit_code.h"
#include "parallel/comm/backends.h"
#include "tests/mpi/mpi_main.h"
#include "tests/parallel/comm/communicator_contract.h"
#include "trainer/kernels/aten.h"

namespace deepnet {
namespace {

constexpr absl::Duration kSoon = absl::Minutes(1);

Buffer View(const at::Tensor& tensor) {
  return {tensor.data_ptr(),
          static_cast<int64_t>(tensor.nbytes()),
          {.kind = Device::Kind::kCuda, .index = 0}};
}

// Bytes that tell one message from another, on the GPU.
at::Tensor Pattern(int64_t bytes, int salt) {
  return (at::arange(bytes) * (salt + 3) + salt).to(at::kByte).to(at::kCUDA);
}

at::Tensor Room(int64_t bytes) {
  return at::zeros({bytes}, at::device(at::kCUDA).dtype(at::kByte));
}

void ExpectDone(const Communicator::TransferOr& transfer) {
  ASSERT_TRUE(transfer.ok()) << transfer.status();
  const absl::Status status = (*transfer)->Wait(kSoon);
  EXPECT_TRUE(status.ok()) << status;
}

void ARingShiftDeliversTheNeighboursBytes(Communicator& comm) {
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  for (const int64_t bytes : {1, 4096, 5 << 20}) {
    const at::Tensor out = Pattern(bytes, comm.rank()), in = Room(bytes);
    const auto got = comm.Receive(View(in), previous, 0);  // posted before anybody sends
    const auto sent = comm.Send(View(out), next, 0);
    ExpectDone(got);
    ExpectDone(sent);
    EXPECT_TRUE(at::equal(in, Pattern(bytes, previous)));
  }
}

void EarlyReceivesHoldNothingUp(Communicator& comm) {
  // Both ranks of a pair post all receives, then send and wait in turn.
  const int peer = comm.rank() ^ 1;
  if (peer >= comm.size()) return;
  constexpr int kCount = 4;
  std::vector<at::Tensor> in, out;
  std::vector<Communicator::TransferOr> got, sent;
  for (int i = 0; i < kCount; ++i) {
    in.push_back(Room(1000 + i));
    got.push_back(comm.Receive(View(in[i]), peer, 0));
  }
  for (int i = 0; i < kCount; ++i) {
    out.push_back(Pattern(1000 + i, 2 * i + comm.rank()));
    sent.push_back(comm.Send(View(out[i]), peer, 0));
    ExpectDone(got[i]);
    EXPECT_TRUE(at::equal(in[i], Pattern(1000 + i, 2 * i + peer)));
  }
  for (const auto& transfer : sent) ExpectDone(transfer);
}

void AllToAllTakesUnevenSizes(Communicator& comm) {
  const auto bytes = [](int from, int to) { return (from + 2 * to) % 4 * 7000; };
  std::vector<at::Tensor> in, out;
  std::vector<Buffer> send, receive;
  for (int rank = 0; rank < comm.size(); ++rank) {
    out.push_back(Pattern(bytes(comm.rank(), rank), 8 * comm.rank() + rank));
    in.push_back(Room(bytes(rank, comm.rank())));
    send.push_back(View(out.back()));
    receive.push_back(View(in.back()));
  }
  ExpectDone(comm.AllToAll(send, receive));
  for (int rank = 0; rank < comm.size(); ++rank) {
    EXPECT_TRUE(at::equal(in[rank], Pattern(bytes(rank, comm.rank()), 8 * rank + comm.rank())));
  }
}

void AllGatherInPlace(Communicator& comm) {
  std::vector<at::Tensor> parts;
  std::vector<Buffer> all;
  for (int rank = 0; rank < comm.size(); ++rank) {
    parts.push_back(rank == comm.rank() ? Pattern(1000 * rank, rank) : Room(1000 * rank));
    all.push_back(View(parts.back()));
  }
  ExpectDone(comm.AllGather(all[comm.rank()], all));
  for (int rank = 0; rank < comm.size(); ++rank) {
    EXPECT_TRUE(at::equal(parts[rank], Pattern(1000 * rank, rank)));
  }
}

void ReduceScatterSums(Communicator& comm) {
  for (const int64_t count : {1, 1000, 300'000}) {
    const at::Tensor blocks = at::full({comm.size() * count}, comm.rank() + 1.0, at::kCUDA);
    ExpectDone(comm.ReduceScatter(View(blocks)));
    const double sum = comm.size() * (comm.size() + 1) / 2.0;
    EXPECT_TRUE(blocks.narrow(0, comm.rank() * count, count).eq(sum).all().item<bool>());
  }
}

void SaysThatThereIsNoGpu(Communicator& world) {
  const absl::Status status = MakeNcclCommunicator(world, 0).status();
  EXPECT_EQ(GetExitCode(status), ExitCode::kPreflight) << status;
}

void SaysThatThereIsNoSuchGpu(Communicator& world) {
  const absl::Status status = MakeNcclCommunicator(world, 1000).status();
  EXPECT_EQ(GetExitCode(status), ExitCode::kPreflight) << status;
}

// NCCL refuses two ranks of one host on one GPU; network traffic over loopback does for a test.
void PretendToBeAHost(int rank) {
  setenv("NCCL_HOSTID", ("rank" + std::to_string(rank)).c_str(), 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  for (const char* off : {"NCCL_MNNVL_ENABLE", "NCCL_NVLS_ENABLE"}) setenv(off, "0", 1);
  for (const char* on : {"NCCL_IB_DISABLE", "NCCL_MULTI_RANK_GPU_ENABLE"}) setenv(on, "1", 1);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
}

}  // namespace

void AddMpiTests(Communicator& world) {
  PretendToBeAHost(world.rank());
  AddMpiTest("NcclCommunicator", "SaysThatThereIsNoSuchGpu",
             [&] { SaysThatThereIsNoSuchGpu(world); });
  auto made = MakeNcclCommunicator(world, 0);
  if (!made.ok()) {
    AddMpiTest("NcclCommunicator", "SaysThatThereIsNoGpu", [&] { SaysThatThereIsNoGpu(world); });
    return;
  }
  const std::shared_ptr<Communicator> comm = *std::move(made);
  const absl::Status connected = comm->Connect(AllLinks(*comm, View(Room(1 << 20))), kSoon);
  ASSERT_TRUE(connected.ok()) << connected;
  for (const ContractCase& contract_case : ContractCases()) {
    AddMpiTest("NcclContract", contract_case.name,
               [comm, &contract_case] { contract_case.run(*comm); });
  }
  const ContractCase on_device[] = {
      {"ARingShiftDeliversTheNeighboursBytes", ARingShiftDeliversTheNeighboursBytes},
      {"EarlyReceivesHoldNothingUp", EarlyReceivesHoldNothingUp},
      {"AllToAllTakesUnevenSizes", AllToAllTakesUnevenSizes},
      {"AllGatherInPlace", AllGatherInPlace},
      {"ReduceScatterSums", ReduceScatterSums},
  };
  for (const auto& [name, run] : on_device) {
    AddMpiTest("NcclOnDevice", name, [comm, run = run] { run(*comm); });
  }
}

}  // namespace deepnet
