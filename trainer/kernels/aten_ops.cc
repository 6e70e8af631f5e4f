// The reference: every operation of ops.h spelled in LibTorch calls, written to be checked against
// the formula, not to be fast. Rows that are not real are left alone by narrowing first.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>

#include "parallel/base/check.h"
#include "parallel/base/philox.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/kernels/kernel_sizes.h"
#include "trainer/kernels/native/adam.h"
#include "trainer/kernels/native/attention.h"

namespace deepnet {
namespace {

using at::Tensor;

constexpr int64_t kAdamBlock = int64_t{1} << 22;  // elements that are updated together
constexpr int64_t kDrawnBlock = 1 << 14;          // elements that a thread draws, at least

struct AtenWeight : public Weight {
  Tensor master_OI, operand_OI;
};

const Tensor& OperandOf(const Weight& w) { return static_cast<const AtenWeight&>(w).operand_OI; }

// 1 / (1 - rate) or 0 for decisions [first_feature, + features) of each row of `site`: the scalar
// twin of native dropout (docs/design/random.md). first_feature is a multiple of 8.
Tensor DropoutFactors(const DropoutSite& site, const PackedRows& ids, int64_t rows,
                      int64_t features, int64_t first_feature = 0) {
  Tensor factors = at::empty({rows, features}, at::kDouble);
  double* out = factors.data_ptr<double>();
  const PhiloxKey key = MakeKey(site.seed, RandomPurpose::kDropout);
  const uint32_t threshold = static_cast<uint32_t>(std::lround(site.rate * 65536.0));
  const uint64_t step = static_cast<uint64_t>(site.step);
  for (int64_t r = 0; r < rows; ++r) {
    PhiloxBlock words{};
    for (int64_t f = 0; f < features; ++f) {
      if (f % 8 == 0) {
        words = Philox(key, {static_cast<uint32_t>(step), ids.pairs[r],
                             ids.positions[r] | static_cast<uint32_t>(site.site) << 20 |
                                 static_cast<uint32_t>(step >> 32) << 28,
                             static_cast<uint32_t>((first_feature + f) / 8) |
                                 static_cast<uint32_t>(site.layer) << 18 |
                                 static_cast<uint32_t>(site.stack) << 31});
      }
      const uint32_t lane = words[f % 8 / 2] >> (16 * (f % 2)) & 0xFFFF;
      out[r * features + f] = lane >= threshold ? 1.0 / (1.0 - site.rate) : 0.0;
    }
  }
  return factors;
}

// Bits of `factors` != 0, packed little-endian into uint8 [rows, ceil(features / 8)].
void StoreMask(const Tensor& factors, const Tensor& mask) {
  const int64_t rows = factors.size(0), features = factors.size(1), bytes = (features + 7) / 8;
  const Tensor kept = at::constant_pad_nd(factors.ne(0).to(at::kInt), {0, 8 * bytes - features});
  const Tensor bits = kept.view({rows, bytes, 8}).bitwise_left_shift(at::arange(8, at::kInt));
  mask.narrow(0, 0, rows).copy_(bits.sum(-1));
}

Tensor LoadMask(const Tensor& mask, int64_t rows, int64_t features, double rate,
                at::TensorOptions to) {
  const Tensor bytes = mask.narrow(0, 0, rows).to(at::kInt).unsqueeze(-1);
  const Tensor kept = bytes.bitwise_right_shift(at::arange(8, at::kInt)).bitwise_and(1).flatten(1);
  return (kept.narrow(1, 0, features).to(at::kDouble) * (1.0 / (1.0 - rate))).to(to);
}

class AtenOps : public Ops {
 public:
  AtenOps(at::ScalarType operand, at::ScalarType residual)
      : operand_(at::TensorOptions(at::kCPU).dtype(operand)),
        residual_(at::TensorOptions(at::kCPU).dtype(residual)) {}

  at::TensorOptions ResidualOptions() const override { return residual_; }
  at::TensorOptions OperandOptions() const override { return operand_; }

  std::unique_ptr<Weight> MakeWeight(Tensor master_OI, bool) override {
    auto weight = std::make_unique<AtenWeight>();
    weight->master_OI = std::move(master_OI);
    return weight;
  }
  void Refresh(Weight& weight) override {
    auto& w = static_cast<AtenWeight&>(weight);
    w.operand_OI = w.master_OI.to(operand_);
  }

