// The emulator of kernels: what it computes, and every mistake that it is there to name.
#include "tests/gpu/emulated/cuda_on_host.h"

#include <cstdlib>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#if defined(EMULATED_GPU_TSAN)
extern "C" const char* __tsan_default_options() { return "halt_on_error=1"; }
#endif

namespace emulated_gpu {
namespace {

constexpr unsigned kAll = 0xFFFFFFFFu;

constexpr ThreadOrder kOrders[] = {ThreadOrder::kForward, ThreadOrder::kBackward,
                                   ThreadOrder::kShuffled};

template <typename... P, typename... A>
void Emulate(const char* name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
             A... args) {
  ASSERT_EQ(LaunchKernel(name, kernel, grid, block, shared, nullptr, args...), cudaSuccess);
}

// --- What kernels see ---

__global__ void WriteIndices(uint64_t* out) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] =
      threadIdx.x | threadIdx.y << 8 | threadIdx.z << 16 | blockIdx.x << 24 |
      uint64_t{blockIdx.y} << 32 | uint64_t{blockIdx.z} << 40;
}

TEST(CudaOnHost, EveryThreadOfEveryBlockRunsOnceWithItsIndices) {
  const dim3 grid(2, 3, 2), block(5, 3, 2);
  for (const ThreadOrder order : kOrders) {
    SetThreadOrder(order, 3);
    std::vector<uint64_t> got(2 * 3 * 2 * 30, ~uint64_t{0});
    Emulate("WriteIndices", WriteIndices, grid, block, 0, got.data());
    std::vector<uint64_t> expected;
    for (uint64_t b = 0; b < 12; ++b) {
      for (uint64_t t = 0; t < 30; ++t) {
        expected.push_back(t % 5 | t / 5 % 3 << 8 | t / 15 << 16 | b % 2 << 24 | b / 2 % 3 << 32 |
                           b / 6 << 40);
      }
    }
    EXPECT_EQ(got, expected);
  }
}

// The block's numbers in reverse, by way of shared memory.
template <bool kSynchronise>
__global__ void Reverse(const float* in, float* out) {
  DYNAMIC_SHARED(float, staged);
  const unsigned i = threadIdx.x;
  staged[i] = in[blockIdx.x * blockDim.x + i];
  if (kSynchronise) __syncthreads();
  out[blockIdx.x * blockDim.x + i] = staged[blockDim.x - 1 - i];
}

std::vector<float> Reversed(bool synchronise, int blocks, int threads) {
  std::vector<float> in(blocks * threads), out(blocks * threads);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i + 1);
  Emulate("Reverse", synchronise ? Reverse<true> : Reverse<false>, blocks, threads,
          threads * sizeof(float), in.data(), out.data());
  return out;
}

TEST(CudaOnHost, BarriersOrderSharedMemoryInEveryOrderOfThreads) {
  for (const ThreadOrder order : kOrders) {
    SetThreadOrder(order, 7);
    for (const int threads : {1, 31, 32, 33, 64, 100}) {
      const std::vector<float> out = Reversed(true, 3, threads);
      for (int i = 0; i < 3 * threads; ++i) {
        EXPECT_EQ(out[i], i / threads * threads + threads - i % threads);
      }
    }
  }
}

// --- Orders ---

