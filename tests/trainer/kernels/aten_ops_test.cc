// The reference operations, in float64: forward against the formula, backward
// against autograd, dropout against the definition of one decision. Rows that are not real stay as
// they were. Attention and the loss against one dense matrix over all rows.
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "tests/trainer/kernels/native/dropout_testing.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/kernels/native/attention.h"
#include "trainer/kernels/native/dropout.h"

namespace deepnet::testing {

constexpr double kExact = 1e-12;      // sums of a few products in float64
constexpr double kUntouched = 77.25;  // what padding holds before and after

// Two sentences, of 3 and 2 tokens, and one row of padding behind them.
struct TwoSentences {
  static constexpr int64_t kRows = 5, kCapacity = 6;
  std::vector<int32_t> tokens = {4, 7, 2, 4, 2};
  std::vector<uint32_t> positions = {0, 1, 2, 0, 1};
  std::vector<uint32_t> pairs = {8, 8, 8, 9, 9};
  std::vector<int32_t> offsets = {0, 3, 5};

  PackedRows Get() const {
    return {.count = kRows,
            .num_sentences = 2,
            .tokens = tokens.data(),
            .positions = positions.data(),
            .pairs = pairs.data(),
            .offsets = offsets.data()};
  }
};

class AtenOpsTest : public ::testing::Test {
 protected:
  AtenOpsTest() : ops_(MakeAtenOps(at::kDouble, at::kDouble)) {}

  // Numbers between -1 and 1 without a pattern; another `phase` gives others.
  at::Tensor Numbers(at::IntArrayRef shape, double phase) const {
    const int64_t count = c10::multiply_integers(shape);
    return at::sin(at::arange(count, at::kDouble) * 1.3 + phase).reshape(shape);
  }
  at::Tensor Leaf(at::IntArrayRef shape, double phase) const {
    return Numbers(shape, phase).set_requires_grad(true);
  }
  at::Tensor Out(int64_t columns) const {
    return at::full({TwoSentences::kCapacity, columns}, kUntouched, ops_->ResidualOptions());
  }
  // `real` with the row of padding that every operation has to leave alone.
  at::Tensor Padded(const at::Tensor& real) const {
    const at::Tensor whole = Out(real.size(1));
    whole.narrow(0, 0, real.size(0)).copy_(real.detach());
    return whole;
  }
  at::Tensor Mask(int64_t features) const {
    return at::zeros({TwoSentences::kCapacity, native::MaskBytes(features)}, at::kByte);
  }

  static DropoutSite Site() {
    return {.seed = 3, .step = 5, .stack = 1, .layer = 2, .site = kSiteFeedForward, .rate = 0.4};
  }
  // 1 / (1 - rate) or 0 for features first.. of each row, by the definition of one decision.
  at::Tensor Factors(const DropoutSite& site, int64_t features, int64_t first = 0) const {
    const at::Tensor factors = at::zeros({TwoSentences::kRows, features}, at::kDouble);
    for (int64_t r = 0; r < TwoSentences::kRows; ++r) {
      for (int64_t f = 0; f < features; ++f) {
        const bool keep = native::KeepElement(site, rows_.pairs[r], rows_.positions[r], first + f);
        factors[r][f].fill_(keep ? 1.0 / (1.0 - site.rate) : 0.0);
      }
    }
    return factors;
  }

  static void ExpectNear(const at::Tensor& got, const at::Tensor& expected) {
    ASSERT_EQ(got.sizes(), expected.sizes());
    EXPECT_LE((got.detach() - expected.detach()).abs().max().item<double>(), kExact);
  }
  // The real rows as expected, the padding as it was.
  static void ExpectRows(const at::Tensor& got, const at::Tensor& expected) {
    ExpectNear(got.narrow(0, 0, expected.size(0)), expected);
    const at::Tensor padding = got.narrow(0, expected.size(0), got.size(0) - expected.size(0));
    EXPECT_TRUE(padding.eq(kUntouched).all().item<bool>());
  }

  const std::unique_ptr<Ops> ops_;
  const TwoSentences rows_;
  const PackedRows ids_ = rows_.Get();
  const int64_t n_ = TwoSentences::kRows;
};

}  // namespace deepnet::testing