  void Linear(const LinearArgs& a) override {
    Tensor y = at::matmul(First(a.x_RI, a.rows), OperandOf(*a.weight_OI).t()).to(residual_);
    if (a.bias_O.defined()) y = y + a.bias_O;
    if (a.relu) y = at::relu(y);
    First(a.y_RO, a.rows).copy_(y);
  }
  void LinearBackwardInput(const LinearInputGradArgs& a) override {
    Tensor dx = at::matmul(First(a.dy_RO, a.rows), OperandOf(*a.weight_OI)).to(residual_);
    if (a.relu_output_RI.defined()) dx = dx * First(a.relu_output_RI, a.rows).gt(0);
    if (a.accumulate) dx = dx + First(a.dx_RI, a.rows);
    First(a.dx_RI, a.rows).copy_(dx);
  }
  void LinearBackwardWeight(int64_t rows, const Tensor& dy, const Tensor& x, const Tensor& dw,
                            const Tensor& dbias) override {
    const Tensor dy_R = First(dy, rows).to(residual_);
    dw.add_(at::matmul(dy_R.t(), First(x, rows).to(residual_)));
    if (dbias.defined()) dbias.add_(dy_R.sum(0));
  }

  void ResidualNorm(const ResidualNormArgs& a) override {
    Tensor sum;
    if (a.x_RD.defined()) sum = First(a.x_RD, a.rows) * a.alpha;
    if (a.branch_RD.defined()) {
      const Tensor branch =
          Dropped(First(a.branch_RD, a.rows).to(residual_), a.dropout, a.ids, a.mask);
      sum = sum.defined() ? sum + branch : branch;
    }
    if (a.sum_RD.defined()) First(a.sum_RD, a.rows).copy_(sum);
    if (!a.gain_D.defined()) return;
    const int64_t over = a.over_rows ? 0 : 1;
    const Tensor centred = a.centred ? sum - sum.mean(over, /*keepdim=*/true) : sum;
    const Tensor rstd = at::rsqrt((centred * centred).mean(over, /*keepdim=*/true) + a.epsilon);
    const Tensor xhat = centred * rstd;
    if (a.state.xhat_RD.defined()) {
      First(a.state.xhat_RD, a.rows).copy_(xhat);
      a.state.rstd.narrow(0, 0, rstd.numel()).copy_(rstd.squeeze(over));
    }
    const Tensor y = a.bias_D.defined() ? xhat * a.gain_D + a.bias_D : xhat * a.gain_D;
    if (a.y_RD.defined()) First(a.y_RD, a.rows).copy_(y);
    if (a.y_operand_RD.defined()) First(a.y_operand_RD, a.rows).copy_(y);
  }
  void ResidualNormBackward(const ResidualNormGradArgs& a) override {
    const Tensor dy = First(a.dy_RD, a.rows).to(residual_, /*non_blocking=*/false, /*copy=*/true);
    const Tensor xhat = First(a.state.xhat_RD, a.rows);
    const int64_t over = a.over_rows ? 0 : 1;
    const Tensor rstd = a.state.rstd.narrow(0, 0, xhat.size(1 - over)).unsqueeze(over);
    a.dgain_D.add_((dy * xhat).sum(0));
    if (a.dbias_D.defined()) a.dbias_D.add_(dy.sum(0));
    const Tensor g = dy * a.gain_D;
    const Tensor centred = a.centred ? g - g.mean(over, true) : g;
    const Tensor dsum = (centred - xhat * (g * xhat).mean(over, true)) * rstd;
    if (a.dbranch_RD.defined()) {
      const Tensor both = a.dpast_RD.defined() ? dsum + First(a.dpast_RD, a.rows) : dsum;
      First(a.dbranch_RD, a.rows).copy_(Masked(both, a.dropout_rate, a.mask));
    }
    if (!a.dx_RD.defined()) return;
    Tensor dx = dsum * a.alpha;
    if (a.accumulate_dx) dx = dx + First(a.dx_RD, a.rows);
    First(a.dx_RD, a.rows).copy_(dx);
  }
  void NormOutput(int64_t rows, const NormState& state, const Tensor& gain, const Tensor& bias,
                  const Tensor& y) override {
    const Tensor scaled = First(state.xhat_RD, rows) * gain;
    First(y, rows).copy_(bias.defined() ? scaled + bias : scaled);
  }
  void AddBranchBackward(int64_t rows, const Tensor& dx, double rate, const Tensor& mask,
                         const Tensor& dbranch) override {
    First(dbranch, rows).copy_(Masked(First(dx, rows), rate, mask));
  }

