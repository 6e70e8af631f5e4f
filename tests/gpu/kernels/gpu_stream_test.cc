#include "trainer/kernels/cuda/gpu_stream.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/gpu/emulated/cuda_on_host.h"
#include "tests/gpu/emulated/device.h"
#include "tests/gpu/kernels/device_testing.h"
#include "trainer/kernels/cuda/kernels.h"

namespace deepnet::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Launches;
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
  static int64_t Waits() { return emulated_gpu::ReadCounters().waits; }
  void AddOne(GpuStream& gpu) { Add(gpu, &x_, &y_, 1); }

  float x_ = 1.0f, y_ = 0.0f;  // the device of these tests reads the host's memory
};

TEST_F(GpuStreamTest, CountsLaunchesAndWaits) {
  GpuStream gpu;
  gpu.StartTiming();
  const int64_t waits = Waits();
  AddOne(gpu);
  AddOne(gpu);
  EXPECT_EQ(Waits(), waits);
  gpu.Wait();
  EXPECT_EQ(Waits(), waits + 1);
  EXPECT_EQ(Launches(gpu), 2);
  EXPECT_EQ(y_, 2.0f);
}

TEST_F(GpuStreamTest, AnErrorNamesTheKernelAndTheOneBefore) {
  GpuStream gpu;
  gpu.StartTiming();
  emulated_gpu::FailAt("Add", 2, cudaErrorInvalidConfiguration);
  AddOne(gpu);
  EXPECT_THAT(
      TextThrownBy([&] { AddOne(gpu); }),
      AllOf(StartsWith("CUDA error in Add: invalid configuration argument"),
            HasSubstr("cudaErrorInvalidConfiguration"), HasSubstr("last launched before: Add")));
  EXPECT_EQ(Launches(gpu), 1);
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
  const int64_t waits = Waits();
  AddOne(gpu);
  EXPECT_EQ(Waits(), waits + 1);
  emulated_gpu::FailAt("cudaStreamSynchronize", 1, cudaErrorIllegalAddress);
  EXPECT_THAT(TextThrownBy([&] { AddOne(gpu); }),
              StartsWith("CUDA error in Add: an illegal memory access"));
}

TEST_F(GpuStreamTest, ScratchGrowsOnlyWhereAnOperationNeedsMore) {
  GpuStream gpu;
  const emulated_gpu::Counters none = emulated_gpu::ReadCounters();
  void* const first = gpu.Scratch(1000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 256, 0u);
  EXPECT_EQ(gpu.Scratch(1000), first);
  EXPECT_EQ(gpu.Scratch(1), first);
  const emulated_gpu::Counters small = emulated_gpu::ReadCounters();
  EXPECT_EQ(small.allocations, none.allocations + 1);
  EXPECT_EQ(small.allocated_bytes, none.allocated_bytes + 1000);
  gpu.Scratch(5000);
  const emulated_gpu::Counters large = emulated_gpu::ReadCounters();
  EXPECT_EQ(large.allocations, small.allocations + 1);
  EXPECT_EQ(large.allocated_bytes, small.allocated_bytes + 5000);
}

TEST_F(GpuStreamTest, ScratchThatCannotBeHadIsNamed) {
  GpuStream gpu;
  emulated_gpu::FailAt("cudaMalloc", 1, cudaErrorMemoryAllocation);
  EXPECT_THAT(TextThrownBy([&] { gpu.Scratch(1 << 20); }),
              StartsWith("CUDA error in cudaMalloc: out of memory"));
  EXPECT_NE(gpu.Scratch(16), nullptr);
}

// Sizes of real models, which no emulation has the time to compute.
class LaunchShapes : public ::testing::Test {
 protected:
  LaunchShapes() { gpu_.StartTiming(); }

  static constexpr int64_t kWeights = 900'000'000;
  static constexpr int64_t kRows = 16384;  // tokens of a microbatch
  static constexpr int64_t kWidth = 1024;
  static constexpr int64_t kInner = 16384;
  static constexpr int64_t kVocabulary = 250'002;
  static constexpr int kHeads = 16;

  // Nothing reads or writes it.
  template <typename T>
  T* Memory() {
    return reinterpret_cast<T*>(memory_);
  }
  native::Matrix MatrixOf(int64_t rows, int64_t cols,
                          native::Element element = native::Element::kBfloat16) {
    return {memory_, element, rows, cols, cols};
  }
  native::Matrix Rows(int64_t cols) { return MatrixOf(kRows, cols); }

