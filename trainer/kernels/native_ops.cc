// A thin translation: tensors become pointers with shapes, operations become kernels. The only
// algorithm here is the output layer, which walks the rows in chunks.
#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "parallel/base/check.h"
#include "trainer/kernels/compute.h"
#include "trainer/kernels/native/adam.h"
#include "trainer/kernels/native/attention.h"
#include "trainer/kernels/native/cross_entropy.h"
#include "trainer/kernels/native/dropout.h"
#include "trainer/kernels/native/elementwise.h"
#include "trainer/kernels/native/embedding.h"
#include "trainer/kernels/native/isa.h"
#include "trainer/kernels/native/linear.h"
#include "trainer/kernels/native/residual_norm.h"
#include "trainer/kernels/native/scratch.h"

namespace deepnet {
namespace {

using at::Tensor;

// Rows of logits that exist at a time.
constexpr int64_t kLogitRows = 512;

native::Element ElementOf(const Tensor& x) {
  return x.scalar_type() == at::kBFloat16 ? native::Element::kBfloat16 : native::Element::kFloat32;
}

// The first `rows` rows of x [.., cols], which may be a column slice. An undefined tensor is null.
native::ConstMatrix In(const Tensor& x, int64_t rows) {
  if (!x.defined()) return {};
  return {x.const_data_ptr(), ElementOf(x), rows, x.size(1), x.stride(0)};
}

native::Matrix Out(const Tensor& x, int64_t rows) {
  if (!x.defined()) return {};
  return {x.data_ptr(), ElementOf(x), rows, x.size(1), x.stride(0)};
}

float* Floats(const Tensor& x) { return x.defined() ? x.data_ptr<float>() : nullptr; }

uint8_t* Bytes(const Tensor& x) { return x.defined() ? x.data_ptr<uint8_t>() : nullptr; }

native::DropoutKey KeyOf(const DropoutSite& site) {
  return {.seed = site.seed,
          .step = site.step,
          .stack = site.stack,
          .layer = site.layer,
          .site = site.site,
          .rate = site.rate};
}

native::RowIds IdsOf(const PackedRows* rows) {
  if (rows == nullptr) return {};
  return {.pair = rows->pairs, .position = rows->positions};
}

class NativeWeight : public Weight {
 public:
  // `bytes` counts the packed copies of all living weights.
  NativeWeight(const native::KernelTable& table, Tensor master, native::Element element,
               bool backward, std::shared_ptr<std::atomic<int64_t>> bytes)
      : master_OI(std::move(master)),
        packed(table, master_OI.size(0), master_OI.size(1), element,
               backward ? native::PackedFor::kTraining : native::PackedFor::kInference),
        bytes_(std::move(bytes)) {
    *bytes_ += packed.bytes();
  }
  ~NativeWeight() override { *bytes_ -= packed.bytes(); }

  Tensor master_OI;
  native::PackedWeight packed;

 private:
  std::shared_ptr<std::atomic<int64_t>> bytes_;
};

const native::PackedWeight& PackedOf(const Weight& w) {
  return static_cast<const NativeWeight&>(w).packed;
}

native::Isa IsaOf(Isa isa) {
  switch (isa) {
    case BASELINE:
      return native::Isa::kBaseline;
    case AVX2:
      return native::Isa::kAvx2;
    case AVX512:
      return native::Isa::kAvx512;
    case AVX512_BF16:
      return native::Isa::kAvx512Bf16;
    default:
      return native::BestIsa();
  }
}

class NativeOps : public Ops {
 public:
  explicit NativeOps(const ComputeSpec& compute)
      : operand_(compute.dtype() == BFLOAT16 ? at::kBFloat16 : at::kFloat),
        table_(native::Table(IsaOf(compute.isa()))),
        pool_(std::max(1, compute.threads_per_rank())) {
    // LibTorch's own threads would spin for work on the cores of the pool.
    at::set_num_threads(1);
  }

  at::TensorOptions ResidualOptions() const override {
    return at::TensorOptions(at::kCPU).dtype(at::kFloat);
  }
  at::TensorOptions OperandOptions() const override {
    return at::TensorOptions(at::kCPU).dtype(operand_);
  }
  int64_t OwnBytes() const override { return *packed_bytes_ + scratch_.num_bytes(); }

