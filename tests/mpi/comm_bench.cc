// Messages between two ranks: by MPI, by TCP, or by threads of one process.
//
//   tests/mpi/mpirun.sh 2 build/release/tests/mpi/comm_bench
//   tests/mpi/torchrun.sh 2 build/release/tests/mpi/comm_bench
//   build/release/tests/mpi/comm_bench
//
// Prints half a round trip, bytes per second (messages of one direction, four under way), how much
// of a concurrent computation is left beside a transfer, and the CPU time of waiting.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <memory>
#include <thread>
#include <vector>

#include "launch/job.h"
#include "parallel/base/check.h"
#include "parallel/comm/backends.h"

namespace deepnet {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Await(const Communicator::TransferOr& transfer) {
  const absl::Status status = Finish(transfer);
  DEEPNET_CHECK(status.ok()) << status;
}

// Seconds from a message's start to its arrival: the median of half round trips.
double HalfRoundTrip(Communicator& comm, Buffer buffer, int repeats) {
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    const double begin = Now();
    for (const bool mine : {comm.rank() == 0, comm.rank() != 0}) {
      Await(mine ? comm.Send(buffer, 1 - comm.rank(), 0)
                 : comm.Receive(buffer, 1 - comm.rank(), 0));
    }
    seconds.push_back((Now() - begin) / 2);
  }
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return seconds[repeats / 2];
}

double SecondsOfAStream(Communicator& comm, std::vector<std::vector<char>>& memory, int repeats) {
  DEEPNET_CHECK(comm.Barrier().ok());
  const double begin = Now();
  std::vector<std::unique_ptr<Transfer>> transfers(memory.size());
  for (int i = 0; i < repeats; ++i) {
    const size_t slot = i % memory.size();
    if (transfers[slot] != nullptr) DEEPNET_CHECK(transfers[slot]->Wait().ok());
    const Buffer buffer = Buffer::Of(std::span(memory[slot]));
    auto started = comm.rank() == 0 ? comm.Send(buffer, 1, 0) : comm.Receive(buffer, 0, 0);
    transfers[slot] = std::move(*started);
  }
  for (auto& transfer : transfers) {
    if (transfer != nullptr) DEEPNET_CHECK(transfer->Wait().ok());
  }
  DEEPNET_CHECK(comm.Barrier().ok());
  return Now() - begin;
}

double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// CPU seconds of this process per second in which nothing comes.
double CpuOfWaiting(Communicator& comm) {
  char byte = 0;
  const Buffer buffer = Buffer::Of(std::span(&byte, 1));
  const double before = CpuSeconds();
  auto got = comm.Receive(buffer, 1 - comm.rank(), 1);
  const absl::Status late = (*got)->Wait(absl::Seconds(2));
  const double cpu = (CpuSeconds() - before) / 2;
  DEEPNET_CHECK(absl::IsDeadlineExceeded(late));
  DEEPNET_CHECK(comm.Barrier().ok());
  Await(comm.Send(buffer, 1 - comm.rank(), 1));
  DEEPNET_CHECK((*got)->Wait().ok());
  return cpu;
}

// Additions that the optimiser keeps.
double Compute(int64_t rounds) {
  volatile double sum = 0;
  for (int64_t i = 0; i < rounds; ++i) sum = sum + 1.0;
  return sum;
}

// Seconds that are left at Wait() after a computation longer than the transfer.
void PrintOverlap(Communicator& comm, int64_t bytes) {
  std::vector<char> out(bytes), in(bytes);
  std::vector<double> left, computed;
  for (int i = 0; i < 5; ++i) {
    DEEPNET_CHECK(comm.Barrier().ok());
    auto got = comm.Receive(Buffer::Of(std::span(in)), 1 - comm.rank(), 0);
    auto sent = comm.Send(Buffer::Of(std::span(out)), 1 - comm.rank(), 0);
    const double begin = Now();
    Compute(100'000'000);
    const double middle = Now();
    DEEPNET_CHECK((*got)->Wait().ok() && (*sent)->Wait().ok());
    computed.push_back(middle - begin);
    left.push_back(Now() - middle);
  }
  std::sort(left.begin(), left.end());
  std::sort(computed.begin(), computed.end());
  if (comm.rank() != 0) return;
  std::printf("%9lld B both ways beside %.1f ms of computation: %.2f ms left at Wait()\n",
              static_cast<long long>(bytes), 1e3 * computed[2], 1e3 * left[2]);
}

void Measure(Communicator& comm) {
  for (const int64_t bytes : {int64_t{8}, int64_t{1} << 10, int64_t{1} << 20, int64_t{64} << 20}) {
    std::vector<std::vector<char>> memory(4, std::vector<char>(bytes));
    const int repeats = bytes < (1 << 20) ? 2000 : bytes < (64 << 20) ? 200 : 12;
    HalfRoundTrip(comm, Buffer::Of(std::span(memory[0])), repeats / 4);  // makes connections
    const double half = HalfRoundTrip(comm, Buffer::Of(std::span(memory[0])), repeats);
    const double stream = SecondsOfAStream(comm, memory, repeats);
    if (comm.rank() != 0) continue;
    std::printf("%9lld B: half a round trip %8.1f us, stream %6.2f GB/s\n",
                static_cast<long long>(bytes), 1e6 * half, 1e-9 * bytes * repeats / stream);
  }
  PrintOverlap(comm, int64_t{16} << 20);
  const double cpu = CpuOfWaiting(comm);
  if (comm.rank() == 0) std::printf("waiting: %.1f %% of a core\n", 100 * cpu);
}

int RunAsThreads() {
  const auto comms = MakeThreadCommunicators(2);
  std::thread other([&] { Measure(*comms[1]); });
  Measure(*comms[0]);
  other.join();
  return 0;
}

int Run() {
  const auto job = JoinJob();
  DEEPNET_CHECK(job.ok()) << job.status();
  if ((*job)->size() == 1) return RunAsThreads();
  Measure(**job);
  return 0;
}

}  // namespace
}  // namespace deepnet

int main() { return deepnet::Run(); }