  GpuStream gpu_;
  emulated_gpu::OnlyCheckLaunches only_check_;
  alignas(256) char memory_[256] = {};
  const DropoutSite dropout_ = {.rate = 0.1};
  const PackedRows rows_ = {.count = kRows,
                            .num_sentences = 512,
                            .tokens = Memory<int32_t>(),
                            .positions = Memory<uint32_t>(),
                            .pairs = Memory<uint32_t>(),
                            .offsets = Memory<int32_t>()};
};

TEST_F(LaunchShapes, OfFlatRangesAreOnesThatCudaTakes) {
  auto* const x = Memory<float>();
  Cast(gpu_, MatrixOf(1, kWeights, native::Element::kFloat32), MatrixOf(1, kWeights));
  AdamStep(gpu_, {x, x, x, x}, kWeights);
  const FloatRange range = {x, kWeights};
  SumSquares(gpu_, std::span(&range, 1), Memory<double>());
  Add(gpu_, x, x, kWeights);
  EXPECT_GE(Launches(gpu_), 4);
}

TEST_F(LaunchShapes, OfRowsAreOnesThatCudaTakes) {
  auto* const x = Memory<float>();
  auto* const mask = Memory<uint8_t>();
  const native::Matrix numbers = MatrixOf(kRows, kWidth, native::Element::kFloat32);
  ResidualNormForward(gpu_, {.rows = kRows,
                             .x_RD = numbers,
                             .branch_RD = Rows(kWidth),
                             .dropout = dropout_,
                             .ids = rows_,
                             .gain_D = x,
                             .y_RD = x,
                             .state = {x, x},
                             .mask = mask});
  native::ResidualNormGradArgs backward = {.rows = kRows,
                                           .dy_RD = numbers,
                                           .state = {x, x},
                                           .gain_D = x,
                                           .dx_RD = x,
                                           .dgain_D = x,
                                           .dbias_D = x};
  ResidualNormBackward(gpu_, backward);
  backward.over_rows = true;
  ResidualNormBackward(gpu_, backward);
  NormOutput(gpu_, numbers, x, x, Rows(kWidth));
  GeluForward(gpu_, Rows(kInner), Rows(kInner));
  DropoutForward(gpu_, dropout_, rows_, Rows(kInner), mask);
  AddBiasGradient(gpu_, Rows(kInner), x);
  AddScaledBackward(gpu_, Rows(kWidth), Rows(kWidth), x, Rows(kWidth), x);
  ScaleShiftBackward(gpu_, {.rows = kRows,
                            .dy_RD = Rows(kWidth),
                            .x_RD = Rows(kWidth),
                            .scale_G = MatrixOf(1, kWidth, native::Element::kFloat32),
                            .dx_RD = Rows(kWidth),
                            .dscale_G = x});
  EXPECT_GE(Launches(gpu_), 9);
}

TEST_F(LaunchShapes, OfAttentionEmbeddingsAndLossAreOnesThatCudaTakes) {
  auto* const x = Memory<float>();
  const native::AttentionArgs forward = {.q_RD = Rows(kWidth),
                                         .k_RD = Rows(kWidth),
                                         .v_RD = Rows(kWidth),
                                         .queries = rows_,
                                         .keys = rows_,
                                         .heads = kHeads,
                                         .context_RD = Rows(kWidth),
                                         .log_sum_exp_RH = x};
  AttentionForward(gpu_, forward);
  AttentionBackward(gpu_, {.forward = forward,
                           .dcontext_RD = Rows(kWidth),
                           .dq_RD = Rows(kWidth),
                           .dk_RD = Rows(kWidth),
                           .dv_RD = Rows(kWidth)});
  const native::Matrix table = MatrixOf(kVocabulary, kWidth, native::Element::kFloat32);
  EmbedForward(gpu_, {.rows = rows_, .table_VD = table, .x_RD = x});
  EmbedBackward(gpu_,
                {.rows = rows_,
                 .dx_RD = MatrixOf(kRows, kWidth, native::Element::kFloat32),
                 .dtable_VD = table},
                {.num_unique = kRows, .longest = kRows});
  CrossEntropyRows(gpu_, {.rows = kRows,
                          .vocabulary = kVocabulary,
                          .logits = x,
                          .stride = kVocabulary,
                          .targets = Memory<int32_t>(),
                          .nll = x,
                          .loss = x,
                          .d_logits = MatrixOf(kRows, kVocabulary, native::Element::kFloat32)});
  const native::Matrix logits = MatrixOf(kRows, kVocabulary, native::Element::kFloat32);
  LogSoftmaxRows(gpu_, logits, logits);
  AverageLogProbs(gpu_, kRows * kVocabulary, 2, x, x);
  SumLosses(gpu_, kRows, x, x, Memory<double>());
  EXPECT_GE(Launches(gpu_), 9);
}

}  // namespace
}  // namespace deepnet::cuda