  void ScaleShift(const ScaleShiftArgs& a) override {
    Tensor y = First(a.x_RD, a.rows).to(residual_);
    if (a.shift_1.defined()) y = y - a.shift_1;
    if (a.scale_G.defined()) y = y * Spread(a.scale_G, y.size(1));
    First(a.y_RD, a.rows).copy_(y);
  }
  void ScaleShiftBackward(const ScaleShiftGradArgs& a) override {
    Tensor dx = First(a.dy_RD, a.rows).to(residual_);
    if (a.scale_G.defined()) {
      Tensor x = First(a.x_RD, a.rows).to(residual_);
      if (a.shift_1.defined()) x = x - a.shift_1;
      const Tensor columns = (dx * x).sum(0);
      a.dscale_G.add_(columns.view({a.scale_G.size(0), -1}).sum(1));
      dx = dx * Spread(a.scale_G, dx.size(1));
    }
    if (a.dshift_1.defined()) a.dshift_1.sub_(dx.sum());
    First(a.dx_RD, a.rows).copy_(dx);
  }

  void Attention(const AttentionArgs& a) override {
    ForEachSentence(a, [&](const Sentence& s) {
      const Tensor p = Probabilities(a, s);
      Tensor kept = p;
      if (a.dropout.rate > 0) kept = p * AttentionFactors(a, s);
      const Tensor context = at::matmul(kept, Heads(a.v_RD, s.key_begin, s.key_count, a.heads));
      Slice(a.context_RD, s.query_begin, s.query_count)
          .copy_(context.transpose(0, 1).reshape({s.query_count, -1}));
      if (a.log_sum_exp_RH.defined()) {
        Slice(a.log_sum_exp_RH, s.query_begin, s.query_count)
            .copy_(at::logsumexp(Scores(a, s), -1).t());
      }
    });
  }
  void AttentionBackward(const AttentionGradArgs& g) override {
    const AttentionArgs& a = g.forward;
    ForEachSentence(a, [&](const Sentence& s) {
      const Tensor q = Heads(a.q_RD, s.query_begin, s.query_count, a.heads);
      const Tensor k = Heads(a.k_RD, s.key_begin, s.key_count, a.heads);
      const Tensor v = Heads(a.v_RD, s.key_begin, s.key_count, a.heads);
      const Tensor dc = Heads(g.dcontext_RD, s.query_begin, s.query_count, a.heads);
      const Tensor p = Probabilities(a, s);
      Tensor kept = p, dp = at::matmul(dc, v.transpose(1, 2));
      if (a.dropout.rate > 0) {
        const Tensor factors = AttentionFactors(a, s);
        kept = p * factors;
        dp = dp * factors;
      }
      const Tensor ds = p * (dp - (dp * p).sum(-1, true)) / std::sqrt(double(q.size(2)));
      PutHeads(g.dq_RD, s.query_begin, at::matmul(ds, k));
      PutHeads(g.dk_RD, s.key_begin, at::matmul(ds.transpose(1, 2), q));
      PutHeads(g.dv_RD, s.key_begin, at::matmul(kept.transpose(1, 2), dc));
    });
  }
  void DecodeAttention(const DecodeAttentionArgs& a) override {
    for (int64_t r = 0; r < a.rows; ++r) {
      const int64_t length = a.lengths[r];
      const Tensor index = Ids(a.index + r * a.index_stride, length);
      const Tensor q = Heads(a.q_RD, r, 1, a.heads);
      const Tensor k = Heads(a.keys_ND.index_select(0, index), 0, length, a.heads);
      const Tensor v = Heads(a.values_ND.index_select(0, index), 0, length, a.heads);
      const Tensor p =
          at::softmax(at::matmul(q, k.transpose(1, 2)) / std::sqrt(double(q.size(2))), -1);
      Slice(a.context_RD, r, 1).copy_(at::matmul(p, v).transpose(0, 1).reshape({1, -1}));
    }
  }

