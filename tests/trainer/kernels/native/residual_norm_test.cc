// ResidualNorm and BatchNorm, which differ in the direction of their statistics alone: a forward
// and a backward kernel against the definition in double precision.
#include "trainer/kernels/native/residual_norm.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "tests/trainer/kernels/native/dropout_testing.h"
#include "tests/trainer/kernels/native/kernel_testing.h"

namespace deepnet::native::testing {

inline constexpr double kNormEpsilon = 1e-5;

struct NormCase {
  int64_t rows;
  int64_t width;
  Element element;
  double rate;
  bool has_branch = true;
};

// The call of a kernel, and its distance from double precision.
struct NormKernels {
  bool over_rows = false;  // a mean and a variance for each column, over the rows
  bool gives_sum = true;
  float alpha = 1.0f;
  double sum_rounding = 0.0;  // relative errors, at most
  double rounding = 0.0;
};

// The definition, in double precision.
struct NormOracle {
  int64_t rows, width;
  double alpha;
  bool over_rows;
  std::vector<double> x, branch, keep, gain, bias;  // keep: 0 or 1 / (1 - rate) per element
  std::vector<double> sum, y;

  void Run() {
    sum.assign(rows * width, 0.0);
    y.assign(rows * width, 0.0);
    for (int64_t i = 0; i < rows * width; ++i) {
      sum[i] = alpha * x[i] + (branch.empty() ? 0.0 : branch[i] * keep[i]);
    }
    for (int64_t group = 0; group < (over_rows ? width : rows); ++group) Normalize(group);
  }

 private:
  // A row, or a column.
  void Normalize(int64_t group) {
    const int64_t count = over_rows ? rows : width;
    const auto at = [&](int64_t n) { return over_rows ? n * width + group : group * width + n; };
    double mean = 0.0, variance = 0.0;
    for (int64_t n = 0; n < count; ++n) mean += sum[at(n)] / static_cast<double>(count);
    for (int64_t n = 0; n < count; ++n) {
      const double deviation = sum[at(n)] - mean;
      variance += deviation * deviation / static_cast<double>(count);
    }
    for (int64_t n = 0; n < count; ++n) {
      const int64_t i = at(n), c = i % width;
      y[i] = (sum[i] - mean) / std::sqrt(variance + kNormEpsilon) * gain[c] + bias[c];
    }
  }
};

class NormRig {
 public:
  NormRig(const NormCase& shape, NormKernels kernels)
      : case_(shape),
        kernels_(std::move(kernels)),
        rows_(shape.rows),
        width_(shape.width),
        ids_(rows_),
        x_(RandomFloats(rows_ * width_, 1)),
        gain_(RandomFloats(width_, 2)),
        bias_(RandomFloats(width_, 3)),
        branch_(Operand::Of(shape.element, rows_, width_, RandomFloats(rows_ * width_, 4), 5)),
        key_{.seed = 9, .step = 4, .stack = 1, .layer = 2, .site = 3, .rate = shape.rate},
        oracle_{.rows = rows_,
                .width = width_,
                .alpha = kernels_.alpha,
                .over_rows = kernels_.over_rows,
                .x = Doubles(x_),
                .gain = Doubles(gain_),
                .bias = Doubles(bias_)} {
    if (!case_.has_branch) return;
    oracle_.branch = branch_.Values();
    for (int64_t i = 0; i < rows_ * width_; ++i) {
      const int64_t r = i / width_;
      const bool keep =
          key_.rate == 0.0 || KeepElement(key_, ids_.pair[r], ids_.position[r], i % width_);
      oracle_.keep.push_back(keep ? 1.0 / (1.0 - key_.rate) : 0.0);
    }
  }

  // With states for the backward pass, and without.
  void ExpectForwardIsTheDefinition() {
    oracle_.Run();
    ForEachIsaAndThreads([&](Cpu& cpu) {
      const Kept kept = Forward(cpu);
      EXPECT_LT(RelativeError(Doubles(kept.y), oracle_.y), kernels_.rounding);
      EXPECT_LT(RelativeError(kept.y_operand.Values(), oracle_.y), Tolerance(case_.element));
      EXPECT_TRUE(kept.y_operand.MarginIsUntouched());
      EXPECT_EQ(Forward(cpu, /*trains=*/false).y, kept.y);
      std::vector<double> all = Doubles(kept.y);
      if (kernels_.gives_sum) {
        EXPECT_LT(RelativeError(Doubles(kept.sum), oracle_.sum), kernels_.sum_rounding);
        Append(all, Doubles(kept.sum));
      }
      Append(all, Doubles(kept.rstd));
      return all;
    });
  }