namespace deepnet {
namespace {

using testing::AtenOpsTest;

TEST_F(AtenOpsTest, LinearAndItsBackwardEqualAutograd) {
  const at::Tensor pre = Leaf({n_, 3}, 1), w = Leaf({4, 3}, 2), bias = Leaf({4}, 3);
  const at::Tensor x = at::relu(pre);
  const at::Tensor y = at::matmul(x, w.t()) + bias;
  const at::Tensor dy = Numbers({n_, 4}, 4);
  y.backward(dy);

  const auto weight = ops_->MakeWeight(w.detach().clone(), /*backward=*/true);
  ops_->Refresh(*weight);
  const at::Tensor got = Out(4), dx = Out(3);
  LinearArgs args{.rows = n_,
                  .x_RI = Padded(x),
                  .weight_OI = weight.get(),
                  .bias_O = bias.detach(),
                  .y_RO = got};
  ops_->Linear(args);
  ExpectRows(got, y);
  args.bias_O = at::Tensor();
  args.relu = true;
  ops_->Linear(args);
  ExpectRows(got, at::relu(at::matmul(x, w.t())));

  LinearInputGradArgs input{.rows = n_,
                            .dy_RO = Padded(dy),
                            .weight_OI = weight.get(),
                            .relu_output_RI = Padded(x),
                            .dx_RI = dx};
  ops_->LinearBackwardInput(input);
  ExpectRows(dx, pre.grad());
  input.relu_output_RI = at::Tensor();
  input.accumulate = true;
  ops_->LinearBackwardInput(input);
  ExpectRows(dx, pre.grad() + at::matmul(dy, w));

  const at::Tensor dw = at::ones_like(w), dbias = at::ones_like(bias);
  ops_->LinearBackwardWeight(n_, Padded(dy), Padded(x), dw, dbias);
  ExpectNear(dw, w.grad() + 1);
  ExpectNear(dbias, bias.grad() + 1);
}

TEST_F(AtenOpsTest, AWeightIsReadAnewWhenRefreshed) {
  const at::Tensor master = Numbers({4, 3}, 2).to(at::kFloat);
  const auto ops = MakeAtenOps(at::kBFloat16, at::kFloat);  // a copy in another type
  const auto weight = ops->MakeWeight(master, /*backward=*/true);
  ops->Refresh(*weight);
  master.zero_();
  ops->Refresh(*weight);
  const at::Tensor x = at::ones({1, 3}, ops->OperandOptions()),
                   y = at::ones({1, 4}, ops->ResidualOptions());
  ops->Linear({.rows = 1, .x_RI = x, .weight_OI = weight.get(), .y_RO = y});
  EXPECT_EQ(y.abs().max().item<float>(), 0.0f);
}

TEST_F(AtenOpsTest, ResidualNormAndItsBackwardEqualAutograd) {
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
                      .state = state,
                      .mask = mask});
  ExpectRows(got, y);
  ops_->NormOutput(n_, state, gain.detach(), bias.detach(), again);
  EXPECT_TRUE(at::equal(got, again));