  void Relu(int64_t rows, const Tensor& x) override { First(x, rows).clamp_min_(0); }
  void ReluBackward(int64_t rows, const Tensor& relu_output, const Tensor& dx) override {
    First(dx, rows).mul_(First(relu_output, rows).gt(0));
  }
  void Gelu(int64_t rows, const Tensor& pre, const Tensor& h) override {
    First(h, rows).copy_(at::gelu(First(pre, rows).to(residual_)));
  }
  void GeluBackward(int64_t rows, const Tensor& pre, const Tensor& dh,
                    const Tensor& dpre) override {
    First(dpre, rows)
        .copy_(at::gelu_backward(First(dh, rows).to(residual_), First(pre, rows).to(residual_)));
  }
  void Dropout(int64_t rows, const DropoutSite& dropout, const PackedRows& ids, const Tensor& x,
               const Tensor& mask) override {
    First(x, rows).copy_(Dropped(First(x, rows).to(residual_), dropout, &ids, mask));
  }
  void DropoutBackward(int64_t rows, double rate, const Tensor& mask, const Tensor& dx) override {
    First(dx, rows).copy_(Masked(First(dx, rows).to(residual_), rate, mask));
  }

  void Embed(const EmbedArgs& a) override {
    const Tensor tokens = Ids(a.rows->tokens, a.rows->count);
    const Tensor positions = Ids(a.rows->positions, a.rows->count);
    const Tensor sum =
        a.table_VD.index_select(0, tokens) * a.scale + a.positions_PD.index_select(0, positions);
    const Tensor x = Dropped(sum, a.dropout, a.rows, a.mask);
    First(a.x_RD, a.rows->count).copy_(x);
    if (a.x_operand_RD.defined()) First(a.x_operand_RD, a.rows->count).copy_(x);
  }
  void EmbedBackward(const EmbedGradArgs& a) override {
    const int64_t rows = a.rows->count;
    First(a.dx_RD, rows).copy_(Masked(First(a.dx_RD, rows), a.dropout_rate, a.mask));
    const Tensor tokens = Ids(a.rows->tokens, rows);
    a.dtable_VD.index_add_(0, tokens, First(a.dx_RD, rows) * a.scale);
    if (a.dpositions_PD.defined()) {
      a.dpositions_PD.index_add_(0, Ids(a.rows->positions, rows), First(a.dx_RD, rows));
    }
  }

  void CrossEntropy(const CrossEntropyArgs& a) override {
    LossSums sums;
    const Tensor& weight = OperandOf(*a.weight_VD);
    const double classes = static_cast<double>(weight.size(0));
    const double spread = a.smoothing / (classes - 1.0);
    for (int64_t begin = 0; begin < a.rows; begin += native::kCpuLogitRows) {
      const int64_t count = std::min(native::kCpuLogitRows, a.rows - begin);
      const Tensor hidden = Slice(a.hidden_RD, begin, count);
      const Tensor labels = Ids(a.labels + begin, count);
      const Tensor real = labels.ge(0).to(residual_).unsqueeze(1);
      const Tensor index = labels.clamp_min(0).unsqueeze(1);
      const Tensor log_p = at::log_softmax(at::matmul(hidden, weight.t()).to(residual_), -1);
      const Tensor nll = -log_p.gather(1, index) * real;
      const Tensor uniform = -log_p.sum(1, true) * real;
      sums.nll += nll.sum().to(at::kDouble).item<double>();
      sums.loss += ((1.0 - a.smoothing - spread) * nll + spread * uniform)
                       .sum()
                       .to(at::kDouble)
                       .item<double>();
      if (a.row_nll != nullptr) {
        const Tensor host = nll.squeeze(1).to(at::kCPU, at::kFloat).contiguous();
        std::copy_n(host.data_ptr<float>(), count, a.row_nll + begin);
      }
      if (!a.dhidden_RD.defined()) continue;
      Tensor target = at::full_like(log_p, spread);
      target.scatter_add_(1, index, at::full_like(nll, 1.0 - a.smoothing - spread));
      const Tensor dlogits = ((log_p.exp() - target) * real * a.scale).to(operand_);
      Slice(a.dhidden_RD, begin, count).copy_(at::matmul(dlogits, weight));
      a.dweight_VD.add_(at::matmul(dlogits.to(residual_).t(), hidden.to(residual_)));
    }
    if (a.sums != nullptr) *a.sums = sums;
  }
  void LogSoftmax(int64_t rows, const Tensor& logits) override {
    First(logits, rows).copy_(at::log_softmax(First(logits, rows), -1));
  }
  void AverageLogProbs(int n, const Tensor& x, const Tensor& y) override {
    y.copy_(((y.to(at::kDouble).exp() * (n - 1) + x.to(at::kDouble).exp()) / n).log());
  }
  void ChooseTokens(const Tensor& log_probs, const native::TokenChoices& choices) override {
    const Tensor host = log_probs.to(at::kCPU, at::kFloat).contiguous();
    for (int64_t i = 0; i < choices.count; ++i) {
      native::ChooseToken(host.const_data_ptr<float>(), host.size(1), host.size(1), choices, i);
    }
  }

