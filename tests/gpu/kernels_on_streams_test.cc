// This project's kernels and its stream on the emulated GPU with late streams: kernels run as
// fibers on a stream's thread, their arguments point to memory that only they can read.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "parallel/base/clock.h"
#include "parallel/base/host.h"
#include "tests/gpu/emulated/device.h"
#include "tests/gpu/kernels/device_testing.h"
#include "trainer/kernels/cuda/gpu_stream.h"
#include "trainer/kernels/cuda/host_copies.h"
#include "trainer/kernels/cuda/kernels.h"
#include "trainer/kernels/cuda/launch_graphs.h"
#include "trainer/kernels/cuda/linear.h"
#include "trainer/kernels/kernel_times.h"
#include "trainer/kernels/side_copies.h"

namespace deepnet::cuda {
namespace {

using ::testing::AllOf;
using testing::DeviceArray;
using ::testing::Each;
using ::testing::HasSubstr;

void Ok(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorName(error); }

class KernelsOnStreams : public ::testing::Test {
 protected:
  KernelsOnStreams() {
    emulated_gpu::Settings settings;
    settings.devices = 2;
    settings.memory_bytes = 64 << 20;
    settings.longest_delay_us = 200;
    settings.eager_loading = true;
    emulated_gpu::Restart(settings);
  }
};

DeviceArray<float> OnDevice(int64_t count, float value) {
  return DeviceArray(std::vector<float>(count, value));
}

TEST_F(KernelsOnStreams, LaunchesRunInOrder) {
  GpuStream gpu;
  const auto x = OnDevice(1000, 1.0F);
  const auto y = OnDevice(1000, 0.0F);
  const int64_t waits = emulated_gpu::ReadCounters().waits;
  for (int i = 0; i < 10; ++i) Add(gpu, x.data(), y.data(), 1000);
  EXPECT_EQ(emulated_gpu::ReadCounters().waits, waits);
  EXPECT_THAT(y.Read(gpu), Each(10.0F));
  EXPECT_EQ(emulated_gpu::ReadLaunches()["Add"], 10);
}

// A block that came back is used again only when the copy from its pinned half has run.
TEST_F(KernelsOnStreams, WhatIsUploadedIsNotOverwrittenBeforeItIsCopied) {
  constexpr int kBlocks = 20, kCount = 1000;
  GpuStream gpu;
  UploadPool pool(gpu);
  const auto sum = OnDevice(kCount, 0.0F);
  for (int i = 0; i < kBlocks; ++i) {
    const std::vector<float> values(kCount, static_cast<float>(i));
    UploadBlock block = pool.Begin(UploadBlock::Padded(kCount * sizeof(float)));
    const float* const x = block.Add(std::span(values));
    const std::shared_ptr<const void> sent = pool.Send(std::move(block));
    Add(gpu, x, sum.data(), kCount);
  }
  EXPECT_THAT(sum.Read(gpu), Each(kBlocks * (kBlocks - 1) / 2));
}

TEST_F(KernelsOnStreams, ABlockServesEveryLaterUploadBecauseItIsAsLargeAsTheLargerOnes) {
  GpuStream gpu;
  UploadPool pool(gpu);
  const auto send = [&](int64_t bytes) { return pool.Send(pool.Begin(bytes)); };
  { const auto first = send(4096), second = send(16); }
  gpu.Wait();
  const int64_t pinned = emulated_gpu::ReadCounters().pinned;
  const auto first = send(4096), second = send(4096);
  EXPECT_EQ(emulated_gpu::ReadCounters().pinned, pinned);
}

// There is room for 1 MiB: what is there is fetched before more has its place.
TEST_F(KernelsOnStreams, ResultsForWhichNoRoomIsLeftWaitForThoseBefore) {
  constexpr int64_t kCount = 200'000;
  GpuStream gpu;
  ResultQueue results(gpu);
  const auto x = OnDevice(kCount, 1.0F);
  std::vector<float> first(kCount), second(kCount), larger(2 * kCount);
  Add(gpu, x.data(), results.Add(std::span(first)), kCount);
  Add(gpu, x.data(), results.Add(std::span(second)), kCount);
  EXPECT_THAT(first, Each(1.0F));
  results.Add(std::span(larger));
  EXPECT_THAT(second, Each(1.0F));
}

TEST_F(KernelsOnStreams, RanksThatAreThreadsHaveDevicesOfTheirOwn) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([rank] {
      Ok(cudaSetDevice(rank));
      GpuStream gpu;
      const auto x = OnDevice(500, 1.0F + static_cast<float>(rank));
      const auto y = OnDevice(500, 0.0F);
      for (int i = 0; i < 10; ++i) Add(gpu, x.data(), y.data(), 500);
      EXPECT_THAT(y.Read(gpu), Each(10.0F * (1.0F + static_cast<float>(rank))));
      EXPECT_EQ(emulated_gpu::ReadCounters().launches, 10);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_F(KernelsOnStreams, AClockAddsUpTheTimesBetweenItsStartsAndStops) {
  GpuStream gpu;
  const auto x = OnDevice(100'000, 1.0F);
  const auto add = [&] { Add(gpu, x.data(), x.data(), 100'000); };
  const auto timed = [&](bool all) {
    const double start = SecondsNow();
    if (all) gpu.StartClock();
    for (int i = 0; i < 10; ++i) {
      if (!all && i == 3) gpu.StartClock();
      add();
      if (!all && i == 3) gpu.StopClock();
    }
    if (all) gpu.StopClock();
    gpu.Wait();
    const double seconds = gpu.ClockedSeconds();
    EXPECT_GT(seconds, 0.0);
    EXPECT_LE(seconds, SecondsNow() - start);
    EXPECT_EQ(gpu.ClockedSeconds(), 0.0);
    return seconds;
  };
  double whole = 0.0, tenth = 0.0;
  for (int i = 0; i < 5; ++i) {
    whole += timed(true);
    tenth += timed(false);
  }
  EXPECT_LT(tenth, whole / 2);
}

TEST_F(KernelsOnStreams, AKernelThatFailsIsSeenByTheNextWait) {
  GpuStream gpu;
  const auto x = OnDevice(10, 1.0F);
  const auto y = OnDevice(10, 0.0F);
  emulated_gpu::FailLater("Add", 2, cudaErrorIllegalAddress);
  Add(gpu, x.data(), y.data(), 10);
  Add(gpu, x.data(), y.data(), 10);
  std::string text;
  try {
    gpu.Wait();
  } catch (const GpuError& error) {
    text = error.what();
  }
  EXPECT_THAT(text, AllOf(HasSubstr("cudaStreamSynchronize"), HasSubstr("illegal memory access"),
                          HasSubstr("last launched before: Add")));
}

// cuBLASLt may choose an algorithm for the rounded number of rows that does not take this one.
TEST_F(KernelsOnStreams, ARefusedAlgorithmIsChosenAgain) {
  GpuStream gpu;
  Matmul matmul(gpu);
  const auto matrix = [](const DeviceArray<float>& data, int64_t rows, int64_t cols) {
    return native::Matrix{.data = data.data(), .rows = rows, .cols = cols, .stride = cols};
  };
  const auto a = OnDevice(12, 2.0F), b = OnDevice(8, 3.0F);
  const auto y = OnDevice(6, 0.0F);
  const MatmulArgs args = {.a = matrix(a, 3, 4), .b = matrix(b, 4, 2), .y = matrix(y, 3, 2)};
  emulated_gpu::FailAt("cublasLtMatmul", 1, CUBLAS_STATUS_NOT_SUPPORTED);
  matmul.Run(args);
  EXPECT_THAT(y.Read(gpu), Each(24.0F));
  // The algorithm that was chosen is kept: no other one is left to try.
  emulated_gpu::FailAt("cublasLtMatmul", 1, CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_THROW(matmul.Run(args), GpuError);
  emulated_gpu::FailAt("cublasLtMatmul", 1, CUBLAS_STATUS_EXECUTION_FAILED);
  EXPECT_THROW(matmul.Run(args), GpuError);
}

ProductTask WeightGradientTask() {
  return {.shape = {ProductForm::kWeightGradient, 24, 16, 70},
          .operand = native::Element::kBfloat16,
          .accumulate = true,
          .bias = true,
          .may_split = true,
          .repeats = 4};
}

std::string NamesOf(const std::vector<ProductWay>& ways) {
  std::string names;
  for (const ProductWay& way : ways) {
    names +=
        way.name + (way.seconds > 0 ? " of " + std::to_string(way.candidates) : " none") + "; ";
  }
  return names;
}

// The emulated cuBLASLt proposes two algorithms, and a third where sums may be split.
TEST_F(KernelsOnStreams, AProductIsTriedInEveryWayThatItAllows) {
  ProductTask task = WeightGradientTask();
  const std::vector<ProductWay> of_weights = TryProduct(task);
  EXPECT_EQ(NamesOf(of_weights),
            "first of 1; best of 2; split of 3; plain + BiasGradient of 3; BGRADB of 3; ");
  EXPECT_GT(of_weights[3].seconds, of_weights[2].seconds);
  for (const ProductWay& way : of_weights) {
    EXPECT_EQ(way.unequal, 0) << way.name;
    EXPECT_THAT(way.algorithm, HasSubstr("id ")) << way.name;
  }
  EXPECT_THAT(of_weights[1].algorithm, HasSubstr("split 1"));
  task.shape = {ProductForm::kForward, 30, 128, 16};
  task.float_result = task.accumulate = task.may_split = false;
  task.relu = true;
  EXPECT_EQ(NamesOf(TryProduct(task)), "first of 1; best of 2; plain of 2; RELU_AUX_BIAS of 2; ");
  task.shape.form = ProductForm::kInputGradient;
  task.bias = false;
  EXPECT_EQ(NamesOf(TryProduct(task)),
            "first of 1; best of 2; plain + ReluBackward of 2; DRELU of 2; ");
  task.shape.columns = 24;  // no rows of whole 128 bits
  EXPECT_EQ(NamesOf(TryProduct(task)), "first of 1; best of 2; plain + ReluBackward of 2; ");
}

TEST_F(KernelsOnStreams, AResultWithOtherBitsIsCounted) {
  const ProductTask task = WeightGradientTask();
  constexpr int kTimed = 15;  // calls before the repeats: 5, and 10 that become a graph
  emulated_gpu::FailAt("other bits of a product", kTimed + 2, 1);
  emulated_gpu::FailAt("other bits of a product", kTimed + 4, 1);
  const std::vector<ProductWay> ways = TryProduct(task);
  EXPECT_EQ(ways[0].unequal, 2);
  EXPECT_EQ(ways[1].unequal, 0);
}

TEST_F(KernelsOnStreams, AnAlgorithmThatIsRefusedIsNoCandidate) {
  emulated_gpu::FailAt("cublasLtMatmul", 1, CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(NamesOf(TryProduct(WeightGradientTask())).substr(0, 23), "first none; best of 2; ");
}

TEST_F(KernelsOnStreams, PinnedPagesOfSeveralThreadsTakeACopy) {
  constexpr int64_t kCount = 1 << 20;
  GpuStream gpu;
  const auto x = OnDevice(kCount, 3.0F);
  const auto copies = MakeSideCopies(gpu.get());
  for (const int threads : {1, 2}) {
    const std::shared_ptr<float[]> pinned = copies->Pin(kCount * sizeof(float), threads);
    ASSERT_NE(pinned, nullptr);
    cudaPointerAttributes attributes;
    Ok(cudaPointerGetAttributes(&attributes, pinned.get()));
    EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
    const SideCopy part = {.from = x.data(), .to = pinned.get(), .count = kCount};
    copies->Begin(std::span(&part, 1));
    copies->Wait();
    EXPECT_EQ(std::count(pinned.get(), pinned.get() + kCount, 3.0F), kCount);
  }
}

TEST_F(KernelsOnStreams, NothingIsPinnedThatTheHostDoesNotHave) {
  GpuStream gpu;
  EXPECT_EQ(MakeSideCopies(gpu.get())->Pin(UsableMemoryBytes() + 1, 2), nullptr);
  emulated_gpu::FailAt("cudaHostRegister", 1, cudaErrorMemoryAllocation);
  EXPECT_EQ(MakeSideCopies(gpu.get())->Pin(1, 2), nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(KernelsOnStreams, EqualLaunchesBecomeAGraphOnceItIsProvedAndOthersDoNot) {
  using Use = LaunchGraphs::Use;
  GpuStream gpu;
  LaunchGraphs graphs(gpu);
  const auto x = OnDevice(1000, 1.0F);
  const auto y = OnDevice(1000, 0.0F);
  const auto pass = [&](Use use, int64_t n) {
    graphs.Begin(use);
    for (int i = 0; i < 3; ++i) Add(gpu, x.data(), y.data(), n);
    EXPECT_EQ(use == Use::kNone, gpu.graphs() == nullptr);
    return graphs.End();
  };
  EXPECT_FALSE(pass(Use::kNone, 1000));
  EXPECT_TRUE(pass(Use::kProved, 1000));  // there is no graph
  EXPECT_TRUE(pass(Use::kRecord, 1000));
  EXPECT_TRUE(pass(Use::kTry, 1000));  // it is not prepared
  graphs.Prepare();
  EXPECT_TRUE(pass(Use::kProved, 1000));  // nobody has judged it
  EXPECT_EQ(emulated_gpu::ReadLaunches()["Add"], 15);
  EXPECT_FALSE(pass(Use::kTry, 1000));
  graphs.Judge(/*equal=*/true);
  EXPECT_FALSE(pass(Use::kProved, 1000));
  EXPECT_TRUE(pass(Use::kRecord, 999));  // another number is another launch
  graphs.Prepare();
  EXPECT_FALSE(pass(Use::kTry, 999));
  graphs.Judge(/*equal=*/false);
  EXPECT_FALSE(pass(Use::kProved, 999));  // nothing to wait for
  EXPECT_EQ(emulated_gpu::ReadLaunches()["Add"], 21);
  EXPECT_EQ(emulated_gpu::ReadLaunches()["cudaGraphLaunch"], 3);
  EXPECT_EQ(emulated_gpu::ReadCounters().replayed, 9);
  std::vector<float> sums = y.Read(gpu);
  EXPECT_EQ(sums.back(), 21.0F);
  sums.pop_back();
  EXPECT_THAT(sums, Each(30.0F));
}

TEST_F(KernelsOnStreams, WhatIsLaunchedWithoutGraphsKeepsItsPlace) {
  GpuStream gpu;
  LaunchGraphs graphs(gpu);
  const auto x = OnDevice(1000, 1.0F);
  graphs.Begin(LaunchGraphs::Use::kProved);
  Add(gpu, x.data(), x.data(), 1000);
  {
    const WithoutGraphs now(gpu);
    EXPECT_EQ(emulated_gpu::ReadLaunches()["Add"], 1);
    Ok(cudaMemsetAsync(x.data(), 0, 4000, gpu.get()));
  }
  Add(gpu, x.data(), x.data(), 1000);
  graphs.End();
  EXPECT_THAT(x.Read(gpu), Each(0.0F));
}

TEST_F(KernelsOnStreams, LaunchesThatWaitForTheirGraphHaveTheirScratchUntilItGrows) {
  GpuStream gpu;
  LaunchGraphs graphs(gpu);
  const auto x = OnDevice(1000, 1.0F);
  graphs.Begin(LaunchGraphs::Use::kProved);
  Add(gpu, x.data(), gpu.ScratchFloats(1000), 1000);
  gpu.ScratchFloats(100'000);
  EXPECT_EQ(emulated_gpu::ReadLaunches()["Add"], 1);
  Add(gpu, x.data(), gpu.ScratchFloats(100'000), 1000);
  graphs.End();
  gpu.Wait();
}

TEST(KernelsOnStreamsDeathTest, WhatHasNoRoomInAnUploadIsNotWritten) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  GpuStream gpu;
  UploadPool pool(gpu);
  pool.Send(pool.Begin(4096));
  gpu.Wait();
  UploadBlock block = pool.Begin(16);
  const std::vector<float> five(5);
  EXPECT_DEATH(block.Add(std::span(five)), "bytes of arrays in an upload");
}

TEST(KernelsOnStreamsDeathTest, AKernelOnFreedMemoryIsNamed) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(
      {
        GpuStream gpu;
        const auto x = OnDevice(10, 1.0F);
        cudaFreeAsync(x.data(), gpu.get());
        Add(gpu, x.data(), x.data(), 10);
        gpu.Wait();
      },
      "an address in block 1 .40 B of device 0., which was freed before");
}

}  // namespace
}  // namespace deepnet::cuda