  const at::Tensor dx = Padded(at::ones_like(x)), dbranch = Out(kWidth);
  const at::Tensor dgain = at::ones_like(gain), dbias = at::ones_like(bias);
  ops_->ResidualNormBackward({.rows = n_,
                              .dy_RD = Padded(dy),
                              .state = state,
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

TEST_F(AtenOpsTest, BranchesAndActivationsAreDroppedByTheDefinition) {
  const at::Tensor x = Numbers({n_, 13}, 1), branch = Numbers({n_, 13}, 2);
  const at::Tensor factors = Factors(Site(), 13), mask = Mask(13);
  const at::Tensor sum = Padded(x);
  ops_->ResidualNorm({.rows = n_,
                      .x_RD = sum,
                      .branch_RD = Padded(branch),
                      .dropout = Site(),
                      .ids = &ids_,
                      .sum_RD = sum,
                      .mask = mask});
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

TEST_F(AtenOpsTest, GeluAndItsBackwardEqualAutograd) {
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

TEST_F(AtenOpsTest, EmbedAndItsBackwardEqualAutograd) {
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
TEST_F(AtenOpsTest, AdamFollowsItsFormula) {
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
                  .rule = {.rate = 0.1,
                           .beta1 = 0.9,
                           .beta2 = 0.8,
                           .epsilon = 1e-3,
                           .weight_decay = 0.01,
                           .gradient_scale = 0.5,
                           .step = step,
                           .fairseq_epsilon = fairseq}});
    }
    for (int i = 0; i < 5; ++i) EXPECT_NEAR(w[i].item<double>(), expected[i], testing::kExact) << i;
  }
}

constexpr int kHeads = 2;
constexpr int64_t kWidth = 6;

class AtenAttentionTest : public AtenOpsTest {
 protected:
  static DropoutSite Weights() {
    DropoutSite site = Site();
    site.site = kSiteSelfAttentionWeights;
    return site;
  }
  static at::Tensor Split(const at::Tensor& x) {  // [H, rows, width of a head]
    return x.reshape({x.size(0), kHeads, -1}).transpose(0, 1);
  }
  // [H, rows, rows]: -infinity between sentences and, if causal, ahead.
  at::Tensor Scores(const at::Tensor& q, const at::Tensor& k, bool causal) const {
    at::Tensor hidden = at::zeros({n_, n_}, at::kDouble);
    for (int64_t i = 0; i < n_; ++i) {
      for (int64_t j = 0; j < n_; ++j) {
        const bool seen = rows_.pairs[i] == rows_.pairs[j] && !(causal && j > i);
        if (!seen) hidden[i][j].fill_(-std::numeric_limits<double>::infinity());
      }
    }
    return at::matmul(Split(q), Split(k).transpose(1, 2)) / std::sqrt(kWidth / kHeads) + hidden;
  }
  // [H, rows, rows]: the decision of a weight is that of its query row and key position.
  at::Tensor WeightFactors() const {
    std::vector<at::Tensor> heads;
    for (int64_t h = 0; h < kHeads; ++h) {
      std::vector<at::Tensor> keys;
      for (const uint32_t position : rows_.positions) {
        keys.push_back(Factors(Weights(), 1, h * native::kMaxAttentionKeys + position));
      }
      heads.push_back(at::cat(keys, 1));
    }
    return at::stack(heads);
  }
};

TEST_F(AtenAttentionTest, ForwardAndBackwardEqualADenseMatrix) {
  for (const bool causal : {false, true}) {
    const at::Tensor q = Leaf({n_, kWidth}, 1), k = Leaf({n_, kWidth}, 2),
                     v = Leaf({n_, kWidth}, 3);
    const at::Tensor scores = Scores(q, k, causal);
    const at::Tensor kept = at::softmax(scores, -1) * WeightFactors();
    const at::Tensor context = at::matmul(kept, Split(v)).transpose(0, 1).reshape({n_, kWidth});
    const at::Tensor dcontext = Numbers({n_, kWidth}, 4);
    context.backward(dcontext);

    AttentionArgs args{.q_RD = Padded(q),
                       .k_RD = Padded(k),
                       .v_RD = Padded(v),
                       .queries = &ids_,
                       .keys = &ids_,
                       .heads = kHeads,
                       .causal = causal,
                       .dropout = Weights(),
                       .context_RD = Out(kWidth),
                       .log_sum_exp_RH = Out(kHeads)};
    ops_->Attention(args);
    ExpectRows(args.context_RD, context);
    ExpectRows(args.log_sum_exp_RH, at::logsumexp(scores, -1).t());

    const at::Tensor dq = Out(kWidth), dk = Out(kWidth), dv = Out(kWidth);
    ops_->AttentionBackward(
        {.forward = args, .dcontext_RD = Padded(dcontext), .dq_RD = dq, .dk_RD = dk, .dv_RD = dv});
    ExpectRows(dq, q.grad());
    ExpectRows(dk, k.grad());
    ExpectRows(dv, v.grad());
  }
}

TEST_F(AtenAttentionTest, OneQueryOverACacheEqualsTheLastRowOfEachSentence) {
  const at::Tensor q = Numbers({n_, kWidth}, 1), k = Numbers({n_, kWidth}, 2),
                   v = Numbers({n_, kWidth}, 3);
  const at::Tensor whole = Out(kWidth);
  ops_->Attention({.q_RD = Padded(q),
                   .k_RD = Padded(k),
                   .v_RD = Padded(v),
                   .queries = &ids_,
                   .keys = &ids_,
                   .heads = kHeads,
                   .causal = true,
                   .dropout = {},
                   .context_RD = whole,
                   .log_sum_exp_RH = at::Tensor()});
  // The cache holds the rows backwards; entries that do not count name no row at all.
  const std::vector<int32_t> index = {4, 3, 2, -1, 1, 0, -1, -1}, lengths = {3, 2};
  const at::Tensor got = Out(kWidth);
  ops_->DecodeAttention({.rows = 2,
                         .q_RD = Padded(at::stack({q[2], q[4]})),
                         .keys_ND = k.flip(0).contiguous(),
                         .values_ND = v.flip(0).contiguous(),
                         .index = index.data(),
                         .index_stride = 4,
                         .lengths = lengths.data(),
                         .heads = kHeads,
                         .context_RD = got});
  ExpectRows(got, at::stack({whole[2], whole[4]}));
}

TEST_F(AtenAttentionTest, CrossEntropyWithSmoothingEqualsAutograd) {
  constexpr double kSmoothing = 0.1, kScale = 0.25;
  const std::vector<int32_t> labels = {3, -1, 0, 6, 3};
  const at::Tensor hidden = Leaf({n_, kWidth}, 1), w = Leaf({7, kWidth}, 2);
  const at::Tensor log_p = at::log_softmax(at::matmul(hidden, w.t()), -1);
  const double others = kSmoothing / 6;  // fairseq: the label's own share comes on top
  at::Tensor loss = at::zeros({}, ops_->ResidualOptions()), nll = loss.clone();
  for (int64_t r = 0; r < n_; ++r) {
    if (labels[r] < 0) continue;
    nll = nll - log_p[r][labels[r]];
    loss = loss - (1 - kSmoothing - others) * log_p[r][labels[r]] - others * log_p[r].sum();
  }
  (loss * kScale).backward();

  const auto weight = ops_->MakeWeight(w.detach().clone(), /*backward=*/true);
  ops_->Refresh(*weight);
  const at::Tensor dhidden = Out(kWidth), dw = at::ones_like(w);
  std::vector<float> row_nll(n_);
  LossSums sums;
  ops_->CrossEntropy({.rows = n_,
                      .hidden_RD = Padded(hidden),
                      .weight_VD = weight.get(),
                      .labels = labels.data(),
                      .smoothing = kSmoothing,
                      .scale = kScale,
                      .dhidden_RD = dhidden,
                      .dweight_VD = dw,
                      .sums = &sums,
                      .row_nll = row_nll.data()});
  ops_->session().ReadBack();
  EXPECT_NEAR(sums.loss, loss.item<double>(), testing::kExact * 10);
  EXPECT_NEAR(sums.nll, nll.item<double>(), testing::kExact * 10);
  ExpectRows(dhidden, hidden.grad());
  ExpectNear(dw, w.grad() + 1);
  for (int64_t r = 0; r < n_; ++r) {
    const double expected = labels[r] < 0 ? 0.0 : -log_p[r][labels[r]].item<double>();
    EXPECT_NEAR(row_nll[r], expected, 1e-6) << r;  // float32
  }
}

TEST_F(AtenAttentionTest, LogSoftmaxIsTheLogarithmOfSharesThatAddUpToOne) {
  const at::Tensor logits = Numbers({n_, 7}, 1), got = Padded(logits);
  ops_->LogSoftmax(n_, got);
  const at::Tensor shares = logits.exp();
  ExpectRows(got, (shares / shares.sum(1, /*keepdim=*/true)).log());
}

TEST_F(AtenAttentionTest, AverageLogProbsIsTheLogarithmOfTheMeanProbability) {
  const at::Tensor x = Numbers({n_, 7}, 1), y = Numbers({n_, 7}, 2);
  const at::Tensor expected = ((2 * y.exp() + x.exp()) / 3).log();
  ops_->AverageLogProbs(3, x, y);
  ExpectNear(y, expected);
}

}  // namespace
}  // namespace deepnet