  void InitialNormal(uint64_t seed, std::string_view name, double std, const Tensor& x) override {
    const Tensor values = at::empty({x.numel()}, at::kFloat);
    float* const out = values.data_ptr<float>();
    at::parallel_for(0, values.numel(), kDrawnBlock, [&](int64_t begin, int64_t end) {
      FillInitialNormal(seed, name, begin, {out + begin, static_cast<size_t>(end - begin)});
    });
    x.copy_(values.mul_(static_cast<float>(std)).view(x.sizes()));
  }
  // Elements know nothing of each other; in blocks, temporaries stay small beside the model.
  void Adam(const AdamArgs& a) override {
    for (int64_t begin = 0; begin < a.weights.numel(); begin += kAdamBlock) {
      const int64_t count = std::min(kAdamBlock, a.weights.numel() - begin);
      AdamArgs block = a;
      for (Tensor* x : {&block.weights, &block.gradient, &block.moment1, &block.moment2}) {
        *x = Slice(*x, begin, count);
      }
      AdamOfBlock(block);
    }
  }
  // A block's bits depend on nothing but its elements.
  void SumSquares(std::span<const SquareSums> all) override {
    for (const SquareSums& one : all) {
      const Tensor flat = one.x.reshape({-1});
      std::vector<Tensor> blocks;
      for (int64_t begin = 0; begin < flat.numel(); begin += native::kSumSquaresBlock) {
        const int64_t count = std::min(native::kSumSquaresBlock, flat.numel() - begin);
        blocks.push_back(Slice(flat, begin, count).to(at::kDouble).square().sum());
      }
      DEEPNET_CHECK_EQ(blocks.size(), one.sums.size());
      if (blocks.empty()) continue;
      const Tensor sums = at::stack(blocks).cpu();
      std::copy_n(sums.data_ptr<double>(), one.sums.size(), one.sums.begin());
    }
  }
  void Add(const Tensor& y, const Tensor& x) override { y.add_(x); }
  void Copy(int64_t rows, const Tensor& x, const Tensor& y) override {
    First(y, rows).copy_(First(x, rows));
  }

 private:
  // [D]: each of G factors over its D / G columns.
  static Tensor Spread(const Tensor& scale_G, int64_t width) {
    return scale_G.repeat_interleave(width / scale_G.size(0));
  }
  static void AdamOfBlock(const AdamArgs& a) {
    const native::AdamRule& rule = a.rule;
    if (rule.weight_decay != 0.0) a.weights.mul_(1.0 - rule.rate * rule.weight_decay);
    {
      const Tensor g = a.gradient * rule.gradient_scale;
      a.moment1.mul_(rule.beta1).add_(g, 1.0 - rule.beta1);
      a.moment2.mul_(rule.beta2).add_(g * g, 1.0 - rule.beta2);
    }
    const double correction1 = 1.0 - std::pow(rule.beta1, double(rule.step));
    const double root2 = std::sqrt(1.0 - std::pow(rule.beta2, double(rule.step)));
    const Tensor root = a.moment2.sqrt();
    if (rule.fairseq_epsilon) {
      a.weights.sub_(a.moment1 / root.add_(rule.epsilon), rule.rate * root2 / correction1);
    } else {
      a.weights.sub_(a.moment1 / root.div_(root2).add_(rule.epsilon), rule.rate / correction1);
    }
  }