  std::unique_ptr<Weight> MakeWeight(Tensor master_OI, bool backward) override {
    DEEPNET_CHECK(master_OI.is_contiguous());
    const auto element =
        operand_ == at::kBFloat16 ? native::Element::kBfloat16 : native::Element::kFloat32;
    return std::make_unique<NativeWeight>(table_, std::move(master_OI), element, backward,
                                          packed_bytes_);
  }
  void Refresh(Weight& weight) override {
    auto& w = static_cast<NativeWeight&>(weight);
    w.packed.Pack(pool_, w.master_OI.const_data_ptr<float>());
  }

  void Linear(int64_t rows, const Tensor& x, const Weight& w, const Tensor& bias, bool relu,
              const Tensor& y) override {
    native::LinearForward(pool_, table_, In(x, rows), PackedOf(w), Floats(bias), relu,
                          Out(y, rows));
  }
  void LinearBackwardInput(int64_t rows, const Tensor& dy, const Weight& w,
                           const Tensor& relu_output, bool accumulate, const Tensor& dx) override {
    const native::ConstMatrix positive = In(relu_output, rows);
    native::LinearBackwardInput(pool_, table_, In(dy, rows), PackedOf(w),
                                relu_output.defined() ? &positive : nullptr, accumulate,
                                Out(dx, rows));
  }
  void LinearBackwardWeight(int64_t rows, const Tensor& dy, const Tensor& x, const Tensor& dw,
                            const Tensor& dbias) override {
    native::LinearBackwardWeight(pool_, table_, In(dy, rows), In(x, rows), Floats(dw),
                                 Floats(dbias), scratch_);
  }

  void ResidualNorm(const ResidualNormArgs& a) override {
    const native::ResidualNormForwardArgs args = {
        .rows = a.rows,
        .width = (a.x_RD.defined() ? a.x_RD : a.branch_RD).size(1),
        .alpha = static_cast<float>(a.alpha),
        .epsilon = static_cast<float>(a.epsilon),
        .centred = a.centred,
        .x = Floats(a.x_RD),
        .branch = In(a.branch_RD, a.rows),
        .dropout = KeyOf(a.dropout),
        .ids = IdsOf(a.ids),
        .gain = Floats(a.gain_D),
        .bias = Floats(a.bias_D),
        .y = Floats(a.y_RD),
        .y_operand = Out(a.y_operand_RD, a.rows),
        .xhat = a.state != nullptr ? Floats(a.state->xhat_RD) : nullptr,
        .rstd = a.state != nullptr ? Floats(a.state->rstd) : nullptr,
        .mask = Bytes(a.mask)};
    if (a.over_rows) return native::BatchNormForward(pool_, table_, args, scratch_);
    native::ResidualNormForward(pool_, table_, args);
  }
  void ResidualNormBackward(const ResidualNormGradArgs& a) override {
    const Tensor dy_RD = AsFloats(a.rows, a.dy_RD);
    const native::ResidualNormBackwardArgs args = {.rows = a.rows,
                                                   .width = a.dy_RD.size(1),
                                                   .alpha = static_cast<float>(a.alpha),
                                                   .rate = a.dropout_rate,
                                                   .centred = a.centred,
                                                   .dy = Floats(dy_RD),
                                                   .dpast = Floats(a.dpast_RD),
                                                   .xhat = Floats(a.state->xhat_RD),
                                                   .rstd = Floats(a.state->rstd),
                                                   .gain = Floats(a.gain_D),
                                                   .mask = Bytes(a.mask),
                                                   .d_residual = Floats(a.dx_RD),
                                                   .accumulate_residual = a.accumulate_dx,
                                                   .d_branch = Out(a.dbranch_RD, a.rows),
                                                   .d_gain = Floats(a.dgain_D),
                                                   .d_bias = Floats(a.dbias_D)};
    if (a.over_rows) return native::BatchNormBackward(pool_, table_, args, scratch_);
    native::ResidualNormBackward(pool_, table_, args, scratch_);
  }
  void NormOutput(int64_t rows, const NormState& state, const Tensor& gain, const Tensor& bias,
                  const Tensor& y) override {
    native::NormOutput(pool_, table_, In(state.xhat_RD, rows), Floats(gain), Floats(bias),
                       Out(y, rows));
  }
  void AddBranch(int64_t rows, const Tensor& x, const Tensor& branch, const DropoutSite& dropout,
                 const PackedRows* ids, const Tensor& mask) override {
    native::ResidualNormForward(pool_, table_,
                                {.rows = rows,
                                 .width = x.size(1),
                                 .x = Floats(x),
                                 .branch = In(branch, rows),
                                 .dropout = KeyOf(dropout),
                                 .ids = IdsOf(ids),
                                 .sum = Floats(x),
                                 .mask = Bytes(mask)});
  }
  void AddBranchBackward(int64_t rows, const Tensor& dx, double rate, const Tensor& mask,
                         const Tensor& dbranch) override {
    native::Cast(pool_, table_, In(dx, rows), Out(dbranch, rows));
    if (rate > 0) native::DropoutBackward(pool_, table_, rate, Bytes(mask), Out(dbranch, rows));
  }

