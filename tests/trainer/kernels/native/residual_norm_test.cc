#include "trainer/kernels/native/residual_norm.h"

#include <gtest/gtest.h>

#include "tests/trainer/kernels/native/kernel_testing.h"
#include "tests/trainer/kernels/native/norm_rig.h"

namespace deepnet::native {
namespace {

using testing::Doubles;
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
                .rounding = 1e-5,
                .forward = [](ThreadPool& pool, const KernelTable& table,
                              const ResidualNormForwardArgs& args,
                              Scratch&) { ResidualNormForward(pool, table, args); },
                .backward = ResidualNormBackward}};
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
