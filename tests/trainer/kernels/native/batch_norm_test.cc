#include "trainer/kernels/native/batch_norm.h"

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

constexpr float kAlpha = 1.5f;
constexpr double kEpsilon = 1e-5;
constexpr double kFloatRounding = 2e-5;  // of sums over rows, against double precision

struct Case {
  int64_t rows;
  int64_t width;
  Element element;
  double rate;
};

// The definition, in double precision, column by column.
struct Oracle {
  int64_t rows, width;
  std::vector<double> x, branch, keep, gain, bias;
  std::vector<double> y;

  void Run() {
    y.assign(static_cast<size_t>(rows * width), 0.0);
    const double count = static_cast<double>(rows);
    for (int64_t c = 0; c < width; ++c) {
      double mean = 0.0, variance = 0.0;
      const auto sum = [&](int64_t r) {
        const int64_t i = r * width + c;
        return kAlpha * x[i] + branch[i] * keep[i];
      };
      for (int64_t r = 0; r < rows; ++r) mean += sum(r) / count;
      for (int64_t r = 0; r < rows; ++r) variance += (sum(r) - mean) * (sum(r) - mean) / count;
      for (int64_t r = 0; r < rows; ++r) {
        y[r * width + c] = (sum(r) - mean) / std::sqrt(variance + kEpsilon) * gain[c] + bias[c];
      }
    }
  }
};

class BatchNorm : public ::testing::TestWithParam<Case> {
 protected:
  BatchNorm()
      : rows_(GetParam().rows),
        width_(GetParam().width),
        ids_(rows_),
        x_(RandomFloats(rows_ * width_, 1)),
        gain_(RandomFloats(width_, 2)),
        bias_(RandomFloats(width_, 3)),
        branch_(Operand::Of(GetParam().element, rows_, width_, RandomFloats(rows_ * width_, 4), 5)),
        key_{.seed = 9, .step = 4, .stack = 1, .layer = 2, .site = 3, .rate = GetParam().rate} {
    oracle_ = {rows_, width_,         Doubles(x_),    branch_.Values(),
               {},    Doubles(gain_), Doubles(bias_), {}};
    for (int64_t i = 0; i < rows_ * width_; ++i) {
      const int64_t r = i / width_;
      const bool keep =
          key_.rate == 0.0 || KeepElement(key_, ids_.pair[r], ids_.position[r], i % width_);
      oracle_.keep.push_back(keep ? 1.0 / (1.0 - key_.rate) : 0.0);
    }
  }

  struct Kept {
    std::vector<float> y, xhat, rstd;
    std::vector<uint8_t> mask;
    Operand y_operand;
  };

  // `trains`: with states.
  Kept Forward(ThreadPool& pool, const KernelTable& table, bool trains = true) {
    const int64_t n = rows_ * width_;
    Kept kept = {std::vector<float>(n), std::vector<float>(n), std::vector<float>(width_),
                 std::vector<uint8_t>(rows_ * MaskBytes(width_)),
                 Operand(GetParam().element, rows_, width_, 2)};
    Scratch scratch;
    BatchNormForward(pool, table,
                     {.rows = rows_,
                      .width = width_,
                      .alpha = kAlpha,
                      .x = x_.data(),
                      .branch = branch_.view(),
                      .dropout = key_,
                      .ids = {ids_.pair.data(), ids_.position.data()},
                      .gain = gain_.data(),
                      .bias = bias_.data(),
                      .y = kept.y.data(),
                      .y_operand = kept.y_operand.view(),
                      .xhat = trains ? kept.xhat.data() : nullptr,
                      .rstd = trains ? kept.rstd.data() : nullptr,
                      .mask = kept.mask.data()},
                     scratch);
    return kept;
  }

  int64_t rows_, width_;
  Ids ids_;
  std::vector<float> x_, gain_, bias_;
  Operand branch_;
  DropoutKey key_;
  Oracle oracle_;
};