__global__ void TakeTickets(int* next, int* ticket) {
  ticket[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(next, 1);
}

std::vector<int> Tickets(ThreadOrder order, uint64_t seed) {
  SetThreadOrder(order, seed);
  std::vector<int> ticket(3 * 96);
  int next = 0;
  Emulate("TakeTickets", TakeTickets, 3, 96, 0, &next, ticket.data());
  return ticket;
}

TEST(CudaOnHost, ThreadsRunInTheOrderThatIsSet) {
  std::vector<int> up(3 * 96);
  for (int i = 0; i < 3 * 96; ++i) up[i] = i;
  EXPECT_EQ(Tickets(ThreadOrder::kForward, 0), up);
  EXPECT_EQ(Tickets(ThreadOrder::kBackward, 0), std::vector<int>(up.rbegin(), up.rend()));
  const std::vector<int> one = Tickets(ThreadOrder::kShuffled, 1);
  EXPECT_EQ(one, Tickets(ThreadOrder::kShuffled, 1));
  EXPECT_NE(one, Tickets(ThreadOrder::kShuffled, 2));
  EXPECT_THAT(one, ::testing::UnorderedElementsAreArray(up));
}

#if !defined(EMULATED_GPU_TSAN)  // where a missing barrier is an error at once
TEST(CudaOnHost, AMissingBarrierShowsInSomeOrder) {
  int wrong = 0;
  for (const ThreadOrder order : kOrders) {
    SetThreadOrder(order, 1);
    const std::vector<float> out = Reversed(false, 1, 64);
    for (int i = 0; i < 64; ++i) wrong += out[i] != 64 - i;  // also NaN
  }
  EXPECT_GT(wrong, 0);
}
#endif

TEST(CudaOnHostProgramDeathTest, TheEnvironmentSetsTheOrderOfAWholeProgram) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto first_ticket = [](const char* order) {
    setenv("DEEPNET_EMULATED_ORDER", order, 1);
    std::vector<int> ticket(64);
    int next = 0;
    Emulate("TakeTickets", TakeTickets, 1, 64, 0, &next, ticket.data());
    std::fprintf(stderr, "first ticket: %d\n", ticket[0]);
    std::_Exit(0);
  };
  EXPECT_EXIT(first_ticket("backward"), ::testing::ExitedWithCode(0), "first ticket: 63");
  EXPECT_EXIT(first_ticket("forward"), ::testing::ExitedWithCode(0), "first ticket: 0");
  EXPECT_EXIT(first_ticket("shuffled:5"), ::testing::ExitedWithCode(0), "first ticket: ");
  EXPECT_DEATH(first_ticket("sideways"), "DEEPNET_EMULATED_ORDER is 'sideways'");
}

// --- Shared memory ---

struct Twice {
  float v[64];
};

__global__ void ReadFreshMemory(float* out) {
  DYNAMIC_SHARED(float, dynamic);
  BLOCK_SHARED(Twice, fixed);
  const unsigned i = threadIdx.x;
  out[blockIdx.x * blockDim.x + i] = dynamic[i] + fixed.v[i];
  dynamic[i] = fixed.v[i] = 1.0f;  // for the next block to find, were it not fresh
}

TEST(CudaOnHost, SharedMemoryIsNanAtTheStartOfEveryBlock) {
  std::vector<float> out(3 * 64, 0.0f);
  Emulate("ReadFreshMemory", ReadFreshMemory, 3, 64, 64 * sizeof(float), out.data());
  for (const float v : out) EXPECT_TRUE(std::isnan(v));
}

template <int kNumber>
__global__ void ShareOneNumber(int* out) {
  BLOCK_SHARED(int, number);
  if (threadIdx.x == 5) number = kNumber + static_cast<int>(blockIdx.x);
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = number;
}

TEST(CudaOnHost, ABlockSharedVariableIsOneForTheBlockAndTheKernel) {
  std::vector<int> a(2 * 40), b(2 * 40);
  Emulate("ShareOneNumber", ShareOneNumber<10>, 2, 40, 0, a.data());
  Emulate("ShareOneNumber", ShareOneNumber<20>, 2, 40, 0, b.data());
  for (int i = 0; i < 80; ++i) {
    EXPECT_EQ(a[i], 10 + i / 40);
    EXPECT_EQ(b[i], 20 + i / 40);
  }
}

struct TooMuch {
  char bytes[32 << 10];
};
__global__ void TakeTooMuch(char* out) {
  DYNAMIC_SHARED(char, dynamic);
  BLOCK_SHARED(TooMuch, fixed);
  out[0] = dynamic[0] = fixed.bytes[0] = 1;
}