  void ExpectBackwardIsTheSlopeOfTheForward() {
    const std::vector<double> dx = FiniteDifferences(oracle_.x, [&] { return Loss(); });
    const std::vector<double> d_gain = FiniteDifferences(oracle_.gain, [&] { return Loss(); });
    const std::vector<double> d_bias = FiniteDifferences(oracle_.bias, [&] { return Loss(); });
    std::vector<double> d_branch(rows_ * width_, 0.0);
    if (case_.has_branch) d_branch = FiniteDifferences(oracle_.branch, [&] { return Loss(); });

    ForEachIsaAndThreads([&](Cpu& cpu) {
      const Gradients got = Backward(cpu, Forward(cpu));
      EXPECT_LT(RelativeError(Doubles(got.dx), dx), kernels_.rounding);
      EXPECT_LT(RelativeError(Doubles(got.gain), d_gain), kernels_.rounding);
      EXPECT_LT(RelativeError(Doubles(got.bias), d_bias), kernels_.rounding);
      std::vector<double> all = Doubles(got.dx);
      if (case_.has_branch) {
        EXPECT_LT(RelativeError(got.branch.Values(), d_branch), Tolerance(case_.element));
        EXPECT_TRUE(got.branch.MarginIsUntouched());
        Append(all, got.branch.Values());
      }
      Append(all, Doubles(got.gain));
      Append(all, Doubles(got.bias));
      return all;
    });
  }

 private:
  // Outputs of one forward pass.
  struct Kept {
    std::vector<float> sum, y, xhat, rstd;
    std::vector<uint8_t> mask;
    Operand y_operand;
  };

  struct Gradients {
    std::vector<float> dx, gain, bias;
    Operand branch;
  };

  // `trains`: with states.
  Kept Forward(Cpu& cpu, bool trains = true) {
    const int64_t n = rows_ * width_;
    Kept kept = {std::vector<float>(n),
                 std::vector<float>(n),
                 std::vector<float>(n),
                 std::vector<float>(kernels_.over_rows ? width_ : rows_),
                 std::vector<uint8_t>(rows_ * MaskBytes(width_)),
                 Operand(case_.element, rows_, width_, 2)};
    ResidualNormArgs args = {.rows = rows_,
                             .x_RD = Floats(x_, width_),
                             .alpha = kernels_.alpha,
                             .dropout = key_,
                             .ids = ids_.rows(),
                             .over_rows = kernels_.over_rows,
                             .gain_D = gain_.data(),
                             .bias_D = bias_.data(),
                             .sum_RD = kernels_.gives_sum ? kept.sum.data() : nullptr,
                             .y_RD = kept.y.data(),
                             .y_operand_RD = kept.y_operand.view(),
                             .mask = kept.mask.data()};
    if (trains) args.state = {kept.xhat.data(), kept.rstd.data()};
    if (case_.has_branch) args.branch_RD = branch_.view();
    ResidualNormForward(cpu, args);
    return kept;
  }

  // Added to 1, 2 and 3, which are taken off again.
  Gradients Backward(Cpu& cpu, Kept kept) {
    Gradients got = {std::vector<float>(rows_ * width_, 1.0f), std::vector<float>(width_, 2.0f),
                     std::vector<float>(width_, 3.0f), Operand(case_.element, rows_, width_, 1)};
    ResidualNormBackward(cpu, {.rows = rows_,
                               .dy_RD = Floats(dy_, width_),
                               .state = {kept.xhat.data(), kept.rstd.data()},
                               .alpha = kernels_.alpha,
                               .dropout_rate = case_.has_branch ? key_.rate : 0.0,
                               .mask = kept.mask.data(),
                               .over_rows = kernels_.over_rows,
                               .gain_D = gain_.data(),
                               .dpast_RD = dpast_.data(),
                               .dx_RD = got.dx.data(),
                               .accumulate_dx = true,
                               .dbranch_RD = case_.has_branch ? got.branch.view() : Matrix{},
                               .dgain_D = got.gain.data(),
                               .dbias_D = got.bias.data()});
    for (float& v : got.dx) v -= 1.0f;
    for (float& v : got.gain) v -= 2.0f;
    for (float& v : got.bias) v -= 3.0f;
    return got;
  }

  // The loss whose gradients of y and of the branch alone are dy and dpast.
  double Loss() {
    oracle_.Run();
    double total = 0.0;
    for (size_t i = 0; i < dy_.size(); ++i) {
      total += oracle_.y[i] * dy_[i];
      if (case_.has_branch) total += oracle_.branch[i] * oracle_.keep[i] * dpast_[i];
    }
    return total;
  }

  const NormCase case_;
  const NormKernels kernels_;
  const int64_t rows_, width_;
  const Ids ids_;
  const std::vector<float> x_, gain_, bias_;
  Operand branch_;
  const DropoutSite key_;
  NormOracle oracle_;
  const std::vector<float> dy_ = RandomFloats(rows_ * width_, 5);
  const std::vector<float> dpast_ = RandomFloats(rows_ * width_, 7);
};

}  // namespace deepnet::native::testing

