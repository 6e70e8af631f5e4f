// The residual step with its norm for GPUs against that for CPUs.
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/gpu/kernels/twin.h"
#include "trainer/kernels/cuda/kernels.h"

namespace deepnet::cuda::testing {
namespace {

using native::MaskBytes;
using native::ResidualNormArgs;
using native::ResidualNormGradArgs;

// Float32 sums over a row in another order; then few operations. Sums over rows have `rows` terms.
constexpr double kRowUlps = 16;

struct NormCase {
  int64_t rows, width;
  Element element = Element::kFloat32;
  double rate = 0.0;
  Layout layout = {};
  bool centred = true, has_x = true, has_branch = true, has_bias = true;
};

// The memory of one case, forward and backward.
class NormTwin {
 public:
  explicit NormTwin(const NormCase& p)
      : p_(p),
        twin_(p.layout),
        n_(p.rows * p.width),
        ids_(twin_, p.rows),
        key_{.seed = 9, .step = 4, .stack = 1, .layer = 2, .site = 3, .rate = p.rate},
        x_(twin_.RandomFloats(n_, 1)),
        branch_(twin_.RandomMatrix(p.element, p.rows, p.width, 2)),
        gain_(twin_.RandomFloats(p.width, 3)),
        bias_(twin_.RandomFloats(p.width, 4)),
        mask_(twin_.RandomBytes(p.rows * MaskBytes(p.width))) {}

  void ExpectForwardIsTheCpus(bool over_rows) {
    TwinArray<float>& sum = twin_.NewFloats(over_rows ? 0 : n_);
    TwinArray<float>& y = twin_.NewFloats(n_);
    TwinMatrix& y_operand = twin_.NewMatrix(p_.element, p_.rows, p_.width);
    TwinArray<float>& xhat = twin_.NewFloats(n_);
    TwinArray<float>& rstd = twin_.NewFloats(over_rows ? p_.width : p_.rows);
    const auto args = [&](Side side) {
      ResidualNormArgs a = ArgsOf(side, over_rows);
      if (!over_rows) a.sum_RD = sum.at(side);
      a.y_RD = y.at(side);
      a.y_operand_RD = y_operand.at(side);
      a.state = {xhat.at(side), rstd.at(side)};
      return a;
    };
    RunForward(args);
    EXPECT_EQ(twin_.launches(), p_.rows == 0 ? 0 : over_rows ? 4 : 1);
    if (p_.rows == 0) return;
    if (!over_rows) ExpectSame(sum);
    ExpectClose(y, kRowUlps);
    ExpectClose(y_operand, kRowUlps);
    ExpectClose(xhat, kRowUlps);
    ExpectClose(rstd, kRowUlps);
    if (p_.has_branch && p_.rate > 0) ExpectSame(mask_);
  }

  // y alone, over x.
  void ExpectForwardInPlaceIsTheCpus(bool over_rows) {
    RunForward([&](Side side) {
      ResidualNormArgs a = ArgsOf(side, over_rows);
      a.y_RD = x_.at(side);
      return a;
    });
    if (p_.rows > 0) ExpectClose(x_, kRowUlps);
  }

  // `in_place`: dx is dy; else it is added to. `dy_is_operand`: then what is in place is
  // dbranch.
  void ExpectBackwardIsTheCpus(bool over_rows, bool in_place, bool dy_is_operand = false) {
    TwinMatrix& dy_operand = twin_.RandomMatrix(p_.element, p_.rows, p_.width, 5);
    TwinArray<float>& dy = dy_is_operand ? FloatsOf(dy_operand) : twin_.RandomFloats(n_, 5);
    TwinArray<float>& dpast = twin_.RandomFloats(n_, 6);
    TwinArray<float>& xhat = twin_.RandomFloats(n_, 7);
    std::vector<float> deviations(over_rows ? p_.width : p_.rows);
    for (size_t i = 0; i < deviations.size(); ++i) deviations[i] = 0.5f + 0.1f * (i % 7);
    TwinArray<float>& rstd = twin_.Floats(deviations);
    TwinArray<float>& dx = twin_.RandomFloats(n_, 8);
    const bool branch_in_place = in_place && dy_is_operand;
    const bool residual_in_place = in_place && !dy_is_operand;
    TwinMatrix& d_branch =
        branch_in_place ? dy_operand : twin_.NewMatrix(p_.element, p_.rows, p_.width);
    TwinArray<float>& d_gain = twin_.RandomFloats(p_.width, 9);
    TwinArray<float>& d_bias = twin_.RandomFloats(p_.width, 10);
    const auto args = [&](Side side) {
      const native::Matrix numbers = {dy.at(side), Element::kFloat32, p_.rows, p_.width, p_.width};
      return ResidualNormGradArgs{
          .rows = p_.rows,
          .dy_RD = side == kGpu && dy_is_operand ? dy_operand.at(side) : numbers,
          .state = {xhat.at(side), rstd.at(side)},
          .alpha = 1.25f,
          .dropout_rate = p_.rate,
          .mask = mask_.at(side),
          .centred = p_.centred,
          .over_rows = over_rows,
          .gain_D = gain_.at(side),
          .dpast_RD = in_place ? nullptr : dpast.at(side),
          .dx_RD = residual_in_place ? dy.at(side) : dx.at(side),
          .accumulate_dx = !residual_in_place,
          .dbranch_RD = d_branch.at(side),
          .dgain_D = d_gain.at(side),
          .dbias_D = p_.has_bias ? d_bias.at(side) : nullptr};
    };
    twin_.Run([&] { native::ResidualNormBackward(TheCpu(), args(kCpu)); },
              [&](GpuStream& gpu) { ResidualNormBackward(gpu, args(kGpu)); });
    EXPECT_EQ(twin_.launches(), p_.rows == 0 ? 0 : over_rows ? 1 : 2);
    if (p_.rows == 0) return;
    ExpectClose(residual_in_place ? dy : dx, kRowUlps);
    if (over_rows && p_.rate > 0 && p_.element != Element::kFloat32) {
      ExpectRoundedTwice(d_branch);
    } else {
      ExpectClose(d_branch, kRowUlps);
    }
    const double row_ulps = kRowUlps + static_cast<double>(p_.rows);
    ExpectClose(d_gain, row_ulps);
    ExpectClose(d_bias, row_ulps);
  }

