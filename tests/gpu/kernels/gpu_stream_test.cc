#include "trainer/kernels/cuda/gpu_stream.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/gpu/emulated/cuda_on_host.h"
#include "tests/gpu/emulated/device.h"
#include "tests/gpu/kernels/device_testing.h"
#include "trainer/kernels/cuda/adam.h"
#include "trainer/kernels/cuda/attention.h"
#include "trainer/kernels/cuda/cross_entropy.h"
#include "trainer/kernels/cuda/dropout.h"
#include "trainer/kernels/cuda/elementwise.h"
#include "trainer/kernels/cuda/embedding.h"
#include "trainer/kernels/cuda/residual_norm.h"
#include "trainer/kernels/cuda/scaled_sums.h"

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
  const native::RowIds ids_ = {Memory<uint32_t>(), Memory<uint32_t>()};
};

TEST_F(LaunchShapes, OfFlatRangesAreOnesThatCudaTakes) {
  auto* const x = Memory<float>();
  Cast(gpu_, MatrixOf(1, kWeights, native::Element::kFloat32), MatrixOf(1, kWeights));
  AdamStep(gpu_, {}, {kWeights, x, x, x, x});
  const FloatRange range = {x, kWeights};
  SumSquares(gpu_, std::span(&range, 1), Memory<double>());
  Add(gpu_, x, x, kWeights);
  EXPECT_GE(Launches(gpu_), 4);
}

TEST_F(LaunchShapes, OfRowsAreOnesThatCudaTakes) {
  auto* const x = Memory<float>();
  auto* const mask = Memory<uint8_t>();
  ResidualNormForward(gpu_, {.rows = kRows,
                             .width = kWidth,
                             .x = x,
                             .branch = Rows(kWidth),
                             .dropout = dropout_,
                             .ids = ids_,
                             .gain = x,
                             .y = x,
                             .xhat = x,
                             .rstd = x,
                             .mask = mask});
  const native::ResidualNormBackwardArgs backward = {.rows = kRows,
                                                     .width = kWidth,
                                                     .dy = x,
                                                     .xhat = x,
                                                     .rstd = x,
                                                     .gain = x,
                                                     .d_residual = x,
                                                     .d_gain = x,
                                                     .d_bias = x};
  ResidualNormBackward(gpu_, backward);
  BatchNormBackward(gpu_, backward);
  NormOutput(gpu_, MatrixOf(kRows, kWidth, native::Element::kFloat32), x, x, Rows(kWidth));
  GeluForward(gpu_, Rows(kInner), Rows(kInner));
  DropoutForward(gpu_, dropout_, ids_, Rows(kInner), mask);
  AddBiasGradient(gpu_, Rows(kInner), x);
  AddScaledBackward(gpu_, Rows(kWidth), Rows(kWidth), x, Rows(kWidth), x);
  ScaleShiftBackward(gpu_, {.dy = Rows(kWidth),
                            .x = Rows(kWidth),
                            .scale = x,
                            .groups = kWidth,
                            .dx = Rows(kWidth),
                            .d_scale = x});
  EXPECT_GE(Launches(gpu_), 9);
}

TEST_F(LaunchShapes, OfAttentionEmbeddingsAndLossAreOnesThatCudaTakes) {
  auto* const x = Memory<float>();
  const native::AttentionShape shape = {.num_sentences = 512,
                                        .q_offsets = Memory<int32_t>(),
                                        .k_offsets = Memory<int32_t>(),
                                        .heads = kHeads,
                                        .head_dim = kWidth / kHeads};
  AttentionForward(gpu_, {.shape = shape,
                          .q = Rows(kWidth),
                          .k = Rows(kWidth),
                          .v = Rows(kWidth),
                          .context = Rows(kWidth),
                          .lse = x});
  AttentionBackward(gpu_, {.shape = shape,
                           .q = Rows(kWidth),
                           .k = Rows(kWidth),
                           .v = Rows(kWidth),
                           .lse = x,
                           .context = Rows(kWidth),
                           .d_context = Rows(kWidth),
                           .dq = Rows(kWidth),
                           .dk = Rows(kWidth),
                           .dv = Rows(kWidth)});
  EmbedForward(gpu_, {.rows = kRows,
                      .width = kWidth,
                      .vocabulary = kVocabulary,
                      .ids = Memory<int32_t>(),
                      .row_ids = ids_,
                      .table = MatrixOf(kVocabulary, kWidth, native::Element::kFloat32),
                      .x = x});
  EmbedBackward(gpu_, {.rows = kRows, .width = kWidth, .num_indices = kVocabulary, .grad = x},
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