namespace deepnet::native {
namespace {

using testing::Doubles;
using testing::Floats;
using testing::ForEachIsaAndThreads;
using testing::NormCase;
using testing::NormRig;
using testing::Operand;
using testing::RandomFloats;

class ResidualNorm : public ::testing::TestWithParam<NormCase> {
 protected:
  NormRig rig_{GetParam(),
               {.alpha = 3.4157f,  // of 100 + 100 layers
                .sum_rounding = 1e-6,
                .rounding = 1e-5}};
};

TEST_P(ResidualNorm, ForwardIsTheDefinition) { rig_.ExpectForwardIsTheDefinition(); }

TEST_P(ResidualNorm, BackwardIsTheSlopeOfTheForward) {
  rig_.ExpectBackwardIsTheSlopeOfTheForward();
}

INSTANTIATE_TEST_SUITE_P(Shapes, ResidualNorm,
                         ::testing::Values(NormCase{1, 1, Element::kFloat32, 0.0},
                                           NormCase{3, 7, Element::kFloat32, 0.3},
                                           NormCase{5, 16, Element::kBfloat16, 0.1},
                                           NormCase{4, 37, Element::kFloat32, 0.0},
                                           NormCase{2, 64, Element::kBfloat16, 0.1},
                                           NormCase{33, 5, Element::kFloat32, 0.1},
                                           NormCase{70, 3, Element::kBfloat16, 0.5},
                                           NormCase{3, 33, Element::kFloat32, 0.0, false},
                                           NormCase{3, 130, Element::kFloat32, 0.1}));

TEST(ResidualNormMemory, InPlaceAndBareOutputsGiveTheSameNumbers) {
  const int64_t rows = 9, width = 50;
  const std::vector<float> gain(width, 1.5f), bias(width, 0.25f);
  Cpu cpu(2);
  std::vector<float> separate(rows * width);
  std::vector<float> x = RandomFloats(rows * width, 8);
  ResidualNormArgs args = {.rows = rows,
                           .x_RD = Floats(x, width),
                           .gain_D = gain.data(),
                           .bias_D = bias.data(),
                           .y_RD = separate.data()};
  ResidualNormForward(cpu, args);
  args.y_RD = x.data();
  ResidualNormForward(cpu, args);
  EXPECT_EQ(x, separate);
}

TEST(NormOutput, MakesTheForwardResultAgainBitForBit) {
  const int64_t rows = 35, width = 53;
  const std::vector<float> x = RandomFloats(rows * width, 1);
  const std::vector<float> gain = RandomFloats(width, 2), bias = RandomFloats(width, 3);
  ForEachIsaAndThreads([&](Cpu& cpu) {
    Operand y(Element::kBfloat16, rows, width, 2), again = y;
    std::vector<float> xhat(rows * width);
    ResidualNormForward(cpu, {.rows = rows,
                              .x_RD = Floats(x, width),
                              .gain_D = gain.data(),
                              .bias_D = bias.data(),
                              .y_operand_RD = y.view(),
                              .state = {.xhat_RD = xhat.data()}});
    NormOutput(cpu, Floats(xhat, width), gain.data(), bias.data(), again.view());
    EXPECT_EQ(again.Values(), y.Values());
    EXPECT_TRUE(again.MarginIsUntouched());
    return y.Values();
  });
}

TEST(ResidualNormWithoutGain, WritesTheSumAlone) {
  const int64_t rows = 33, width = 21;
  const std::vector<float> x = RandomFloats(rows * width, 1), b = RandomFloats(rows * width, 2);
  ForEachIsaAndThreads([&](Cpu& cpu) {
    std::vector<float> sum(rows * width);
    ResidualNormForward(cpu, {.rows = rows,
                              .x_RD = Floats(x, width),
                              .branch_RD = Floats(b, width),
                              .alpha = 0.5f,
                              .sum_RD = sum.data()});
    for (int64_t i = 0; i < rows * width; ++i) EXPECT_EQ(sum[i], 0.5f * x[i] + b[i]);
    return Doubles(sum);
  });
}

class BatchNorm : public ::testing::TestWithParam<NormCase> {
 protected:
  NormRig rig_{GetParam(),
               {.over_rows = true,
                .gives_sum = false,
                .alpha = 1.5f,
                .rounding = 2e-5}};  // of sums over rows
};

TEST_P(BatchNorm, ForwardIsTheDefinitionWithAndWithoutStates) {
  rig_.ExpectForwardIsTheDefinition();
}

TEST_P(BatchNorm, BackwardIsTheSlopeOfTheForward) { rig_.ExpectBackwardIsTheSlopeOfTheForward(); }

// More columns than one block has, more rows than one block has, and few of both.
INSTANTIATE_TEST_SUITE_P(Shapes, BatchNorm,
                         ::testing::Values(NormCase{2, 3, Element::kFloat32, 0.0},
                                           NormCase{7, 5, Element::kFloat32, 0.3},
                                           NormCase{9, 70, Element::kBfloat16, 0.1},
                                           NormCase{40, 6, Element::kBfloat16, 0.0}));

}  // namespace
}  // namespace deepnet::native
