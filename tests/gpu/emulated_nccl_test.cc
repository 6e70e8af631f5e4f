// The emulated NCCL: among threads, between processes, and under parallel/comm/nccl_communicator.
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <spawn.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <sys/wait.h>

#include "parallel/base/exit_code.h"
#include "parallel/comm/backends.h"
#include "parallel/plan/memory.h"
#include "tests/gpu/emulated/device.h"
#include "tests/parallel/comm/communicator_contract.h"

namespace emulated_gpu {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Settings Quick() {
  Settings settings;
  settings.devices = 4;
  settings.memory_bytes = 256 << 20;
  settings.longest_delay_us = 100;
  settings.eager_loading = true;
  settings.watchdog_seconds = 20;
  settings.end_when_stuck = true;
  return settings;
}

void Ok(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorName(error); }
void Ok(ncclResult_t result) { ASSERT_EQ(result, ncclSuccess) << ncclGetErrorString(result); }

template <typename T>
T* OnDevice(const std::vector<T>& values) {
  void* pointer = nullptr;
  Ok(cudaMalloc(&pointer, values.size() * sizeof(T)));
  Ok(cudaMemcpy(pointer, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  Ok(cudaDeviceSynchronize());
  return static_cast<T*>(pointer);
}

template <typename T>
std::vector<T> ToHost(const T* device, size_t count) {
  std::vector<T> values(count);
  Ok(cudaDeviceSynchronize());
  Ok(cudaMemcpy(values.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost));
  return values;
}

// One rank of a communicator: its device, a stream, and a connected communicator.
struct Rank {
  Rank(const ncclUniqueId& id, int size, int rank, bool blocking = true) : rank(rank), size(size) {
    Ok(cudaSetDevice(rank));
    Ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking ? 1 : 0;
    const ncclResult_t made = ncclCommInitRankConfig(&comm, size, id, rank, &config);
    EXPECT_EQ(made, blocking ? ncclSuccess : ncclInProgress);
  }
  int Polls() const {  // until it is connected, or failed
    int polls = 0;
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
      Ok(ncclCommGetAsyncError(comm, &state));
      if (state == ncclInProgress) ++polls;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return polls;
  }

  const int rank, size;
  cudaStream_t stream = nullptr;
  ncclComm_t comm = nullptr;
};

// Runs body(rank) on a thread for each rank.
void OnRanks(int size, const std::function<void(Rank&)>& body, bool blocking = true,
             double watchdog_seconds = 20) {
  Settings settings = Quick();
  settings.watchdog_seconds = watchdog_seconds;
  Restart(settings);
  ncclUniqueId id;
  Ok(ncclGetUniqueId(&id));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Rank self(id, size, rank, blocking);
      body(self);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(EmulatedNccl, MessagesArriveInOrderBehindTheirInputs) {
  OnRanks(2, [](Rank& self) {
    int* const data = OnDevice(std::vector<int>(1000));
    int* const view = static_cast<int*>(HostView(data));
    std::vector<std::vector<int>> seen;
    for (int i = 0; i < 20; ++i) {
      if (self.rank == 0) {
        Ok(Enqueue(self.stream, "Fill", [=] { std::fill(view, view + 1000, i); }));
        Ok(ncclSend(data, 1000, ncclInt32, 1, self.comm, self.stream));
      } else {
        Ok(ncclRecv(data, 1000, ncclInt32, 0, self.comm, self.stream));
        EXPECT_THAT(ToHost(data, 1000), Each(i));
      }
    }
    Ok(cudaDeviceSynchronize());
    Ok(ncclCommDestroy(self.comm));
  });
}

TEST(EmulatedNccl, AGroupSendsAndReceivesAtOnce) {
  OnRanks(3, [](Rank& self) {
    constexpr int kCount = 100'000;  // more than any ring
    const int next = (self.rank + 1) % 3, previous = (self.rank + 2) % 3;
    int* const out = OnDevice(std::vector<int>(kCount, self.rank));
    int* const in = OnDevice(std::vector<int>(kCount));
    Ok(ncclGroupStart());
    Ok(ncclSend(out, kCount, ncclInt32, next, self.comm, self.stream));
    Ok(ncclRecv(in, kCount, ncclInt32, previous, self.comm, self.stream));
    Ok(ncclGroupEnd());
    EXPECT_THAT(ToHost(in, kCount), Each(previous));
    EXPECT_EQ(ReadLaunches()["ncclGroup"], 1);
    Ok(ncclCommDestroy(self.comm));
  });
}

TEST(EmulatedNccl, MessagesOfAGroupToOnePeerKeepTheirOrder) {
  OnRanks(2, [](Rank& self) {
    constexpr int kCount = 40'000;  // more than twice what fits into a ring
    constexpr int kMessages = 6;
    std::vector<int*> data;
    for (int i = 0; i < kMessages; ++i) {
      data.push_back(OnDevice(std::vector<int>(kCount, self.rank == 0 ? i : -1)));
    }
    for (int round = 0; round < 3; ++round) {
      Ok(ncclGroupStart());
      for (int* const message : data) {
        if (self.rank == 0) {
          Ok(ncclSend(message, kCount, ncclInt32, 1, self.comm, self.stream));
        } else {
          Ok(ncclRecv(message, kCount, ncclInt32, 0, self.comm, self.stream));
        }
      }
      Ok(ncclGroupEnd());
    }
    for (int i = 0; i < kMessages; ++i) {
      EXPECT_TRUE(ToHost(data[i], kCount) == std::vector<int>(kCount, i));
    }
    Ok(ncclCommDestroy(self.comm));
  });
}

TEST(EmulatedNccl, ASendEndsWhenThePeerHasReceived) {
  std::atomic<bool> go = false;
  OnRanks(2, [&](Rank& self) {
    int* const data = OnDevice(std::vector<int>(1));
    if (self.rank == 0) {
      for (int i = 0; i < 2; ++i) {  // the first one connects
        Ok(ncclSend(data, 1, ncclInt32, 1, self.comm, self.stream));
        if (i == 0) Ok(cudaStreamSynchronize(self.stream));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      EXPECT_EQ(cudaStreamQuery(self.stream), cudaErrorNotReady);
      go = true;
      go.notify_one();
    } else {
      Ok(ncclRecv(data, 1, ncclInt32, 0, self.comm, self.stream));
      go.wait(false);
      Ok(ncclRecv(data, 1, ncclInt32, 0, self.comm, self.stream));
    }
    Ok(cudaStreamSynchronize(self.stream));
    Ok(ncclCommDestroy(self.comm));
  });
}

TEST(EmulatedNccl, CollectivesMoveAndSum) {
  OnRanks(3, [](Rank& self) {
    const float r = static_cast<float>(self.rank);
    float* const six = OnDevice<float>({r, r, r, 10 * r, 10 * r, 10 * r});
    float* const out = OnDevice(std::vector<float>(6));
    Ok(ncclAllReduce(six, out, 6, ncclFloat32, ncclSum, self.comm, self.stream));
    EXPECT_THAT(ToHost(out, 6), ElementsAre(3, 3, 3, 30, 30, 30));
    Ok(ncclAllReduce(out, out, 6, ncclFloat32, ncclMax, self.comm, self.stream));
    EXPECT_THAT(ToHost(out, 6), ElementsAre(3, 3, 3, 30, 30, 30));
    Ok(ncclReduceScatter(six, out, 2, ncclFloat32, ncclSum, self.comm, self.stream));
    const std::vector<std::vector<float>> shares = {{3, 3}, {3, 30}, {30, 30}};
    EXPECT_EQ(ToHost(out, 2), shares[self.rank]);
    Ok(cudaMemset(out, 0, 24));
    Ok(cudaDeviceSynchronize());
    Ok(ncclAllGather(six + 2, out, 2, ncclFloat32, self.comm, self.stream));
    EXPECT_THAT(ToHost(out, 6), ElementsAre(0, 0, 1, 10, 2, 20));
    Ok(ncclBroadcast(six, out, 1, ncclFloat32, 2, self.comm, self.stream));
    EXPECT_THAT(ToHost(out, 1), ElementsAre(2));
    Ok(ncclCommDestroy(self.comm));
  });
}

TEST(EmulatedNccl, SumsOfBfloat16AreRoundedAfterEachAddition) {
  OnRanks(3, [](Rank& self) {
    // 256 + 1 is 256 in bfloat16; the chunk of rank 2 begins with rank 0: (1 + 1) + 256 = 258.
    const uint16_t value = self.rank == 2 ? 0x4380 : 0x3f80;
    uint16_t* const three = OnDevice<uint16_t>({value, value, value});
    Ok(ncclAllReduce(three, three, 3, ncclBfloat16, ncclSum, self.comm, self.stream));
    EXPECT_THAT(ToHost(three, 3), ElementsAre(0x4380, 0x4380, 0x4381));
    Ok(ncclCommDestroy(self.comm));
  });
}

TEST(EmulatedNccl, ANonBlockingCommunicatorIsInProgressForAWhile) {
  OnRanks(
      2,
      [](Rank& self) {
        EXPECT_GE(self.Polls(), 3);
        int* const data = OnDevice(std::vector<int>(1, self.rank));
        // The first message connects: in progress until the peer comes too.
        const ncclResult_t result = self.rank == 0
                                        ? ncclSend(data, 1, ncclInt32, 1, self.comm, self.stream)
                                        : ncclRecv(data, 1, ncclInt32, 0, self.comm, self.stream);
        if (result != ncclSuccess) {
          EXPECT_EQ(result, ncclInProgress);
          EXPECT_GE(self.Polls(), 3);
        }
        EXPECT_THAT(ToHost(data, 1), Each(0));
        Ok(ncclCommDestroy(self.comm));
      },
      /*blocking=*/false);
}

TEST(EmulatedNccl, ALaneUsedBeforeItIsConnectedIsRefused) {
  Restart(Quick());
  ncclUniqueId id;
  Ok(ncclGetUniqueId(&id));
  Rank self(id, 2, 0, /*blocking=*/false);
  int* const data = OnDevice(std::vector<int>(1));
  EXPECT_EQ(ncclSend(data, 1, ncclInt32, 1, self.comm, self.stream), ncclInvalidArgument);
  EXPECT_THAT(ncclGetLastError(self.comm),
              HasSubstr("ncclSend on a communicator that is still in progress (rank 0 of 2: not "
                        "connected)"));
  Ok(ncclCommAbort(self.comm));
}

TEST(EmulatedNccl, MemoryThatIsNoneIsRefused) {
  OnRanks(1, [](Rank& self) {
    int* const data = OnDevice(std::vector<int>(4));
    std::vector<int> pageable(4);
    EXPECT_EQ(ncclSend(pageable.data(), 4, ncclInt32, 0, self.comm, self.stream),
              ncclInvalidArgument);
    EXPECT_THAT(ncclGetLastError(self.comm), HasSubstr("host memory that is not pinned"));
    EXPECT_EQ(ncclSend(data, 5, ncclInt32, 0, self.comm, self.stream), ncclInvalidArgument);
    EXPECT_EQ(ncclSend(data, 4, ncclInt32, 1, self.comm, self.stream), ncclInvalidArgument);
    Ok(ncclCommDestroy(self.comm));
  });
}

// The communicator's first error, or success after ten seconds.
ncclResult_t ErrorSeenSoon(const Rank& self) {
  ncclResult_t state = ncclSuccess;
  for (int i = 0; i < 1000 && state == ncclSuccess; ++i) {
    Ok(ncclCommGetAsyncError(self.comm, &state));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return state;
}

TEST(EmulatedNccl, AnAbortEndsOwnWorkAndIsSeenByPeers) {
  OnRanks(2, [](Rank& self) {
    int* const data = OnDevice(std::vector<int>(1));
    if (self.rank == 1) {
      // Connects, and then sends nothing more.
      Ok(ncclSend(data, 1, ncclInt32, 0, self.comm, self.stream));
      Ok(cudaStreamSynchronize(self.stream));
      Ok(ncclCommAbort(self.comm));
      return;
    }
    Ok(ncclRecv(data, 1, ncclInt32, 1, self.comm, self.stream));
    Ok(ncclRecv(data, 1, ncclInt32, 1, self.comm, self.stream));
    EXPECT_EQ(ErrorSeenSoon(self), ncclRemoteError);
    EXPECT_EQ(cudaStreamQuery(self.stream), cudaErrorNotReady);  // the receive spins on
    Ok(ncclCommAbort(self.comm));
    Ok(cudaStreamSynchronize(self.stream));
  });
}

TEST(EmulatedNccl, ErrorsAreInjected) {
  OnRanks(1, [](Rank& self) {
    int* const data = OnDevice(std::vector<int>(1));
    FailAt("ncclSend", 1, ncclInternalError);
    EXPECT_EQ(ncclSend(data, 1, ncclInt32, 0, self.comm, self.stream), ncclInternalError);
    FailAt("ncclCommGetAsyncError", 2, ncclRemoteError);
    ncclResult_t state = ncclSuccess;
    Ok(ncclCommGetAsyncError(self.comm, &state));
    EXPECT_EQ(state, ncclSuccess);
    for (int i = 0; i < 2; ++i) {
      Ok(ncclCommGetAsyncError(self.comm, &state));
      EXPECT_EQ(state, ncclRemoteError);
    }
    Ok(ncclCommAbort(self.comm));
  });
}

TEST(EmulatedNccl, TwoRanksOnOneDeviceAreRefused) {
  Restart(Quick());
  ncclUniqueId id;
  Ok(ncclGetUniqueId(&id));
  std::vector<ncclComm_t> comms(2);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ncclCommInitRankConfig(&comms[rank], 2, id, rank, &config), ncclInProgress);
  }
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) Ok(ncclCommGetAsyncError(comms[0], &state));
  EXPECT_EQ(state, ncclInvalidUsage);
  for (ncclComm_t comm : comms) Ok(ncclCommAbort(comm));
}

// Rank 0 sends `sent` numbers; rank 1 does `receive`.
void Mismatched(int sent, const std::function<void(Rank&, int*)>& receive) {
  OnRanks(2, [&](Rank& self) {
    int* const data = OnDevice(std::vector<int>(100));
    if (self.rank == 0) {
      Ok(ncclSend(data, sent, ncclInt32, 1, self.comm, self.stream));
    } else {
      receive(self, data);
    }
    cudaStreamSynchronize(self.stream);
  });
}

TEST(EmulatedNcclDeathTest, SizesAndTypesThatDifferNameBothSides) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(
      Mismatched(100, [](Rank& self,
                         int* data) { ncclRecv(data, 50, ncclInt32, 0, self.comm, self.stream); }),
      "NCCL: rank 0 sends 100 x int32 .400 B., but rank 1 expects 50 x int32 .200 B.");
  EXPECT_DEATH(Mismatched(100,
                          [](Rank& self, int* data) {
                            ncclRecv(data, 100, ncclFloat32, 0, self.comm, self.stream);
                          }),
               "rank 0 sends 100 x int32 .400 B., but rank 1 expects 100 x float32 .400 B.");
}

TEST(EmulatedNcclDeathTest, MessagesInAnotherOrderNameBothSides) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(OnRanks(2,
                       [](Rank& self) {
                         int* const data = OnDevice(std::vector<int>(100));
                         for (const int count : {self.rank == 0 ? 10 : 20, 20}) {
                           if (self.rank == 0) {
                             ncclSend(data, count, ncclInt32, 1, self.comm, self.stream);
                           } else {
                             ncclRecv(data, count, ncclInt32, 0, self.comm, self.stream);
                           }
                         }
                         cudaStreamSynchronize(self.stream);
                       }),
               "rank 0 sends 10 x int32 .40 B., but rank 1 expects 20 x int32");
}

TEST(EmulatedNcclDeathTest, AReceiveThatNobodySendsIsNamedByTheWatchdog) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(OnRanks(
                   2,
                   [](Rank& self) {
                     int* const data = OnDevice(std::vector<int>(1));
                     for (int i = 0; i < 2 - self.rank; ++i) {
                       if (self.rank == 0) {
                         ncclRecv(data, 1, ncclInt32, 1, self.comm, self.stream);
                       } else {
                         ncclSend(data, 1, ncclInt32, 0, self.comm, self.stream);
                       }
                     }
                     if (self.rank == 1) sleep(1000);
                     cudaStreamSynchronize(self.stream);
                   },
                   /*blocking=*/true, /*watchdog_seconds=*/0.5),
               "ncclRecv runs and waits for rank 1 to send 1 x int32 .4 B. .rank 0 of 2.");
}