  void ScaleShift(const ScaleShiftArgs& a) override {
    native::ScaleShiftForward(pool_, table_,
                              {.x = In(a.x_RD, a.rows),
                               .scale = Floats(a.scale_G),
                               .groups = a.scale_G.defined() ? a.scale_G.size(0) : 1,
                               .shift = Floats(a.shift_1),
                               .y = Out(a.y_RD, a.rows)},
                              scratch_);
  }
  void ScaleShiftBackward(const ScaleShiftGradArgs& a) override {
    native::ScaleShiftBackward(
        pool_, table_,
        {.dy = In(a.dy_RD, a.rows),
         .x = a.scale_G.defined() ? In(a.x_RD, a.rows) : native::ConstMatrix(),
         .scale = Floats(a.scale_G),
         .groups = a.scale_G.defined() ? a.scale_G.size(0) : 1,
         .shift = Floats(a.shift_1),
         .dx = Out(a.dx_RD, a.rows),
         .d_scale = Floats(a.dscale_G),
         .d_shift = Floats(a.dshift_1)},
        scratch_);
  }

  void Attention(const AttentionArgs& a) override {
    native::AttentionForward(pool_, table_,
                             {.shape = ShapeOf(a),
                              .q = In(a.q_RD, a.queries->count),
                              .k = In(a.k_RD, a.keys->count),
                              .v = In(a.v_RD, a.keys->count),
                              .dropout = KeyOf(a.dropout),
                              .q_ids = IdsOf(a.queries),
                              .context = Out(a.context_RD, a.queries->count),
                              .lse = Floats(a.log_sum_exp_RH)},
                             scratch_);
  }
  void AttentionBackward(const AttentionGradArgs& g) override {
    const AttentionArgs& a = g.forward;
    native::AttentionBackward(pool_, table_,
                              {.shape = ShapeOf(a),
                               .q = In(a.q_RD, a.queries->count),
                               .k = In(a.k_RD, a.keys->count),
                               .v = In(a.v_RD, a.keys->count),
                               .lse = Floats(a.log_sum_exp_RH),
                               .d_context = In(g.dcontext_RD, a.queries->count),
                               .dropout = KeyOf(a.dropout),
                               .q_ids = IdsOf(a.queries),
                               .dq = Out(g.dq_RD, a.queries->count),
                               .dk = Out(g.dk_RD, a.keys->count),
                               .dv = Out(g.dv_RD, a.keys->count)},
                              scratch_);
  }
  void DecodeAttention(const DecodeAttentionArgs& a) override {
    native::DecodeAttention(pool_, table_,
                            {.heads = a.heads,
                             .head_dim = static_cast<int>(a.q_RD.size(1) / a.heads),
                             .q = In(a.q_RD, a.rows),
                             .keys = In(a.keys_ND, a.keys_ND.size(0)),
                             .values = In(a.values_ND, a.values_ND.size(0)),
                             .index = a.index,
                             .index_stride = a.index_stride,
                             .lengths = a.lengths,
                             .context = Out(a.context_RD, a.rows)},
                            scratch_);
  }

