// Attention and the loss of the reference operations on every device, in float64: against one dense
// matrix over all rows, and autograd.
#include <limits>

#include "tests/trainer/kernels/aten_testing.h"
#include "trainer/kernels/native/attention.h"

namespace deepnet {
namespace {

using testing::AtenOpsTest;

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
    return at::matmul(Split(q), Split(k).transpose(1, 2)) / std::sqrt(kWidth / kHeads) +
           hidden.to(device());
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

TEST_P(AtenAttentionTest, ForwardAndBackwardEqualADenseMatrix) {
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

TEST_P(AtenAttentionTest, OneQueryOverACacheEqualsTheLastRowOfEachSentence) {
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

TEST_P(AtenAttentionTest, CrossEntropyWithSmoothingEqualsAutograd) {
  constexpr double kSmoothing = 0.1, kScale = 0.25;
  const std::vector<int32_t> labels = {3, -1, 0, 6, 3};
  const at::Tensor hidden = Leaf({n_, kWidth}, 1), w = Leaf({7, kWidth}, 2);
  const at::Tensor log_p = at::log_softmax(at::matmul(hidden, w.t()), -1);
  const double others = kSmoothing / 6;  // fairseq: the label's own share comes on top
  at::Tensor loss = at::zeros({}, ops_->Stream()), nll = loss.clone();
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
  const LossSums sums = ops_->CrossEntropy({.rows = n_,
                                            .hidden_RD = Padded(hidden),
                                            .weight_VD = weight.get(),
                                            .labels = labels.data(),
                                            .smoothing = kSmoothing,
                                            .scale = kScale,
                                            .dhidden_RD = dhidden,
                                            .dweight_VD = dw,
                                            .row_nll = row_nll.data()});
  EXPECT_NEAR(sums.loss, loss.item<double>(), testing::kExact * 10);
  EXPECT_NEAR(sums.nll, nll.item<double>(), testing::kExact * 10);
  ExpectRows(dhidden, hidden.grad());
  ExpectNear(dw, w.grad() + 1);
  for (int64_t r = 0; r < n_; ++r) {
    const double expected = labels[r] < 0 ? 0.0 : -log_p[r][labels[r]].item<double>();
    EXPECT_NEAR(row_nll[r], expected, 1e-6) << r;  // float32
  }
}

TEST_P(AtenAttentionTest, LogSoftmaxIsTheLogarithmOfSharesThatAddUpToOne) {
  const at::Tensor logits = Numbers({n_, 7}, 1), got = Padded(logits);
  ops_->LogSoftmax(n_, got);
  const at::Tensor shares = logits.exp();
  ExpectRows(got, (shares / shares.sum(1, /*keepdim=*/true)).log());
}

INSTANTIATE_TEST_SUITE_P(Reference, AtenAttentionTest, ::testing::ValuesIn(testing::Devices()),
                         testing::DeviceName);

}  // namespace
}  // namespace deepnet