TEST(EmulatedNcclDeathTest, AHostThatWaitsForAPeerToConnectIsNamedByTheWatchdog) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(OnRanks(
                   2,
                   [](Rank& self) {
                     int* const data = OnDevice(std::vector<int>(1));
                     // Both send first: neither is there to receive.
                     ncclSend(data, 1, ncclInt32, 1 - self.rank, self.comm, self.stream);
                   },
                   /*blocking=*/true, /*watchdog_seconds=*/0.5),
               "a host thread waits in NCCL for peers of rank . of 2 to connect");
}

// As a lane does: a receive is posted early, with an event behind it, and the send goes to another
// stream. With one hardware queue the event, which waits for the receive, holds the send up.
void ReceiveEarlyAndSend(int connections, double watchdog_seconds, bool launch_blocking = false) {
  Settings settings = Quick();
  settings.connections = connections;
  settings.launch_blocking = launch_blocking;
  settings.watchdog_seconds = watchdog_seconds;
  Restart(settings);
  ncclUniqueId ids[2];  // of the lanes from rank 0 and from rank 1
  for (ncclUniqueId& id : ids) Ok(ncclGetUniqueId(&id));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const Rank lanes[] = {{ids[0], 2, rank}, {ids[1], 2, rank}};
      const int peer = 1 - rank;
      int* const in = OnDevice(std::vector<int>(1));
      int* const out = OnDevice(std::vector<int>(1, rank));
      cudaEvent_t received = nullptr;
      Ok(cudaEventCreateWithFlags(&received, cudaEventDisableTiming));
      const auto send = [&] {
        Ok(ncclSend(out, 1, ncclInt32, peer, lanes[rank].comm, lanes[rank].stream));
      };
      const auto receive = [&] {
        Ok(ncclRecv(in, 1, ncclInt32, peer, lanes[peer].comm, lanes[peer].stream));
        Ok(cudaEventRecord(received, lanes[peer].stream));
      };
      if (rank == 0) send();  // connects one lane after the other
      receive();
      if (rank == 1) send();
      Ok(cudaDeviceSynchronize());
      receive();
      const auto receives = [&] {  // or has received
        const std::string work = DescribeWork(),
                          own = "device " + std::to_string(rank) + " stream ";
        for (size_t at = work.find(own); at != std::string::npos; at = work.find(own, at + 1)) {
          const std::string line = work.substr(at, work.find('\n', at) - at);
          if (line.find(": ncclRecv runs") != std::string::npos) return true;
        }
        return cudaStreamQuery(lanes[peer].stream) == cudaSuccess;
      };
      while (!receives()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      send();
      EXPECT_THAT(ToHost(in, 1), Each(peer));
      for (const Rank& lane : lanes) Ok(ncclCommDestroy(lane.comm));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(EmulatedNccl, AnEarlyReceiveHoldsNothingUpInAQueueOfItsOwn) {
  ReceiveEarlyAndSend(/*connections=*/8, /*watchdog_seconds=*/20);
}

TEST(EmulatedNcclDeathTest, AnEarlyReceiveOnTooFewQueuesIsAHangThatIsNamed) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(ReceiveEarlyAndSend(/*connections=*/1, /*watchdog_seconds=*/0.5),
               "ncclRecv runs and waits for rank .(.|\n)*ncclSend waits behind cudaEventRecord of "
               "device . stream . in hardware queue 0");
}

TEST(EmulatedNcclDeathTest, AnEarlyReceiveWhereLaunchesWaitIsAHangThatIsNamed) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(
      ReceiveEarlyAndSend(/*connections=*/8, /*watchdog_seconds=*/0.5, /*launch_blocking=*/true),
      "a host thread waits in the launch of ncclRecv");
}