TEST(CudaOnHostMemoryDeathTest, MoreSharedMemoryThanABlockHasIsNamed) {
  char out;
  EXPECT_DEATH(Emulate("TakeTooMuch", TakeTooMuch, 1, 1, 17 << 10, &out),
               "emulated GPU: kernel TakeTooMuch.*more than 49152 bytes of shared memory");
}

// --- Warps ---

__global__ void ShuffleAll(int* out) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  int* mine = out + threadIdx.x * 8;
  mine[0] = __shfl_sync(kAll, lane * 10, 3);
  mine[1] = __shfl_xor_sync(kAll, lane * 10, 5);
  mine[2] = __shfl_up_sync(kAll, lane * 10, 4);
  mine[3] = __shfl_down_sync(kAll, lane * 10, 4);
  mine[4] = __shfl_sync(kAll, lane * 10, 9, 8);
  mine[5] = __shfl_up_sync(kAll, lane * 10, 3, 8);
  mine[6] = __shfl_down_sync(kAll, lane * 10, 3, 8);
  mine[7] = static_cast<int>(__shfl_xor_sync(kAll, 0.5 * lane, 1) * 20);
}

TEST(CudaOnHost, ShufflesReadTheLanesThatCudaSays) {
  for (const ThreadOrder order : kOrders) {
    SetThreadOrder(order, 2);
    std::vector<int> out(64 * 8);
    Emulate("ShuffleAll", ShuffleAll, 1, 64, 0, out.data());
    for (int t = 0; t < 64; ++t) {
      const int l = t % 32, first = l / 8 * 8;
      const std::vector<int> expected = {3,
                                         l ^ 5,
                                         l >= 4 ? l - 4 : l,
                                         l < 28 ? l + 4 : l,
                                         first + 1,
                                         l - first >= 3 ? l - 3 : l,
                                         l - first < 5 ? l + 3 : l,
                                         l ^ 1};
      for (int k = 0; k < 8; ++k) EXPECT_EQ(out[t * 8 + k], 10 * expected[k]) << t << " " << k;
    }
  }
}

__global__ void VoteInHalves(unsigned* out) {
  const unsigned lane = threadIdx.x, half = lane < 16 ? 0x0000FFFFu : 0xFFFF0000u;
  unsigned* mine = out + lane * 4;
  mine[0] = __ballot_sync(half, lane % 3 == 0);
  if (lane < 16) __syncwarp(half);  // of one half only
  mine[1] = static_cast<unsigned>(__any_sync(half, lane == 20));
  mine[2] = static_cast<unsigned>(__all_sync(half, lane < 16));
  mine[3] = __ballot_sync(kAll, 1);
}

TEST(CudaOnHost, PartsOfAWarpVoteByThemselves) {
  for (const ThreadOrder order : kOrders) {
    SetThreadOrder(order, 4);
    std::vector<unsigned> out(32 * 4);
    Emulate("VoteInHalves", VoteInHalves, 1, 32, 0, out.data());
    for (unsigned l = 0; l < 32; ++l) {
      const unsigned half = l < 16 ? 0x0000FFFFu : 0xFFFF0000u;
      EXPECT_EQ(out[l * 4], 0x49249249u & half);
      EXPECT_EQ(out[l * 4 + 1], l >= 16 ? 1u : 0u);
      EXPECT_EQ(out[l * 4 + 2], l < 16 ? 1u : 0u);
      EXPECT_EQ(out[l * 4 + 3], kAll);
    }
  }
}

// --- Mistakes ---

__global__ void LeaveBeforeTheBarrier() {
  if (threadIdx.x == 7) return;
  __syncthreads();
}

__global__ void LeaveWhileOthersWait() {
  if (threadIdx.x == 39) return;  // the last to come, forward
  __syncthreads();
}