 private:
  ResidualNormArgs ArgsOf(Side side, bool over_rows) {
    ResidualNormArgs a = {.rows = p_.rows,
                          .alpha = 3.4157f,
                          .dropout = key_,
                          .ids = ids_.at(side),
                          .centred = p_.centred,
                          .over_rows = over_rows,
                          .gain_D = gain_.at(side),
                          .bias_D = p_.has_bias ? bias_.at(side) : nullptr,
                          .mask = mask_.at(side)};
    if (p_.has_x) a.x_RD = {x_.at(side), Element::kFloat32, p_.rows, p_.width, p_.width};
    if (p_.has_branch) a.branch_RD = branch_.at(side);
    return a;
  }

  template <typename Args>
  void RunForward(const Args& args) {
    twin_.Run([&] { native::ResidualNormForward(TheCpu(), args(kCpu)); },
              [&](GpuStream& gpu) { ResidualNormForward(gpu, args(kGpu)); });
  }

  TwinArray<float>& FloatsOf(TwinMatrix& matrix) {
    const std::vector<double> values = matrix.Cpu();
    return twin_.Floats({values.begin(), values.end()});
  }

  // The CPU's kernel rounds before and after it masks: two units in the last place.
  static void ExpectRoundedTwice(const TwinMatrix& matrix) {
    const std::vector<double> gpu = matrix.Gpu(), cpu = matrix.Cpu();
    for (size_t i = 0; i < cpu.size(); ++i) {
      ASSERT_NEAR(gpu[i], cpu[i], std::abs(cpu[i]) * 0x1.0p-6) << i;
    }
  }