  struct Sentence {
    int index;
    int64_t query_begin, query_count, key_begin, key_count;
  };

  static Tensor First(const Tensor& x, int64_t rows) { return x.narrow(0, 0, rows); }
  static Tensor Slice(const Tensor& x, int64_t begin, int64_t count) {
    return x.narrow(0, begin, count);
  }
  // Numbers of 32 bits, none of which is negative.
  static Tensor Ids(const void* ids, int64_t count) {
    return at::from_blob(const_cast<void*>(ids), {count}, at::kInt).to(at::kLong);
  }

  Tensor Dropped(const Tensor& x, const DropoutSite& site, const PackedRows* ids,
                 const Tensor& mask) {
    if (site.rate == 0.0) return x;
    const Tensor factors = DropoutFactors(site, *ids, x.size(0), x.size(1));
    if (mask.defined()) StoreMask(factors, mask);
    return x * factors.to(residual_);
  }
  Tensor Masked(const Tensor& x, double rate, const Tensor& mask) {
    if (rate == 0.0) return x;
    return x * LoadMask(mask, x.size(0), x.size(1), rate, residual_);
  }

  // [heads, count, D / heads] of rows begin.. of x, in the residual type.
  Tensor Heads(const Tensor& x, int64_t begin, int64_t count, int heads) const {
    return Slice(x, begin, count).to(residual_).reshape({count, heads, -1}).transpose(0, 1);
  }
  static void PutHeads(const Tensor& x, int64_t begin, const Tensor& value) {
    Slice(x, begin, value.size(1)).copy_(value.transpose(0, 1).reshape({value.size(1), -1}));
  }
  template <typename Body>
  static void ForEachSentence(const AttentionArgs& a, Body body) {
    for (int s = 0; s < a.queries->num_sentences; ++s) {
      const int32_t* q = a.queries->offsets + s;
      const int32_t* k = a.keys->offsets + s;
      if (q[1] > q[0]) body(Sentence{s, q[0], q[1] - q[0], k[0], k[1] - k[0]});
    }
  }
  Tensor Scores(const AttentionArgs& a, const Sentence& s) const {
    const Tensor q = Heads(a.q_RD, s.query_begin, s.query_count, a.heads);
    const Tensor k = Heads(a.k_RD, s.key_begin, s.key_count, a.heads);
    Tensor scores = at::matmul(q, k.transpose(1, 2)) / std::sqrt(static_cast<double>(q.size(2)));
    if (a.causal) {
      const Tensor later =
          at::ones({s.query_count, s.key_count}, residual_.dtype(at::kBool)).triu(1);
      scores = scores.masked_fill(later, -INFINITY);
    }
    return scores;
  }
  Tensor Probabilities(const AttentionArgs& a, const Sentence& s) const {
    return at::softmax(Scores(a, s), -1);
  }
  // [heads, queries, keys]; feature = head * kMaxAttentionKeys + key position.
  Tensor AttentionFactors(const AttentionArgs& a, const Sentence& s) const {
    const PackedRows ids{.count = s.query_count,
                         .positions = a.queries->positions + s.query_begin,
                         .pairs = a.queries->pairs + s.query_begin};
    std::vector<Tensor> heads;
    for (int64_t h = 0; h < a.heads; ++h) {
      heads.push_back(DropoutFactors(a.dropout, ids, s.query_count, s.key_count,
                                     h * native::kMaxAttentionKeys));
    }
    return at::stack(heads).to(residual_);
  }

  at::TensorOptions operand_;
  at::TensorOptions residual_;
};

}  // namespace

std::unique_ptr<Ops> MakeAtenOps(at::ScalarType operand, at::ScalarType residual) {
  return std::make_unique<AtenOps>(operand, residual);
}

}  // namespace deepnet
