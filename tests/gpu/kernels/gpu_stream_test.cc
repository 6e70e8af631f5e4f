#include "trainer/kernels/cuda/gpu_stream.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/gpu/emulated/device.h"
#include "trainer/kernels/cuda/elementwise.h"

namespace deepnet::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Returns the text of the GpuError that `call` throws, or "nothing".
template <typename F>
std::string TextThrownBy(const F& call) {
  try {
    call();
  } catch (const GpuError& error) {
    return error.what();
  }
  return "nothing";
}

class GpuStreamTest : public ::testing::Test {
 protected:
  void AddOne(GpuStream& gpu) { Add(gpu, &x_, &y_, 1); }

  float x_ = 1.0f, y_ = 0.0f;  // the device of these tests reads the host's memory
};

TEST_F(GpuStreamTest, CountsLaunchesAndWaits) {
  GpuStream gpu;
  AddOne(gpu);
  AddOne(gpu);
  EXPECT_EQ(gpu.launches(), 2);
  EXPECT_EQ(gpu.waits(), 0);
  gpu.Wait();
  EXPECT_EQ(gpu.waits(), 1);
  EXPECT_EQ(y_, 2.0f);
}

TEST_F(GpuStreamTest, AnErrorNamesTheKernelAndTheOneBefore) {
  GpuStream gpu;
  emulated_gpu::FailAt("Add", 2, cudaErrorInvalidConfiguration);
  AddOne(gpu);
  EXPECT_THAT(
      TextThrownBy([&] { AddOne(gpu); }),
      AllOf(StartsWith("CUDA error in Add: invalid configuration argument"),
            HasSubstr("cudaErrorInvalidConfiguration"), HasSubstr("last launched before: Add")));
  EXPECT_EQ(gpu.launches(), 1);
}

TEST_F(GpuStreamTest, AnErrorOfARunningKernelIsThrownByTheNextWait) {
  GpuStream gpu;
  AddOne(gpu);
  emulated_gpu::FailAt("cudaStreamSynchronize", 1, cudaErrorIllegalAddress);
  EXPECT_THAT(TextThrownBy([&] { gpu.Wait(); }),
              AllOf(HasSubstr("cudaStreamSynchronize"), HasSubstr("illegal memory access"),
                    HasSubstr("last launched before: Add")));
}

TEST_F(GpuStreamTest, CheckedLaunchesWaitAndNameTheirOwnErrors) {
  GpuStream gpu(/*check_launches=*/true);
  AddOne(gpu);
  EXPECT_EQ(gpu.waits(), 1);
  emulated_gpu::FailAt("cudaStreamSynchronize", 1, cudaErrorIllegalAddress);
  EXPECT_THAT(TextThrownBy([&] { AddOne(gpu); }),
              StartsWith("CUDA error in Add: an illegal memory access"));
}

TEST_F(GpuStreamTest, ScratchGrowsOnlyWhereAnOperationNeedsMore) {
  GpuStream gpu;
  EXPECT_EQ(gpu.scratch_bytes(), 0);
  void* const first = gpu.Scratch(1000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 256, 0u);
  EXPECT_EQ(gpu.Scratch(1000), first);
  EXPECT_EQ(gpu.Scratch(1), first);
  EXPECT_EQ(gpu.scratch_bytes(), 1000);
  EXPECT_EQ(gpu.waits(), 0);
  const emulated_gpu::Counters before = emulated_gpu::ReadCounters();
  gpu.Scratch(5000);
  EXPECT_EQ(gpu.waits(), 1);  // for kernels that use what is given back
  EXPECT_EQ(gpu.scratch_bytes(), 5000);
  EXPECT_EQ(emulated_gpu::ReadCounters().allocations, before.allocations + 1);
}

TEST_F(GpuStreamTest, ScratchThatCannotBeHadIsNamed) {
  GpuStream gpu;
  emulated_gpu::FailAt("cudaMalloc", 1, cudaErrorMemoryAllocation);
  EXPECT_THAT(TextThrownBy([&] { gpu.Scratch(1 << 20); }),
              StartsWith("CUDA error in cudaMalloc: out of memory"));
  EXPECT_EQ(gpu.scratch_bytes(), 0);
  EXPECT_NE(gpu.Scratch(16), nullptr);
}

}  // namespace
}  // namespace deepnet::cuda