  const NormCase p_;
  Twin twin_;
  const int64_t n_;
  TwinIds ids_;
  const DropoutSite key_;
  TwinArray<float>& x_;
  TwinMatrix& branch_;
  TwinArray<float>& gain_;
  TwinArray<float>& bias_;
  TwinArray<uint8_t>& mask_;
};

constexpr Element kF32 = Element::kFloat32, kB16 = Element::kBfloat16, kF16 = Element::kFloat16;

class GpuResidualNorm : public ::testing::TestWithParam<NormCase> {};

TEST_P(GpuResidualNorm, ForwardIsTheCpus) { NormTwin(GetParam()).ExpectForwardIsTheCpus(false); }

TEST_P(GpuResidualNorm, ForwardInPlaceIsTheCpus) {
  if (GetParam().has_x) NormTwin(GetParam()).ExpectForwardInPlaceIsTheCpus(false);
}

TEST_P(GpuResidualNorm, BackwardIsTheCpus) {
  NormTwin(GetParam()).ExpectBackwardIsTheCpus(false, /*in_place=*/false);
  NormTwin(GetParam()).ExpectBackwardIsTheCpus(false, /*in_place=*/true);
  NormTwin(GetParam()).ExpectBackwardIsTheCpus(false, /*in_place=*/false, /*dy_is_operand=*/true);
  NormTwin(GetParam()).ExpectBackwardIsTheCpus(false, /*in_place=*/true, /*dy_is_operand=*/true);
}

// Every number of chunks of a thread, threads of a row and rows of a block; each optional argument.
INSTANTIATE_TEST_SUITE_P(Shapes, GpuResidualNorm,
                         ::testing::ValuesIn(Some<NormCase>(
                             {{0, 64},
                              {1, 1},
                              {129, 1, kB16, 0.3},
                              {3, 7, kF32, 0.3},
                              {5, 16, kF16, 0.1},
                              {37, 64, kB16, 0.1},
                              {20, 130, kF32, 0.1},
                              {18, 130, kB16, 0.1, {.margin = 6}},
                              {17, 256, kF16, 0.1, {.offset = 1}},
                              {33, 512, kB16, 0.1, {.margin = 8}},
                              {3, 1024, kF32, 0.0, {.offset = 1}},
                              {17, 1024, kB16, 0.1},
                              {2, 2048, kF32, 0.5},
                              {2, 2056, kB16, 0.1},
                              {1, 4100, kF32, 0.1},
                              {1, 8200, kF16, 0.1},
                              {1, 16384, kF32, 0.1},
                              {4, 96, kB16, 0.1, {}, /*centred=*/false},
                              {4, 96, kF32, 0.1, {}, true, /*has_x=*/false},
                              {4, 96, kF32, 0.0, {}, true, true, /*has_branch=*/false},
                              {4, 96, kF16, 0.1, {}, false, true, true, /*has_bias=*/false}},
                             5)),
                         [](const auto& info) { return "Case" + std::to_string(info.index); });

TEST(GpuNormOutput, MakesTheForwardResultAgainBitForBit) {
  for (const Element element : Some(kElements, 3)) {
    for (const Layout& layout : {Layout{}, Layout{.margin = 2}}) {
      const int64_t rows = 7, width = 70;
      Twin twin(layout);
      TwinArray<float>& x = twin.RandomFloats(rows * width, 1);
      TwinArray<float>& gain = twin.RandomFloats(width, 2);
      TwinArray<float>& bias = twin.RandomFloats(width, 3);
      TwinArray<float>& xhat = twin.NewFloats(rows * width);
      TwinMatrix& y = twin.NewMatrix(element, rows, width);
      TwinMatrix& again = twin.NewMatrix(element, rows, width);
      twin.Run([] {},
               [&](GpuStream& gpu) {
                 ResidualNormForward(gpu,
                                     {.rows = rows,
                                      .x_RD = {x.at(kGpu), Element::kFloat32, rows, width, width},
                                      .gain_D = gain.at(kGpu),
                                      .bias_D = bias.at(kGpu),
                                      .y_operand_RD = y.at(kGpu),
                                      .state = {.xhat_RD = xhat.at(kGpu)}});
                 NormOutput(gpu, {xhat.at(kGpu), Element::kFloat32, rows, width, width},
                            gain.at(kGpu), bias.at(kGpu), again.at(kGpu));
               });
      EXPECT_EQ(again.Gpu(), y.Gpu());
      EXPECT_EQ(twin.launches(), 2);
    }
  }
}

TEST(GpuResidualSum, WithoutAGainTheSumAloneIsWrittenAlsoInPlace) {
  for (const Element element : Some(kElements, 3)) {
    for (const bool in_place : {false, true}) {
      const int64_t rows = 9, width = 130;
      Twin twin;
      TwinIds ids(twin, rows);
      TwinArray<float>& x = twin.RandomFloats(rows * width, 1);
      TwinMatrix& branch = twin.RandomMatrix(element, rows, width, 2);
      TwinArray<float>& sum = twin.NewFloats(rows * width);
      TwinArray<uint8_t>& mask = twin.RandomBytes(rows * MaskBytes(width));
      const auto args = [&](Side side) {
        return ResidualNormArgs{.rows = rows,
                                .x_RD = {x.at(side), Element::kFloat32, rows, width, width},
                                .branch_RD = branch.at(side),
                                .alpha = 0.5f,
                                .dropout = {.seed = 3, .rate = 0.2},
                                .ids = ids.at(side),
                                .sum_RD = in_place ? x.at(side) : sum.at(side),
                                .mask = mask.at(side)};
      };
      twin.Run([&] { native::ResidualNormForward(TheCpu(), args(kCpu)); },
               [&](GpuStream& gpu) { ResidualNormForward(gpu, args(kGpu)); });
      ExpectSame(in_place ? x : sum);
      ExpectSame(mask);
      EXPECT_EQ(twin.launches(), 1);
    }
  }
}

class GpuBatchNorm : public ::testing::TestWithParam<NormCase> {};

TEST_P(GpuBatchNorm, ForwardIsTheCpus) { NormTwin(GetParam()).ExpectForwardIsTheCpus(true); }

TEST_P(GpuBatchNorm, ForwardInPlaceWithoutStatesIsTheCpus) {
  NormTwin(GetParam()).ExpectForwardInPlaceIsTheCpus(true);
}

TEST_P(GpuBatchNorm, BackwardIsTheCpus) {
  NormTwin(GetParam()).ExpectBackwardIsTheCpus(true, /*in_place=*/false);
  NormTwin(GetParam()).ExpectBackwardIsTheCpus(true, /*in_place=*/true);
}

INSTANTIATE_TEST_SUITE_P(Shapes, GpuBatchNorm,
                         ::testing::ValuesIn(Some<NormCase>({{0, 8},
                                                             {2, 3},
                                                             {7, 5, kF32, 0.3},
                                                             {9, 70, kB16, 0.1, {.margin = 1}},
                                                             {40, 6, kB16},
                                                             {33, 130, kF16, 0.1}},
                                                            5)),
                         [](const auto& info) { return "Case" + std::to_string(info.index); });

}  // namespace
}  // namespace deepnet::cuda::testing
