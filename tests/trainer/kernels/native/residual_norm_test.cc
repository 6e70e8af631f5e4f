#include "trainer/kernels/native/residual_norm.h"

#include <gtest/gtest.h>

#include "tests/trainer/kernels/native/kernel_testing.h"
#include "trainer/kernels/native/scratch.h"

namespace deepnet::native {
namespace {

using testing::Append;
using testing::Doubles;
using testing::ForEachIsaAndThreads;
using testing::Ids;
using testing::Operand;
using testing::RandomFloats;
using testing::RelativeError;
using testing::Tolerance;

constexpr float kAlpha = 3.4157f;  // of 100 + 100 layers
constexpr double kEpsilon = 1e-5;

// The definition, in double precision.
struct Oracle {
  int64_t rows, width;
  double alpha;
  std::vector<double> x, branch, keep, gain, bias;  // keep: 0 or 1 / (1 - rate) per element
  std::vector<double> sum, y;

  void Run() {
    sum.assign(rows * width, 0.0);
    y.assign(rows * width, 0.0);
    for (int64_t r = 0; r < rows; ++r) {
      double mean = 0.0, variance = 0.0;
      for (int64_t c = 0; c < width; ++c) {
        const int64_t i = r * width + c;
        sum[i] = alpha * x[i] + (branch.empty() ? 0.0 : branch[i] * keep[i]);
        mean += sum[i] / static_cast<double>(width);
      }
      for (int64_t c = 0; c < width; ++c) {
        const double deviation = sum[r * width + c] - mean;
        variance += deviation * deviation / static_cast<double>(width);
      }
      for (int64_t c = 0; c < width; ++c) {
        const int64_t i = r * width + c;
        y[i] = (sum[i] - mean) / std::sqrt(variance + kEpsilon) * gain[c] + bias[c];
      }
    }
  }
};

struct Case {
  int64_t rows;
  int64_t width;
  Element element;
  double rate;
  bool has_branch = true;
};

class ResidualNorm : public ::testing::TestWithParam<Case> {
 protected:
  ResidualNorm()
      : rows_(GetParam().rows),
        width_(GetParam().width),
        ids_(rows_),
        x_(RandomFloats(rows_ * width_, 1)),
        gain_(RandomFloats(width_, 2)),
        bias_(RandomFloats(width_, 3)),
        branch_(Operand::Of(GetParam().element, rows_, width_, RandomFloats(rows_ * width_, 4), 5)),
        key_{.seed = 9, .step = 4, .stack = 1, .layer = 2, .site = 3, .rate = GetParam().rate} {
    oracle_ = {rows_, width_, kAlpha, Doubles(x_), {}, {}, Doubles(gain_), Doubles(bias_), {}, {}};
    if (!GetParam().has_branch) return;
    oracle_.branch = branch_.Values();
    for (int64_t i = 0; i < rows_ * width_; ++i) {
      const int64_t r = i / width_;
      const bool keep =
          key_.rate == 0.0 || KeepElement(key_, ids_.pair[r], ids_.position[r], i % width_);
      oracle_.keep.push_back(keep ? 1.0 / (1.0 - key_.rate) : 0.0);
    }
  }

  // What one forward pass leaves.
  struct Kept {
    std::vector<float> sum, y, xhat, rstd;
    std::vector<uint8_t> mask;
    Operand y_operand;
  };

  Kept Forward(ThreadPool& pool, const KernelTable& table) {
    const int64_t n = rows_ * width_;
    Kept kept = {std::vector<float>(n),
                 std::vector<float>(n),
                 std::vector<float>(n),
                 std::vector<float>(rows_),
                 std::vector<uint8_t>(rows_ * MaskBytes(width_)),
                 Operand(GetParam().element, rows_, width_, 2)};
    ResidualNormForwardArgs args = {.rows = rows_,
                                    .width = width_,
                                    .alpha = kAlpha,
                                    .x = x_.data(),
                                    .dropout = key_,
                                    .ids = {ids_.pair.data(), ids_.position.data()},
                                    .gain = gain_.data(),
                                    .bias = bias_.data(),
                                    .sum = kept.sum.data(),
                                    .y = kept.y.data(),
                                    .y_operand = kept.y_operand.view(),
                                    .xhat = kept.xhat.data(),
                                    .rstd = kept.rstd.data(),
                                    .mask = kept.mask.data()};
    if (GetParam().has_branch) args.branch = branch_.view();
    ResidualNormForward(pool, table, args);
    return kept;
  }

