// The reference operations on every device, in float64: forward against the formula, backward
// against autograd, dropout against the definition of one decision. Rows that are not real stay as
// they were. Attention and the loss: aten_attention_test.cc.
#include <cmath>

#include "tests/trainer/kernels/aten_testing.h"

namespace deepnet {
namespace {

using testing::AtenOpsTest;

TEST_P(AtenOpsTest, LinearAndItsBackwardEqualAutograd) {
  const at::Tensor pre = Leaf({n_, 3}, 1), w = Leaf({4, 3}, 2), bias = Leaf({4}, 3);
  const at::Tensor x = at::relu(pre);
  const at::Tensor y = at::matmul(x, w.t()) + bias;
  const at::Tensor dy = Numbers({n_, 4}, 4);
  y.backward(dy);

  const auto weight = ops_->MakeWeight(w.detach().clone(), /*backward=*/true);
  ops_->Refresh(*weight);
  const at::Tensor got = Out(4), dx = Out(3);
  ops_->Linear(n_, Padded(x), *weight, bias.detach(), /*relu=*/false, got);
  ExpectRows(got, y);
  ops_->Linear(n_, Padded(x), *weight, at::Tensor(), /*relu=*/true, got);
  ExpectRows(got, at::relu(at::matmul(x, w.t())));

  ops_->LinearBackwardInput(n_, Padded(dy), *weight, Padded(x), /*accumulate=*/false, dx);
  ExpectRows(dx, pre.grad());
  ops_->LinearBackwardInput(n_, Padded(dy), *weight, at::Tensor(), /*accumulate=*/true, dx);
  ExpectRows(dx, pre.grad() + at::matmul(dy, w));

  const at::Tensor dw = at::ones_like(w), dbias = at::ones_like(bias);
  ops_->LinearBackwardWeight(n_, Padded(dy), Padded(x), dw, dbias);
  ExpectNear(dw, w.grad() + 1);
  ExpectNear(dbias, bias.grad() + 1);
}

TEST_P(AtenOpsTest, AWeightIsReadAnewWhenRefreshed) {
  const at::Tensor master = Numbers({4, 3}, 2).to(at::kFloat);
  const auto ops = MakeAtenOps(device(), at::kBFloat16, at::kFloat);  // a copy in another type
  const auto weight = ops->MakeWeight(master, /*backward=*/true);
  ops->Refresh(*weight);
  master.zero_();
  ops->Refresh(*weight);
  const at::Tensor x = at::ones({1, 3}, ops->Operand()), y = at::ones({1, 4}, ops->Stream());
  ops->Linear(1, x, *weight, at::Tensor(), false, y);
  EXPECT_EQ(y.abs().max().item<float>(), 0.0f);
}

TEST_P(AtenOpsTest, ResidualNormAndItsBackwardEqualAutograd) {
  constexpr int64_t kWidth = 11;  // no multiple of 8: the mask's last byte is not full
  const at::Tensor x = Leaf({n_, kWidth}, 1), branch = Leaf({n_, kWidth}, 2);
  const at::Tensor gain = Leaf({kWidth}, 3), bias = Leaf({kWidth}, 4);
  const at::Tensor sum = 1.7 * x + branch * Factors(Site(), kWidth);
  const at::Tensor y = at::layer_norm(sum, {kWidth}, gain, bias, 1e-3);
  const at::Tensor dy = Numbers({n_, kWidth}, 5);
  y.backward(dy);

  NormState state{.xhat_RD = Out(kWidth), .rstd = Out(1).squeeze(1)};
  const at::Tensor got = Out(kWidth), again = Out(kWidth), mask = Mask(kWidth);
  ops_->ResidualNorm({.rows = n_,
                      .x_RD = Padded(x),
                      .branch_RD = Padded(branch),
                      .alpha = 1.7,
                      .dropout = Site(),
                      .ids = &ids_,
                      .gain_D = gain.detach(),
                      .bias_D = bias.detach(),
                      .epsilon = 1e-3,
                      .y_RD = got,
                      .y_operand_RD = at::Tensor(),
                      .state = &state,
                      .mask = mask});
  ExpectRows(got, y);
  ops_->NormOutput(n_, state, gain.detach(), bias.detach(), again);
  EXPECT_TRUE(at::equal(got, again));

  const at::Tensor dx = Padded(at::ones_like(x)), dbranch = Out(kWidth);
  const at::Tensor dgain = at::ones_like(gain), dbias = at::ones_like(bias);
  ops_->ResidualNormBackward({.rows = n_,
                              .dy_RD = Padded(dy),
                              .state = &state,
                              .alpha = 1.7,
                              .dropout_rate = Site().rate,
                              .mask = mask,
                              .gain_D = gain.detach(),
                              .dx_RD = dx,
                              .accumulate_dx = true,
                              .dbranch_RD = dbranch,
                              .dgain_D = dgain,
                              .dbias_D = dbias});
  ExpectRows(dx, x.grad() + 1);
  ExpectRows(dbranch, branch.grad());
  ExpectNear(dgain, gain.grad() + 1);
  ExpectNear(dbias, bias.grad() + 1);
}

TEST_P(AtenOpsTest, BranchesAndActivationsAreDroppedByTheDefinition) {
  const at::Tensor x = Numbers({n_, 13}, 1), branch = Numbers({n_, 13}, 2);
  const at::Tensor factors = Factors(Site(), 13), mask = Mask(13);
  const at::Tensor sum = Padded(x);
  ops_->AddBranch(n_, sum, Padded(branch), Site(), &ids_, mask);
  ExpectRows(sum, x + branch * factors);
  const at::Tensor dbranch = Out(13);
  ops_->AddBranchBackward(n_, Padded(x), Site().rate, mask, dbranch);
  ExpectRows(dbranch, x * factors);

  const at::Tensor dropped = Padded(x), gradient = Padded(branch);
  ops_->Dropout(n_, Site(), ids_, dropped, mask);
  ExpectRows(dropped, x * factors);
  ops_->DropoutBackward(n_, Site().rate, mask, gradient);
  ExpectRows(gradient, branch * factors);
}

TEST_P(AtenOpsTest, GeluAndItsBackwardEqualAutograd) {
  const at::Tensor pre = Leaf({n_, 4}, 1);
  const at::Tensor h = 0.5 * pre * (1 + at::erf(pre / std::sqrt(2.0)));
  const at::Tensor dh = Numbers({n_, 4}, 2);
  h.backward(dh);
  const at::Tensor got = Out(4), dpre = Out(4);
  ops_->Gelu(n_, Padded(pre), got);
  ExpectRows(got, h);
  ops_->GeluBackward(n_, Padded(pre), Padded(dh), dpre);
  ExpectRows(dpre, pre.grad());
}

TEST_P(AtenOpsTest, EmbedAndItsBackwardEqualAutograd) {
  const at::Tensor table = Leaf({9, 6}, 1), positions = Leaf({4, 6}, 2);
  const at::Tensor factors = Factors(Site(), 6), mask = Mask(6);
  std::vector<at::Tensor> rows;
  for (int64_t r = 0; r < n_; ++r) {
    rows.push_back(table[rows_.tokens[r]] * 2.5 +
                   positions[static_cast<int64_t>(rows_.positions[r])]);
  }
  const at::Tensor x = at::stack(rows) * factors;
  const at::Tensor dx = Numbers({n_, 6}, 3);
  x.backward(dx);

  const at::Tensor got = Out(6);
  ops_->Embed({.rows = &ids_,
               .table_VD = table.detach(),
               .positions_PD = positions.detach(),
               .scale = 2.5,
               .dropout = Site(),
               .x_RD = got,
               .x_operand_RD = at::Tensor(),
               .mask = mask});
  ExpectRows(got, x);
  const at::Tensor dtable = at::ones_like(table), dpositions = at::ones_like(positions);
  ops_->EmbedBackward({.rows = &ids_,
                       .dx_RD = Padded(dx),
                       .scale = 2.5,
                       .dropout_rate = Site().rate,
                       .mask = mask,
                       .dtable_VD = dtable,
                       .dpositions_PD = dpositions});
  ExpectNear(dtable, table.grad() + 1);
  ExpectNear(dpositions, positions.grad() + 1);
}

// Both places of epsilon, weight decay and clipping, two steps, element by element.
TEST_P(AtenOpsTest, AdamFollowsItsFormula) {
  for (const bool fairseq : {true, false}) {
    const at::Tensor w = Numbers({5}, 1), g = Numbers({5}, 2);
    const at::Tensor m = at::zeros_like(w), v = at::zeros_like(w);
    std::vector<double> expected;
    for (int i = 0; i < 5; ++i) {
      double weight = w[i].item<double>(), moment1 = 0, moment2 = 0;
      const double gradient = 0.5 * g[i].item<double>();
      for (int step = 1; step <= 2; ++step) {
        weight -= 0.1 * 0.01 * weight;
        moment1 = 0.9 * moment1 + 0.1 * gradient;
        moment2 = 0.8 * moment2 + 0.2 * gradient * gradient;
        const double c1 = 1 - std::pow(0.9, step), root2 = std::sqrt(1 - std::pow(0.8, step));
        const double root = std::sqrt(moment2);
        weight -= fairseq ? 0.1 * root2 / c1 * moment1 / (root + 1e-3)
                          : 0.1 / c1 * moment1 / (root / root2 + 1e-3);
      }
      expected.push_back(weight);
    }
    for (int step = 1; step <= 2; ++step) {
      ops_->Adam({.weights = w,
                  .gradient = g,
                  .moment1 = m,
                  .moment2 = v,
                  .rate = 0.1,
                  .beta1 = 0.9,
                  .beta2 = 0.8,
                  .epsilon = 1e-3,
                  .weight_decay = 0.01,
                  .gradient_scale = 0.5,
                  .step = step,
                  .fairseq_epsilon = fairseq});
    }
    for (int i = 0; i < 5; ++i) EXPECT_NEAR(w[i].item<double>(), expected[i], testing::kExact) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Reference, AtenOpsTest, ::testing::ValuesIn(testing::Devices()),
                         testing::DeviceName);

}  // namespace
}  // namespace deepnet