TEST_P(BatchNorm, ForwardIsTheDefinitionWithAndWithoutStates) {
  oracle_.Run();
  ForEachIsaAndThreads([&](ThreadPool& pool, const KernelTable& table) {
    const Kept kept = Forward(pool, table);
    EXPECT_LT(RelativeError(Doubles(kept.y), oracle_.y), kFloatRounding);
    EXPECT_LT(RelativeError(kept.y_operand.Values(), oracle_.y), Tolerance(GetParam().element));
    EXPECT_TRUE(kept.y_operand.MarginIsUntouched());
    EXPECT_EQ(Forward(pool, table, /*trains=*/false).y, kept.y);
    std::vector<double> all = Doubles(kept.y);
    Append(all, Doubles(kept.rstd));
    return all;
  });
}

TEST_P(BatchNorm, BackwardIsTheSlopeOfTheForward) {
  const std::vector<float> dy = RandomFloats(rows_ * width_, 5);
  const std::vector<float> dpast = RandomFloats(rows_ * width_, 6);
  const auto loss = [&] {
    oracle_.Run();
    double total = 0.0;
    for (size_t i = 0; i < dy.size(); ++i) {
      total += oracle_.y[i] * dy[i] + oracle_.branch[i] * oracle_.keep[i] * dpast[i];
    }
    return total;
  };
  const std::vector<double> dx = testing::FiniteDifferences(oracle_.x, loss);
  const std::vector<double> d_gain = testing::FiniteDifferences(oracle_.gain, loss);
  const std::vector<double> d_bias = testing::FiniteDifferences(oracle_.bias, loss);
  const std::vector<double> d_branch = testing::FiniteDifferences(oracle_.branch, loss);

  ForEachIsaAndThreads([&](ThreadPool& pool, const KernelTable& table) {
    const Kept kept = Forward(pool, table);
    std::vector<float> got_dx(rows_ * width_, 1.0f), got_gain(width_, 2.0f), got_bias(width_, 3.0f);
    Operand got_branch(GetParam().element, rows_, width_, 1);
    Scratch scratch;
    BatchNormBackward(pool, table,
                      {.rows = rows_,
                       .width = width_,
                       .alpha = kAlpha,
                       .rate = key_.rate,
                       .dy = dy.data(),
                       .dpast = dpast.data(),
                       .xhat = kept.xhat.data(),
                       .rstd = kept.rstd.data(),
                       .gain = gain_.data(),
                       .mask = kept.mask.data(),
                       .d_residual = got_dx.data(),
                       .accumulate_residual = true,
                       .d_branch = got_branch.view(),
                       .d_gain = got_gain.data(),
                       .d_bias = got_bias.data()},
                      scratch);
    for (float& v : got_dx) v -= 1.0f;
    for (float& v : got_gain) v -= 2.0f;
    for (float& v : got_bias) v -= 3.0f;
    EXPECT_LT(RelativeError(Doubles(got_dx), dx), kFloatRounding);
    EXPECT_LT(RelativeError(Doubles(got_gain), d_gain), kFloatRounding);
    EXPECT_LT(RelativeError(Doubles(got_bias), d_bias), kFloatRounding);
    EXPECT_LT(RelativeError(got_branch.Values(), d_branch), Tolerance(GetParam().element));
    EXPECT_TRUE(got_branch.MarginIsUntouched());
    std::vector<double> all = Doubles(got_dx);
    Append(all, got_branch.Values());
    Append(all, Doubles(got_gain));
    Append(all, Doubles(got_bias));
    return all;
  });
}

// More columns than one block has, more rows than one block has, and few of both.
INSTANTIATE_TEST_SUITE_P(Shapes, BatchNorm,
                         ::testing::Values(Case{2, 3, Element::kFloat32, 0.0},
                                           Case{7, 5, Element::kFloat32, 0.3},
                                           Case{9, 70, Element::kBfloat16, 0.1},
                                           Case{40, 6, Element::kBfloat16, 0.0}));

}  // namespace
}  // namespace deepnet::native