__global__ void TwoBarriers() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void TwoShuffles(float* out) {
  float v = static_cast<float>(threadIdx.x);
  if (threadIdx.x < 16) {
    v += __shfl_xor_sync(kAll, v, 1);
  } else {
    v += __shfl_down_sync(kAll, v, 2);
  }
  out[threadIdx.x] = v;
}

__global__ void ShuffleWithoutSome(float* out) {
  if (threadIdx.x >= 20) return;
  out[threadIdx.x] = __shfl_xor_sync(kAll, 1.0f, 1);
}

__global__ void BarrierAgainstShuffle(float* out) {
  if (threadIdx.x < 8) {
    __syncthreads();
  } else {
    out[threadIdx.x] = __shfl_xor_sync(kAll, 1.0f, 1);
  }
}

__global__ void ReadOutsideTheMask(float* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_xor_sync(0xFFFFu, 1.0f, 16);
}

__global__ void NotInOwnMask(float* out) { out[threadIdx.x] = __shfl_sync(0xFFu, 1.0f, 0); }

class CudaOnHostDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { SetThreadOrder(ThreadOrder::kForward); }
  std::vector<float> out_ = std::vector<float>(64);
};

TEST_F(CudaOnHostDeathTest, ABarrierThatAThreadHasPassedByLeavingIsNamed) {
  EXPECT_DEATH(Emulate("Leave", LeaveBeforeTheBarrier, 2, 40, 0),
               "kernel Leave, block .0,0,0.: a thread has left while others wait for it(.|\n)*"
               "thread .0,0,0. waits at __syncthreads, .*cuda_on_host_test.cc:[0-9]+, and 6 more"
               "(.|\n)*thread .7,0,0. has left");
  EXPECT_DEATH(Emulate("Leave", LeaveWhileOthersWait, 1, 40, 0),
               "has left while others wait for it");
  EXPECT_DEATH(
      {
        SetThreadOrder(ThreadOrder::kBackward);
        Emulate("Leave", LeaveWhileOthersWait, 1, 40, 0);
      },
      "at a barrier after another has left");
}

TEST_F(CudaOnHostDeathTest, DivergentBarriersAreNamedWithBothPlaces) {
  EXPECT_DEATH(Emulate("TwoBarriers", TwoBarriers, 1, 64, 0),
               "kernel TwoBarriers, .*threads of one block are at different barriers(.|\n)*"
               "thread .0,0,0. waits at __syncthreads, .*, and 31 more\n"
               "  thread .32,0,0. waits at __syncthreads");
}

TEST_F(CudaOnHostDeathTest, DivergentShufflesAreNamedWithBothPlaces) {
  EXPECT_DEATH(Emulate("TwoShuffles", TwoShuffles, 1, 32, 0, out_.data()),
               "lanes of one warp are at different operations(.|\n)*"
               "thread .16,0,0. waits at __shfl_down_sync(.|\n)*__shfl_xor_sync, .*and 15 more");
}

TEST_F(CudaOnHostDeathTest, AShuffleThatALaneHasPassedByLeavingIsNamed) {
  EXPECT_DEATH(Emulate("WithoutSome", ShuffleWithoutSome, 1, 32, 0, out_.data()),
               "a thread has left while others wait for it(.|\n)*__shfl_xor_sync");
}

TEST_F(CudaOnHostDeathTest, ThreadsThatWaitForEachOtherAreNamed) {
  EXPECT_DEATH(Emulate("Against", BarrierAgainstShuffle, 1, 32, 0, out_.data()),
               "threads wait for each other(.|\n)*__syncthreads(.|\n)*__shfl_xor_sync");
}

TEST_F(CudaOnHostDeathTest, MasksAreChecked) {
  EXPECT_DEATH(Emulate("Outside", ReadOutsideTheMask, 1, 32, 0, out_.data()),
               "lane 0 reads lane 16, which is not in the mask");
  EXPECT_DEATH(Emulate("NotInOwn", NotInOwnMask, 1, 32, 0, out_.data()),
               "a lane is not in its own mask");
}