  int64_t rows_, width_;
  Ids ids_;
  std::vector<float> x_, gain_, bias_;
  Operand branch_;
  DropoutKey key_;
  Oracle oracle_;
};

TEST_P(ResidualNorm, ForwardIsTheDefinition) {
  oracle_.Run();
  ForEachIsaAndThreads([&](ThreadPool& pool, const KernelTable& table) {
    const Kept kept = Forward(pool, table);
    EXPECT_LT(RelativeError(Doubles(kept.sum), oracle_.sum), 1e-6);
    EXPECT_LT(RelativeError(Doubles(kept.y), oracle_.y), 1e-5);
    EXPECT_LT(RelativeError(kept.y_operand.Values(), oracle_.y), Tolerance(GetParam().element));
    EXPECT_TRUE(kept.y_operand.MarginIsUntouched());
    std::vector<double> all = Doubles(kept.y);
    Append(all, Doubles(kept.sum));
    Append(all, Doubles(kept.rstd));
    return all;
  });
}

TEST_P(ResidualNorm, BackwardIsTheSlopeOfTheForward) {
  const std::vector<float> dy = RandomFloats(rows_ * width_, 5);
  const std::vector<float> dsum = RandomFloats(rows_ * width_, 6);
  const std::vector<float> dpast = RandomFloats(rows_ * width_, 7);
  const auto loss = [&] {
    oracle_.Run();
    double total = 0.0;
    for (size_t i = 0; i < dy.size(); ++i) {
      total += oracle_.y[i] * dy[i] + oracle_.sum[i] * dsum[i];
      if (GetParam().has_branch) total += oracle_.branch[i] * oracle_.keep[i] * dpast[i];
    }
    return total;
  };
  const std::vector<double> dx = testing::FiniteDifferences(oracle_.x, loss);
  const std::vector<double> d_gain = testing::FiniteDifferences(oracle_.gain, loss);
  const std::vector<double> d_bias = testing::FiniteDifferences(oracle_.bias, loss);
  std::vector<double> d_branch(rows_ * width_, 0.0);
  if (GetParam().has_branch) d_branch = testing::FiniteDifferences(oracle_.branch, loss);

  ForEachIsaAndThreads([&](ThreadPool& pool, const KernelTable& table) {
    const Kept kept = Forward(pool, table);
    std::vector<float> got_dx(rows_ * width_, 1.0f), got_gain(width_, 2.0f), got_bias(width_, 3.0f);
    Operand got_branch(GetParam().element, rows_, width_, 1);
    Scratch scratch;
    ResidualNormBackward(pool, table,
                         {.rows = rows_,
                          .width = width_,
                          .alpha = kAlpha,
                          .rate = GetParam().has_branch ? key_.rate : 0.0,
                          .dy = dy.data(),
                          .dsum = dsum.data(),
                          .dpast = dpast.data(),
                          .xhat = kept.xhat.data(),
                          .rstd = kept.rstd.data(),
                          .gain = gain_.data(),
                          .mask = kept.mask.data(),
                          .d_residual = got_dx.data(),
                          .accumulate_residual = true,
                          .d_branch = GetParam().has_branch ? got_branch.view() : Matrix{},
                          .d_gain = got_gain.data(),
                          .d_bias = got_bias.data()},
                         scratch);
    for (float& v : got_dx) v -= 1.0f;
    for (float& v : got_gain) v -= 2.0f;
    for (float& v : got_bias) v -= 3.0f;
    EXPECT_LT(RelativeError(Doubles(got_dx), dx), 1e-5);
    EXPECT_LT(RelativeError(Doubles(got_gain), d_gain), 1e-5);
    EXPECT_LT(RelativeError(Doubles(got_bias), d_bias), 1e-5);
    std::vector<double> all = Doubles(got_dx);
    if (GetParam().has_branch) {
      EXPECT_LT(RelativeError(got_branch.Values(), d_branch), Tolerance(GetParam().element));
      EXPECT_TRUE(got_branch.MarginIsUntouched());
      Append(all, got_branch.Values());
    }
    Append(all, Doubles(got_gain));
    Append(all, Doubles(got_bias));
    return all;
  });
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, ResidualNorm,
    ::testing::Values(Case{1, 1, Element::kFloat32, 0.0}, Case{3, 7, Element::kFloat32, 0.3},
                      Case{5, 16, Element::kBfloat16, 0.1}, Case{4, 37, Element::kFloat32, 0.0},
                      Case{2, 64, Element::kBfloat16, 0.1}, Case{33, 5, Element::kFloat32, 0.1},
                      Case{70, 3, Element::kBfloat16, 0.5},
                      Case{3, 33, Element::kFloat32, 0.0, false},
                      Case{3, 130, Element::kFloat32, 0.1}));

TEST(ResidualNormMemory, InPlaceAndBareOutputsGiveTheSameNumbers) {
  const int64_t rows = 9, width = 50;
  const std::vector<float> gain(width, 1.5f), bias(width, 0.25f);
  ThreadPool pool(2);
  std::vector<float> separate(rows * width);
  std::vector<float> x = RandomFloats(rows * width, 8);
  ResidualNormForwardArgs args = {.rows = rows,
                                  .width = width,
                                  .x = x.data(),
                                  .gain = gain.data(),
                                  .bias = bias.data(),
                                  .y = separate.data()};
  ResidualNormForward(pool, Table(BestIsa()), args);
  args.y = x.data();
  ResidualNormForward(pool, Table(BestIsa()), args);
  EXPECT_EQ(x, separate);
}

TEST(NormOutput, MakesTheForwardResultAgainBitForBit) {
  const int64_t rows = 35, width = 53;
  const std::vector<float> x = RandomFloats(rows * width, 1);
  const std::vector<float> gain = RandomFloats(width, 2), bias = RandomFloats(width, 3);
  ForEachIsaAndThreads([&](ThreadPool& pool, const KernelTable& table) {
    Operand y(Element::kBfloat16, rows, width, 2), again = y;
    std::vector<float> xhat(rows * width);
    ResidualNormForward(pool, table,
                        {.rows = rows,
                         .width = width,
                         .x = x.data(),
                         .gain = gain.data(),
                         .bias = bias.data(),
                         .y_operand = y.view(),
                         .xhat = xhat.data()});
    NormOutput(pool, table, {xhat.data(), Element::kFloat32, rows, width, width}, gain.data(),
               bias.data(), again.view());
    EXPECT_EQ(again.Values(), y.Values());
    EXPECT_TRUE(again.MarginIsUntouched());
    return y.Values();
  });
}

TEST(ResidualNormWithoutGain, WritesTheSumAlone) {
  const int64_t rows = 33, width = 21;
  const std::vector<float> x = RandomFloats(rows * width, 1), b = RandomFloats(rows * width, 2);
  ForEachIsaAndThreads([&](ThreadPool& pool, const KernelTable& table) {
    std::vector<float> sum(rows * width);
    ResidualNormForward(pool, table,
                        {.rows = rows,
                         .width = width,
                         .alpha = 0.5f,
                         .x = x.data(),
                         .branch = {b.data(), Element::kFloat32, rows, width, width},
                         .sum = sum.data()});
    for (int64_t i = 0; i < rows * width; ++i) EXPECT_EQ(sum[i], 0.5f * x[i] + b[i]);
    return Doubles(sum);
  });
}

}  // namespace
}  // namespace deepnet::native