  void Relu(int64_t rows, const Tensor& x) override { x.narrow(0, 0, rows).clamp_min_(0); }
  void ReluBackward(int64_t rows, const Tensor& relu_output, const Tensor& dx) override {
    Tensor first = dx.narrow(0, 0, rows);
    at::threshold_backward_out(first, first, relu_output.narrow(0, 0, rows), 0);
  }
  void Gelu(int64_t rows, const Tensor& pre, const Tensor& h) override {
    native::GeluForward(pool_, table_, In(pre, rows), Out(h, rows));
  }
  void GeluBackward(int64_t rows, const Tensor& pre, const Tensor& dh,
                    const Tensor& dpre) override {
    native::GeluBackward(pool_, table_, In(pre, rows), In(dh, rows), Out(dpre, rows));
  }
  void Dropout(int64_t rows, const DropoutSite& dropout, const PackedRows& ids, const Tensor& x,
               const Tensor& mask) override {
    native::DropoutForward(pool_, table_, KeyOf(dropout), IdsOf(&ids), Out(x, rows), Bytes(mask));
  }
  void DropoutBackward(int64_t rows, double rate, const Tensor& mask, const Tensor& dx) override {
    native::DropoutBackward(pool_, table_, rate, Bytes(mask), Out(dx, rows));
  }

  void Embed(const EmbedArgs& a) override {
    native::EmbedForward(pool_, table_,
                         {.rows = a.rows->count,
                          .width = a.table_VD.size(1),
                          .vocabulary = a.table_VD.size(0),
                          .ids = a.rows->tokens,
                          .row_ids = IdsOf(a.rows),
                          .table = In(a.table_VD, a.table_VD.size(0)),
                          .scale = static_cast<float>(a.scale),
                          .positions = Floats(a.positions_PD),
                          .max_positions = a.positions_PD.size(0),
                          .dropout = KeyOf(a.dropout),
                          .x = Floats(a.x_RD),
                          .x_operand = Out(a.x_operand_RD, a.rows->count),
                          .mask = Bytes(a.mask)});
  }
  void EmbedBackward(const EmbedGradArgs& a) override {
    native::EmbedBackwardArgs args{.rows = a.rows->count,
                                   .width = a.dx_RD.size(1),
                                   .index = a.rows->tokens,
                                   .num_indices = a.dtable_VD.size(0),
                                   .dx = Floats(a.dx_RD),
                                   .rate = a.dropout_rate,
                                   .mask = Bytes(a.mask),
                                   .scale = static_cast<float>(a.scale),
                                   .grad = Floats(a.dtable_VD)};
    native::EmbedBackward(pool_, table_, args, scratch_);
    if (!a.dpositions_PD.defined()) return;
    args.index = reinterpret_cast<const int32_t*>(a.rows->positions);
    args.num_indices = a.dpositions_PD.size(0);
    args.scale = 1.0f;
    args.grad = Floats(a.dpositions_PD);
    native::EmbedBackward(pool_, table_, args, scratch_);
  }

  LossSums CrossEntropy(const CrossEntropyArgs& a) override {
    LossSums sums;
    const native::PackedWeight& weight = PackedOf(*a.weight_VD);
    const int64_t classes = weight.out();
    ReserveLogits(std::min(kLogitRows, a.rows), classes, a.dhidden_RD.defined());
    for (int64_t begin = 0; begin < a.rows; begin += kLogitRows) {
      const int64_t rows = std::min(kLogitRows, a.rows - begin);
      const Tensor hidden = a.hidden_RD.narrow(0, begin, rows);
      native::LinearForward(pool_, table_, In(hidden, rows), weight, nullptr, /*relu=*/false,
                            Out(logits_, rows));
      native::CrossEntropyArgs args{.rows = rows,
                                    .vocabulary = classes,
                                    .logits = Floats(logits_),
                                    .stride = logits_.stride(0),
                                    .targets = a.labels + begin,
                                    .smoothing = a.smoothing,
                                    .scale = static_cast<float>(a.scale),
                                    .nll = row_nll_.data(),
                                    .loss = row_loss_.data()};
      if (a.dhidden_RD.defined()) args.d_logits = Out(dlogits_, rows);
      native::CrossEntropyRows(pool_, table_, args);
      for (int64_t r = 0; r < rows; ++r) {
        sums.nll += row_nll_[r];
        sums.loss += row_loss_[r];
      }
      if (a.row_nll != nullptr) std::copy_n(row_nll_.data(), rows, a.row_nll + begin);
      if (!a.dhidden_RD.defined()) continue;
      native::LinearBackwardInput(pool_, table_, In(dlogits_, rows), weight, nullptr,
                                  /*accumulate=*/false,
                                  Out(a.dhidden_RD.narrow(0, begin, rows), rows));
      native::LinearBackwardWeight(pool_, table_, In(dlogits_, rows), In(hidden, rows),
                                   Floats(a.dweight_VD), nullptr, scratch_);
    }
    return sums;
  }
  void LogSoftmax(int64_t rows, const Tensor& logits) override {
    native::LogSoftmaxRows(pool_, table_, rows, logits.size(1), Floats(logits), logits.stride(0),
                           Floats(logits), logits.stride(0));
  }