TEST(CudaOnHost, LaunchesOfShapesThatNoGpuTakesAreRefused) {
  int* const null = nullptr;
  const auto launch = [&](dim3 grid, dim3 block, size_t shared) {
    return LaunchKernel("ShareOneNumber", ShareOneNumber<1>, grid, block, shared, nullptr, null);
  };
  EXPECT_EQ(launch(0, 32, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(dim3(1, 65536), 32, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(1, 1025, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(1, 0, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(1, 32, (48 << 10) + 1), cudaErrorInvalidValue);
}

// --- Sanitizers ---

#if defined(__SANITIZE_ADDRESS__)
__global__ void WriteOneTooFar(float* out, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i <= n) out[i] = 1.0f;
}

__global__ void WriteSharedOneTooFar() {
  BLOCK_SHARED(Twice, fixed);
  fixed.v[threadIdx.x + 1] = 1.0f;
}

TEST_F(CudaOnHostDeathTest, AddressSanitizerSeesTheBoundsOfMemory) {
  void* p = nullptr;
  ASSERT_EQ(cudaMalloc(&p, 100 * sizeof(float)), cudaSuccess);
  EXPECT_DEATH(Emulate("OneTooFar", WriteOneTooFar, 1, 128, 0, static_cast<float*>(p), 100),
               "heap-buffer-overflow");
  EXPECT_DEATH(Emulate("SharedOneTooFar", WriteSharedOneTooFar, 1, 64, 0), "use-after-poison");
  cudaFree(p);
}
#endif

#if defined(EMULATED_GPU_TSAN)
__global__ void AddAcrossBlocks(float* out) {
  if (threadIdx.x == 0) out[0] += 1.0f;
}

// Lanes exchange by shared memory across a barrier of the warp only.
__global__ void ReadTheOtherWarp(float* out) {
  BLOCK_SHARED(Twice, fixed);
  fixed.v[threadIdx.x] = 1.0f;
  __syncwarp();
  out[threadIdx.x] = fixed.v[threadIdx.x ^ 32];
}

TEST_F(CudaOnHostDeathTest, ThreadSanitizerSeesWhatNoBarrierOrders) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(Reversed(false, 1, 64), "data race");
  EXPECT_DEATH(Emulate("AcrossBlocks", AddAcrossBlocks, 2, 32, 0, out_.data()), "data race");
  EXPECT_DEATH(Emulate("OtherWarp", ReadTheOtherWarp, 1, 64, 0, out_.data()), "data race");
}
#endif

// --- Costs ---

#if !defined(EMULATED_GPU_TSAN)  // where each thread has a fiber of its own
__global__ void AddOne(float* x) { x[blockIdx.x * blockDim.x + threadIdx.x] += 1.0f; }

__global__ void ManyBarriers(int rounds) {
  for (int i = 0; i < rounds; ++i) __syncthreads();
}

TEST(CudaOnHost, ThreadsThatNeverWaitShareAFiber) {
  SetThreadOrder(ThreadOrder::kForward);
  std::vector<float> x(100 * 256);
  const KernelStats before = ReadKernelStats();
  Emulate("AddOne", AddOne, 100, 256, 0, x.data());
  const KernelStats middle = ReadKernelStats();
  EXPECT_EQ(middle.threads - before.threads, 100u * 256u);
  EXPECT_EQ(middle.switches - before.switches, 2u * 100u);  // in and out, a block
  Emulate("ManyBarriers", ManyBarriers, 1, 256, 0, 10);
  const KernelStats after = ReadKernelStats();
  EXPECT_LE(after.switches - middle.switches, 11u * 256u + 2u);  // one a barrier and thread
}
#endif

}  // namespace
}  // namespace emulated_gpu