TEST(EmulatedNcclDeathTest, ReceivesThatLeaveNoRoomForASendAreAHangThatIsNamed) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  setenv("NCCL_MIN_NCHANNELS", "70", 1);
  EXPECT_DEATH(ReceiveEarlyAndSend(/*connections=*/8, /*watchdog_seconds=*/2),
               "nccl(Send|Recv) waits for 70 multiprocessors, 62 are free");
  unsetenv("NCCL_MIN_NCHANNELS");
}

TEST(EmulatedNccl, TheEnvironmentDecidesWhetherACommunicatorBlocks) {
  setenv("NCCL_COMM_BLOCKING", "0", 1);
  Restart(Quick());
  ncclUniqueId id;
  Ok(ncclGetUniqueId(&id));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInProgress);
  unsetenv("NCCL_COMM_BLOCKING");
  Ok(ncclCommAbort(comm));
}

// ---- Processes

std::string Hex(const ncclUniqueId& id) {
  std::string text;
  for (const char byte : id.internal) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(byte));
    text += digits;
  }
  return text;
}

ncclUniqueId FromHex(const std::string& text) {
  ncclUniqueId id;
  for (size_t i = 0; i < sizeof(id.internal); ++i) {
    id.internal[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return id;
}

// This program once more, as rank 1 of 2.
pid_t StartPeer(const ncclUniqueId& id, const std::string& how) {
  setenv("EMULATED_NCCL_PEER", (how + ":" + Hex(id)).c_str(), 1);
  std::string program = "/proc/self/exe", filter = "--gtest_filter=EmulatedNcclPeer.*";
  char* arguments[] = {program.data(), filter.data(), nullptr};
  pid_t child = -1;
  EXPECT_EQ(posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments, environ), 0);
  unsetenv("EMULATED_NCCL_PEER");
  return child;
}

int CodeOf(pid_t child) {
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void SumWithThePeer(Rank& self) {
  double* const data = OnDevice(std::vector<double>(50'000, self.rank + 1.0));
  for (int i = 0; i < 10; ++i) {
    Ok(ncclAllReduce(data, data, 50'000, ncclFloat64, ncclSum, self.comm, self.stream));
  }
  EXPECT_THAT(ToHost(data, 50'000), Each(3.0 * 512));
}

// Runs only where StartPeer says what the peer does.
TEST(EmulatedNcclPeer, DoesAsItIsTold) {
  const char* const told = std::getenv("EMULATED_NCCL_PEER");
  if (told == nullptr) return;
  Restart(Quick());
  const std::string how = told;
  Rank self(FromHex(how.substr(how.find(':') + 1)), 2, 1);
  SumWithThePeer(self);
  if (how.starts_with("die")) _exit(7);
  Ok(ncclCommDestroy(self.comm));
}

TEST(EmulatedNcclProcesses, TwoProcessesSum) {
  Restart(Quick());
  ncclUniqueId id;
  Ok(ncclGetUniqueId(&id));
  const pid_t peer = StartPeer(id, "leave");
  Rank self(id, 2, 0);
  SumWithThePeer(self);
  EXPECT_EQ(CodeOf(peer), 0);
  ncclResult_t state = ncclInProgress;
  Ok(ncclCommGetAsyncError(self.comm, &state));
  EXPECT_EQ(state, ncclSuccess);  // leaving is no error
  Ok(ncclCommDestroy(self.comm));
}

TEST(EmulatedNcclProcesses, APeerThatDiesIsARemoteError) {
  Restart(Quick());
  ncclUniqueId id;
  Ok(ncclGetUniqueId(&id));
  const pid_t peer = StartPeer(id, "die");
  Rank self(id, 2, 0);
  SumWithThePeer(self);
  EXPECT_EQ(CodeOf(peer), 7);
  EXPECT_EQ(ErrorSeenSoon(self), ncclRemoteError);
  Ok(ncclCommAbort(self.comm));
}

// ---- parallel/comm/nccl_communicator.cc

using deepnet::Buffer;
using deepnet::Communicator;
using deepnet::Device;

constexpr absl::Duration kSoon = absl::Minutes(1);

absl::Status ConnectAll(Communicator& comm, int device) {
  constexpr int64_t kBytes = 1 << 16;
  const Device on{.kind = Device::Kind::kCuda, .index = device};
  const Buffer scratch{OnDevice(std::vector<uint8_t>(kBytes)), kBytes, on};
  return comm.Connect(AllLinks(comm, scratch), kSoon);
}

// Runs body(communicator, device) for each rank on a thread. Nothing of NCCL is left.
void OnNcclRanks(int size, const std::function<void(Communicator&, int)>& body,
                 bool connected = true, const Settings& settings = Quick()) {
  Restart(settings);
  const int open = OpenCommunicators();
  const auto world = deepnet::MakeThreadCommunicators(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto comm = deepnet::MakeNcclCommunicator(*world[rank], rank);
      ASSERT_TRUE(comm.ok()) << comm.status();
      const absl::Status status = connected ? ConnectAll(**comm, rank) : absl::OkStatus();
      ASSERT_TRUE(status.ok()) << status;
      body(**comm, rank);
      EXPECT_TRUE((*comm)->Barrier(kSoon).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(OpenCommunicators(), open);
}

// Bytes that tell one message from another.
std::vector<uint8_t> Pattern(int64_t bytes, int salt) {
  std::vector<uint8_t> pattern(bytes);
  for (int64_t i = 0; i < bytes; ++i) pattern[i] = static_cast<uint8_t>(i * (salt + 3) + salt);
  return pattern;
}

struct Room {
  Room(int64_t bytes, int device, int salt = -1) : bytes(bytes) {
    if (bytes > 0) data = OnDevice(salt < 0 ? std::vector<uint8_t>(bytes) : Pattern(bytes, salt));
    buffer = {data, bytes, {.kind = Device::Kind::kCuda, .index = device}};
  }
  std::vector<uint8_t> Bytes() const {
    return bytes == 0 ? std::vector<uint8_t>() : ToHost(data, bytes);
  }
  const int64_t bytes;
  uint8_t* data = nullptr;
  Buffer buffer;
};

void ExpectDone(const Communicator::TransferOr& transfer) {
  ASSERT_TRUE(transfer.ok()) << transfer.status();
  const absl::Status status = (*transfer)->Wait(kSoon);
  EXPECT_TRUE(status.ok()) << status;
}

TEST(NcclCommunicatorOnEmulatedGpus, KeepsTheContractWithHostMemory) {
  for (const deepnet::ContractCase& contract_case : deepnet::ContractCases()) {
    SCOPED_TRACE(contract_case.name);
    OnNcclRanks(4, [&](Communicator& comm, int) { contract_case.run(comm); });
  }
}

TEST(NcclCommunicatorOnEmulatedGpus, ARingShiftDeliversTheNeighboursBytes) {
  OnNcclRanks(3, [](Communicator& comm, int device) {
    const int next = (comm.rank() + 1) % 3, previous = (comm.rank() + 2) % 3;
    for (const int64_t bytes : {1, 4096, 5 << 20}) {
      const Room out(bytes, device, comm.rank()), in(bytes, device);
      const auto got = comm.Receive(in.buffer, previous, 0);  // posted before anybody sends
      const auto sent = comm.Send(out.buffer, next, 0);
      ExpectDone(got);
      ExpectDone(sent);
      EXPECT_TRUE(in.Bytes() == Pattern(bytes, previous));
    }
  });
}

TEST(NcclCommunicatorOnEmulatedGpus, EarlyReceivesHoldNothingUp) {
  OnNcclRanks(2, [](Communicator& comm, int device) {
    const int peer = comm.rank() ^ 1;
    std::vector<std::unique_ptr<Room>> in, out;
    std::vector<Communicator::TransferOr> got, sent;
    for (int i = 0; i < 4; ++i) {
      in.push_back(std::make_unique<Room>(1000 + i, device));
      out.push_back(std::make_unique<Room>(1000 + i, device, 2 * i + comm.rank()));
    }
    for (int i = 0; i < 4; ++i) got.push_back(comm.Receive(in[i]->buffer, peer, 0));
    for (int i = 0; i < 4; ++i) {
      sent.push_back(comm.Send(out[i]->buffer, peer, 0));
      ExpectDone(got[i]);
    }
    for (const auto& transfer : sent) ExpectDone(transfer);
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(in[i]->Bytes() == Pattern(1000 + i, 2 * i + peer));
  });
}

TEST(NcclCommunicatorOnEmulatedGpus, AllToAllTakesUnevenSizes) {
  OnNcclRanks(4, [](Communicator& comm, int device) {
    const auto bytes = [](int from, int to) { return (from + 2 * to) % 4 * 7000; };
    std::vector<std::unique_ptr<Room>> in, out;
    std::vector<Buffer> send, receive;
    for (int rank = 0; rank < 4; ++rank) {
      out.push_back(
          std::make_unique<Room>(bytes(comm.rank(), rank), device, 4 * comm.rank() + rank));
      in.push_back(std::make_unique<Room>(bytes(rank, comm.rank()), device));
      send.push_back(out.back()->buffer);
      receive.push_back(in.back()->buffer);
    }
    ExpectDone(comm.AllToAll(send, receive));
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_TRUE(in[rank]->Bytes() == Pattern(bytes(rank, comm.rank()), 4 * rank + comm.rank()));
    }
  });
}

TEST(NcclCommunicatorOnEmulatedGpus, AllGatherInPlace) {
  OnNcclRanks(3, [](Communicator& comm, int device) {
    std::vector<std::unique_ptr<Room>> parts;
    std::vector<Buffer> all;
    for (int rank = 0; rank < 3; ++rank) {
      parts.push_back(std::make_unique<Room>(1000 * rank, device, rank == comm.rank() ? rank : -1));
      all.push_back(parts.back()->buffer);
    }
    ExpectDone(comm.AllGather(all[comm.rank()], all));
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(parts[rank]->Bytes() == Pattern(1000 * rank, rank));
    }
  });
}

// Sums have NCCL's order, not that of ranks: for block 0 it is (r1 + r2) + r0.
TEST(NcclCommunicatorOnEmulatedGpus, ReduceScatterSumsInTheOrderOfNccl) {
  OnNcclRanks(3, [](Communicator& comm, int device) {
    const std::vector<float> values = {1e8F, -1e8F, 1.0F};
    float* const blocks = OnDevice(std::vector<float>(3000, values[comm.rank()]));
    const Device on{.kind = Device::Kind::kCuda, .index = device};
    ExpectDone(comm.ReduceScatter({blocks, 12'000, on}));
    const float sums[] = {0.0F, 0.0F, 1.0F};  // (-1e8 + 1) + 1e8, (1 + 1e8) - 1e8, ...
    const std::vector<float> got = ToHost(blocks, 3000);
    const int rank = comm.rank();
    const std::vector<float> own(got.begin() + 1000 * rank, got.begin() + 1000 * (rank + 1));
    EXPECT_TRUE(own == std::vector<float>(1000, sums[rank])) << rank << ": " << own[0];
    EXPECT_EQ(comm.ReduceScatter({blocks, 11'999, on}).status().code(),
              absl::StatusCode::kInvalidArgument);
  });
}

TEST(NcclCommunicatorOnEmulatedGpus, TheTensorsOfAMessageAreOneLaunch) {
  OnNcclRanks(2, [](Communicator& comm, int device) {
    const bool sends = comm.rank() == 0;
    const auto direction =
        sends ? Communicator::Direction::kSend : Communicator::Direction::kReceive;
    std::vector<std::unique_ptr<Room>> rooms;
    std::vector<Buffer> buffers;
    for (int i = 0; i < 3; ++i) {
      rooms.push_back(std::make_unique<Room>(1000 * i + 8, device, sends ? i : -1));
      buffers.push_back(rooms.back()->buffer);
    }
    const int64_t before = ReadCounters().launches;
    ExpectDone(comm.StartMessages(direction, buffers, sends ? 1 : 0, 0));
    EXPECT_EQ(ReadCounters().launches - before, 1);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(rooms[i]->Bytes() == Pattern(1000 * i + 8, i));
  });
}

// Whatever is started has been launched when the call returns, without a call of the peer.
TEST(NcclCommunicatorOnEmulatedGpus, AConnectedLaneLaunchesAtOnce) {
  std::atomic<int> started = 0;
  OnNcclRanks(2, [&](Communicator& comm, int device) {
    const Room first(1000, device, 1), second(1000, device, 2), in(1000, device);
    if (comm.rank() == 0) {
      const int64_t before = ReadCounters().launches;
      const auto one = comm.Send(first.buffer, 1, 0), two = comm.Send(second.buffer, 1, 0);
      EXPECT_EQ(ReadCounters().launches - before, 2);
      started = 1;
      started.notify_one();
      ExpectDone(one);
      ExpectDone(two);
    } else {
      started.wait(0);
      for (const int salt : {1, 2}) {
        ExpectDone(comm.Receive(in.buffer, 0, 0));
        EXPECT_TRUE(in.Bytes() == Pattern(1000, salt));
      }
    }
  });
}

TEST(NcclCommunicatorOnEmulatedGpus, WhatIsNotConnectedIsRefused) {
  OnNcclRanks(
      2,
      [](Communicator& comm, int device) {
        const Room room(1024, device);
        const int peer = comm.rank() ^ 1;
        Communicator::Connections links{.all_gather = true, .scratch = room.buffer};
        if (comm.rank() == 0) links.to = {1};
        if (comm.rank() == 1) links.from = {0};
        const absl::Status connected = comm.Connect(links, kSoon);
        ASSERT_TRUE(connected.ok()) << connected;
        const auto refused = [&](const Communicator::TransferOr& transfer, const char* text) {
          EXPECT_EQ(transfer.status().code(), absl::StatusCode::kFailedPrecondition);
          EXPECT_THAT(std::string(transfer.status().message()), HasSubstr(text));
        };
        if (comm.rank() == 0) {
          refused(comm.Receive(room.buffer, peer, 0),
                  "Receive from rank 1, 1024 B of a GPU: these ranks were not connected for it");
        } else {
          refused(comm.Send(room.buffer, peer, 0), "Send to rank 0, 1024 B");
        }
        refused(comm.ReduceScatter(room.buffer), "ReduceScatter");
        const std::vector<Buffer> same(2, room.buffer);
        refused(comm.AllToAll(same, same), "AllToAll");
      },
      /*connected=*/false);
}

// Returns how a receive of rank 0 from rank 1 ends when the lane that NCCL is asked about as the
// nth has an error: 1 is that to rank 1, 2 to rank 2, 4 from rank 1.
absl::Status ReceiveWhileALaneFails(int nth, ncclResult_t error) {
  std::atomic<bool> seen = false;
  absl::Status status;
  OnNcclRanks(3, [&](Communicator& comm, int device) {
    if (comm.rank() != 0) return seen.wait(false);
    const Room room(1000, device);
    auto never = comm.Receive(room.buffer, 1, 0);
    ASSERT_TRUE(never.ok());
    EXPECT_TRUE(absl::IsDeadlineExceeded((*never)->Wait(absl::Milliseconds(20))));
    FailAt("ncclCommGetAsyncError", nth, error);
    status = (*never)->Wait(kSoon);
    EXPECT_EQ((*never)->Wait(kSoon), status);
    never->reset();
    Ok(cudaDeviceSynchronize());  // the receive does not spin any more
    seen = true;
    seen.notify_all();
  });
  return status;
}

TEST(NcclCommunicatorOnEmulatedGpus, ALostPeerIsUnavailable) {
  const absl::Status status = ReceiveWhileALaneFails(4, ncclRemoteError);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("Receive from rank 1, 1000 B: NCCL from rank 1 to 0: remote process exited "
                        "or there was a network error; last warning: a test makes "
                        "ncclCommGetAsyncError fail"));
  const absl::Status back = ReceiveWhileALaneFails(1, ncclRemoteError);
  EXPECT_TRUE(absl::IsUnavailable(back)) << back;
  EXPECT_THAT(
      std::string(back.message()),
      HasSubstr("Receive from rank 1, 1000 B: NCCL from rank 0 to 1: remote process exited"));
}

// The peer of what is awaited is not blamed: its message is neither lost nor late.
TEST(NcclCommunicatorOnEmulatedGpus, AnErrorOfAnotherLaneIsTold) {
  const absl::Status status = ReceiveWhileALaneFails(2, ncclRemoteError);
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_EQ(deepnet::GetExitCode(status), deepnet::ExitCode::kPeerLost);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("Receive from rank 1, 1000 B: given up: NCCL from rank 0 to 2: remote "
                        "process exited"));
  EXPECT_TRUE(absl::IsInternal(ReceiveWhileALaneFails(2, ncclInternalError)));
}

// To end one lane waits for the others' work: one after the other would take seconds each.
TEST(NcclCommunicatorOnEmulatedGpus, AllLanesEndAtOnce) {
  std::atomic<bool> ended = false;
  OnNcclRanks(4, [&](Communicator& comm, int device) {
    if (comm.rank() != 0) return ended.wait(false);
    const Room room(3000, device);
    std::vector<Communicator::TransferOr> got;
    for (const int peer : {1, 2, 3}) {
      got.push_back(comm.Receive(room.buffer.Part(1000 * (peer - 1), 1000), peer, 0));
    }
    const absl::Time begin = absl::Now();
    got.clear();
    EXPECT_LT(absl::Now() - begin, absl::Seconds(4));
    Ok(cudaDeviceSynchronize());
    ended = true;
    ended.notify_all();
  });
}

TEST(NcclCommunicatorOnEmulatedGpus, MessagesGoBeforeProductsAndSumsDoNot) {
  OnNcclRanks(2, [](Communicator&, int) {
    int least = 0, greatest = 0;
    Ok(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    EXPECT_EQ(ReadPriority("ncclSend"), greatest);
    EXPECT_EQ(ReadPriority("ncclRecv"), greatest);
    EXPECT_EQ(ReadPriority("ncclReduceScatter"), 0);
  });
}

size_t FreeBytes() {
  size_t free = 0, total = 0;
  Ok(cudaMemGetInfo(&free, &total));
  return free;
}

// A plan counts the memory that lanes and collectives of replicas take of a GPU.
TEST(NcclCommunicatorOnEmulatedGpus, ConnectionsTakeNoMoreThanAPlanCounts) {
  Settings settings = Quick();
  settings.devices = 8;
  settings.memory_bytes = int64_t{2} << 30;
  settings.nccl_memory = true;
  for (const int size : {2, 8}) {
    const auto connect = [size](bool replicas) {
      return [=](Communicator& comm, int device) {
        const Room room(1024, device);
        Communicator::Connections links{
            .all_to_all = replicas, .all_gather = replicas, .scratch = room.buffer};
        const int next = (comm.rank() + 1) % size, previous = (comm.rank() + size - 1) % size;
        if (!replicas) links.to = links.from = {next};
        if (!replicas && next != previous) links.to.push_back(previous), links.from = links.to;
        EXPECT_TRUE(comm.Barrier(kSoon).ok());
        const size_t before = FreeBytes();
        const absl::Status connected = comm.Connect(links, kSoon);
        EXPECT_TRUE(connected.ok()) << connected;
        const auto taken = static_cast<int64_t>(before - FreeBytes());
        const auto lanes = static_cast<int64_t>(links.to.size() + links.from.size());
        EXPECT_LE(taken, replicas ? deepnet::ReplicasBytes(size) : lanes * deepnet::kLaneBytes);
        EXPECT_GT(taken, 0);
      };
    };
    for (const bool replicas : {false, true}) {
      OnNcclRanks(size, connect(replicas), /*connected=*/false, settings);
    }
  }
}

TEST(NcclCommunicatorOnEmulatedGpus, MemoryThatEndsWhileConnectingDoesNotFit) {
  Settings settings = Quick();
  settings.memory_bytes = 10 << 20;
  settings.nccl_memory = true;
  std::atomic<int> failed = 0;
  OnNcclRanks(
      2,
      [&](Communicator& comm, int device) {
        const Room room(1024, device);
        const absl::Status status = comm.Connect(AllLinks(comm, room.buffer), kSoon);
        EXPECT_EQ(deepnet::GetExitCode(status), deepnet::ExitCode::kDoesNotFit) << status;
        EXPECT_THAT(std::string(status.message()),
                    testing::AllOf(HasSubstr("last warning: Failed to CUDA calloc "),
                                   HasSubstr(" bytes; 9 MiB of the GPU are free")));
        failed += 1;
        while (failed < 2) std::this_thread::yield();
      },
      /*connected=*/false, settings);
}

TEST(NcclCommunicatorOnEmulatedGpus, ATransferThatIsGivenUpEndsItsWork) {
  std::atomic<bool> given_up = false;
  OnNcclRanks(2, [&](Communicator& comm, int device) {
    if (comm.rank() == 1) return given_up.wait(false);
    const Room room(1000, device);
    comm.Receive(room.buffer, 1, 0).status().IgnoreError();
    Ok(cudaDeviceSynchronize());
    const absl::Status later = comm.Receive(room.buffer, 1, 0).value()->Wait(kSoon);
    EXPECT_TRUE(absl::IsAborted(later)) << later;
    given_up = true;
    given_up.notify_one();
  });
}

TEST(NcclCommunicatorOnEmulatedGpus, ARankThatDoesNotConnectIsNamed) {
  OnNcclRanks(
      3,
      [](Communicator& comm, int device) {
        if (comm.rank() == 2) return;
        const Room room(1024, device);
        const absl::Status status =
            comm.Connect(AllLinks(comm, room.buffer), absl::Milliseconds(200));
        EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
        EXPECT_THAT(std::string(status.message()), HasSubstr("connecting GPUs by NCCL: "));
        EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2"));
      },
      /*connected=*/false);
}

// Rank 0 does not wait until its limit for what rank 1 cannot launch.
TEST(NcclCommunicatorOnEmulatedGpus, AConnectionThatFailsIsSeenByBothEnds) {
  std::atomic<int> failed = 0;
  OnNcclRanks(
      2,
      [&](Communicator& comm, int device) {
        if (comm.rank() == 1) FailAt("ncclRecv", 1, ncclSystemError);
        EXPECT_TRUE(comm.Barrier(kSoon).ok());
        const Room room(1024, device);
        Communicator::Connections links{.scratch = room.buffer};
        (comm.rank() == 0 ? links.to : links.from) = {comm.rank() ^ 1};
        const absl::Status status = comm.Connect(links, kSoon);
        if (comm.rank() == 1) {  // it would fail again: no peer is lost
          EXPECT_EQ(deepnet::GetExitCode(status), deepnet::ExitCode::kPreflight) << status;
          EXPECT_THAT(std::string(status.message()),
                      HasSubstr("connecting GPUs by NCCL: NCCL from rank 0 to 1: unhandled system "
                                "error (run with NCCL_DEBUG=INFO for details); last warning: a "
                                "test makes ncclRecv fail"));
          // The peer is told when what was asked for is dropped: after the end of a job.
          comm.Receive(room.buffer, 0, 0).status().IgnoreError();
        } else {
          EXPECT_TRUE(absl::IsUnavailable(status)) << status;
        }
        Ok(cudaDeviceSynchronize());
        failed += 1;
        while (failed < 2) std::this_thread::yield();
      },
      /*connected=*/false);
}

// The data of a message are made late on the stream that the buffer names.
TEST(NcclCommunicatorOnEmulatedGpus, AMessageWaitsForItsBuffersStream) {
  OnNcclRanks(2, [](Communicator& comm, int device) {
    cudaStream_t compute = nullptr;
    Ok(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking));
    Room room(1000, device);
    room.buffer.device.stream = compute;
    uint8_t* const view = static_cast<uint8_t*>(HostView(room.data));
    int wrong = 0;
    for (int i = 0; i < 20; ++i) {
      if (comm.rank() == 0) {
        Ok(Enqueue(compute, "LateFill", [=] { std::fill(view, view + 1000, i); }));
        ExpectDone(comm.Send(room.buffer, 1, 0));
      } else {
        ExpectDone(comm.Receive(room.buffer, 0, 0));
        wrong += room.Bytes() != std::vector<uint8_t>(1000, static_cast<uint8_t>(i));
      }
    }
    EXPECT_EQ(wrong, 0);
  });
}

TEST(NcclCommunicatorOnEmulatedGpus, EveryRankSaysThatThereIsNoSuchGpu) {
  Restart(Quick());
  const auto world = deepnet::MakeThreadCommunicators(2);
  std::thread other([&] { EXPECT_FALSE(deepnet::MakeNcclCommunicator(*world[1], 1).ok()); });
  const absl::Status status = deepnet::MakeNcclCommunicator(*world[0], 4).status();
  other.join();
  EXPECT_THAT(std::string(status.message()), HasSubstr("no GPU 4: invalid device ordinal"));
}

}  // namespace
}  // namespace emulated_gpu