  void Adam(const AdamArgs& a) override {
    native::AdamStep(pool_, table_,
                     {.learning_rate = a.rate,
                      .beta1 = a.beta1,
                      .beta2 = a.beta2,
                      .epsilon = a.epsilon,
                      .weight_decay = a.weight_decay,
                      .step = a.step,
                      .gradient_scale = static_cast<float>(a.gradient_scale),
                      .convention = a.fairseq_epsilon ? native::AdamConvention::kFairseq
                                                      : native::AdamConvention::kTorch},
                     a.weights.numel(), Floats(a.weights), Floats(a.gradient), Floats(a.moment1),
                     Floats(a.moment2));
  }
  void SumSquares(const Tensor& x, std::span<double> sums) override {
    native::SumSquares(pool_, table_, Floats(x), x.numel(), sums);
  }
  void Add(const Tensor& y, const Tensor& x) override {
    native::Add(pool_, table_, Floats(x), Floats(y), y.numel());
  }
  void Copy(int64_t rows, const Tensor& x, const Tensor& y) override {
    native::Cast(pool_, table_, In(x, rows), Out(y, rows));
  }

 private:
  static native::AttentionShape ShapeOf(const AttentionArgs& a) {
    return {.num_sentences = a.queries->num_sentences,
            .q_offsets = a.queries->offsets,
            .k_offsets = a.keys->offsets,
            .heads = a.heads,
            .head_dim = static_cast<int>(a.q_RD.size(1) / a.heads),
            .causal = a.causal};
  }
  // The first `rows` rows of x in float32: x itself, or a copy that the next call overwrites.
  Tensor AsFloats(int64_t rows, const Tensor& x) {
    if (x.scalar_type() == at::kFloat) return x;
    const int64_t size = rows * x.size(1);
    if (!floats_.defined() || floats_.numel() < size)
      floats_ = at::empty({size}, ResidualOptions());
    const Tensor floats = floats_.narrow(0, 0, size).view({rows, x.size(1)});
    native::Cast(pool_, table_, In(x, rows), Out(floats, rows));
    return floats;
  }
  // Buffers of one chunk of the output layer. In float32 the gradient overwrites the logits.
  void ReserveLogits(int64_t rows, int64_t classes, bool gradients) {
    if (!logits_.defined() || logits_.size(0) < rows || logits_.size(1) != classes) {
      logits_ = at::empty({rows, classes}, ResidualOptions());
      dlogits_ = Tensor();
      row_nll_.resize(rows);
      row_loss_.resize(rows);
    }
    if (!gradients || dlogits_.defined()) return;
    dlogits_ =
        operand_ == at::kFloat ? logits_ : at::empty({logits_.size(0), classes}, OperandOptions());
  }

  at::ScalarType operand_;
  const native::KernelTable& table_;
  native::ThreadPool pool_;
  native::Scratch scratch_;
  std::shared_ptr<std::atomic<int64_t>> packed_bytes_ = std::make_shared<std::atomic<int64_t>>(0);
  Tensor logits_, dlogits_;
  Tensor floats_;  // of AsFloats
  std::vector<float> row_nll_, row_loss_;
};

}  // namespace

std::unique_ptr<Ops> MakeNativeOps(const ComputeSpec& compute) {
  return std::make_unique<NativeOps>(compute);
}

}  // namespace deepnet
