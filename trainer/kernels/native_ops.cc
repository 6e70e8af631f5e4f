// A thin translation: tensors become pointers with shapes, operations become kernels. The only
// algorithm here is the output layer, which walks the rows in chunks.
#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "parallel/base/check.h"
#include "parallel/base/philox.h"
#include "trainer/kernels/compute.h"
#include "trainer/kernels/native/adam.h"
#include "trainer/kernels/native/attention.h"
#include "trainer/kernels/native/cross_entropy.h"
#include "trainer/kernels/native/dropout.h"
#include "trainer/kernels/native/elementwise.h"
#include "trainer/kernels/native/embedding.h"
#include "trainer/kernels/native/gpu_shapes.h"
#include "trainer/kernels/native/isa.h"
#include "trainer/kernels/native/linear.h"
#include "trainer/kernels/native/residual_norm.h"
#include "trainer/kernels/native/scratch.h"
#include "trainer/kernels/native/thread_pool.h"
#include "trainer/kernels/native_args.h"

namespace deepnet {
namespace {

using at::Tensor;

// Counts the memory of the operations.
struct NativeSession : public DeviceSession {
  int64_t OwnBytes() const override { return packed_bytes + scratch.num_bytes(); }

  native::Scratch scratch;
  std::atomic<int64_t> packed_bytes = 0;  // packed copies of all living weights
};

class NativeWeight : public Weight {
 public:
  NativeWeight(const native::KernelTable& table, Tensor master, native::Element element,
               bool backward, std::shared_ptr<NativeSession> session)
      : master_OI(std::move(master)),
        packed(table, master_OI.size(0), master_OI.size(1), element,
               backward ? native::PackedFor::kTraining : native::PackedFor::kInference),
        session_(std::move(session)) {
    session_->packed_bytes += packed.bytes();
  }
  ~NativeWeight() override { session_->packed_bytes -= packed.bytes(); }

  Tensor master_OI;
  native::PackedWeight packed;

 private:
  std::shared_ptr<NativeSession> session_;
};

const native::PackedWeight& PackedOf(const Weight& w) {
  return static_cast<const NativeWeight&>(w).packed;
}

// Both enums have the same numbers.
native::Isa IsaOf(Isa isa) {
  return isa == ISA_UNSPECIFIED ? native::BestIsa() : static_cast<native::Isa>(isa);
}

class NativeOps : public Ops {
 public:
  NativeOps(const ComputeSpec& compute, const std::shared_ptr<NativeSession>& session)
      : Ops(session),
        session_(session),
        scratch_(session->scratch),
        operand_(compute.dtype() == BFLOAT16 ? at::kBFloat16 : at::kFloat),
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

  std::unique_ptr<Weight> MakeWeight(Tensor master_OI, bool backward) override {
    DEEPNET_CHECK(master_OI.is_contiguous());
    const auto element =
        operand_ == at::kBFloat16 ? native::Element::kBfloat16 : native::Element::kFloat32;
    return std::make_unique<NativeWeight>(table_, std::move(master_OI), element, backward,
                                          session_);
  }
  void Refresh(Weight& weight) override {
    auto& w = static_cast<NativeWeight&>(weight);
    w.packed.Pack(pool_, w.master_OI.const_data_ptr<float>());
  }

  void Linear(const LinearArgs& a) override {
    native::LinearForward(pool_, table_, In(a.x_RI, a.rows), PackedOf(*a.weight_OI),
                          Floats(a.bias_O), a.relu, Out(a.y_RO, a.rows));
  }
  void LinearBackwardInput(const LinearInputGradArgs& a) override {
    const native::ConstMatrix positive = In(a.relu_output_RI, a.rows);
    native::LinearBackwardInput(pool_, table_, In(a.dy_RO, a.rows), PackedOf(*a.weight_OI),
                                a.relu_output_RI.defined() ? &positive : nullptr, a.accumulate,
                                Out(a.dx_RI, a.rows));
  }
  void LinearBackwardWeight(int64_t rows, const Tensor& dy, const Tensor& x, const Tensor& dw,
                            const Tensor& dbias) override {
    native::LinearBackwardWeight(pool_, table_, In(dy, rows), In(x, rows), Floats(dw),
                                 Floats(dbias), scratch_);
  }

  void ResidualNorm(const ResidualNormArgs& a) override {
    const native::ResidualNormForwardArgs args = ArgsOf(a);
    if (a.over_rows) return native::BatchNormForward(pool_, table_, args, scratch_);
    native::ResidualNormForward(pool_, table_, args);
  }
  void ResidualNormBackward(const ResidualNormGradArgs& a) override {
    const native::ResidualNormBackwardArgs args = ArgsOf(a, AsFloats(a.rows, a.dy_RD));
    if (a.over_rows) return native::BatchNormBackward(pool_, table_, args, scratch_);
    native::ResidualNormBackward(pool_, table_, args, scratch_);
  }
  void NormOutput(int64_t rows, const NormState& state, const Tensor& gain, const Tensor& bias,
                  const Tensor& y) override {
    native::NormOutput(pool_, table_, In(state.xhat_RD, rows), Floats(gain), Floats(bias),
                       Out(y, rows));
  }
  void AddBranchBackward(int64_t rows, const Tensor& dx, double rate, const Tensor& mask,
                         const Tensor& dbranch) override {
    native::Cast(pool_, table_, In(dx, rows), Out(dbranch, rows));
    if (rate > 0) native::DropoutBackward(pool_, table_, rate, Bytes(mask), Out(dbranch, rows));
  }

  void ScaleShift(const ScaleShiftArgs& a) override {
    native::ScaleShiftForward(pool_, table_, ArgsOf(a), scratch_);
  }
  void ScaleShiftBackward(const ScaleShiftGradArgs& a) override {
    native::ScaleShiftBackward(pool_, table_, ArgsOf(a), scratch_);
  }

  void Attention(const AttentionArgs& a) override {
    native::AttentionForward(pool_, table_, ArgsOf(a), scratch_);
  }
  void AttentionBackward(const AttentionGradArgs& g) override {
    native::AttentionBackward(pool_, table_, ArgsOf(g), scratch_);
  }
  void DecodeAttention(const DecodeAttentionArgs& a) override {
    native::DecodeAttention(pool_, table_, ArgsOf(a), scratch_);
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
    native::DropoutForward(pool_, table_, dropout, IdsOf(&ids), Out(x, rows), Bytes(mask));
  }
  void DropoutBackward(int64_t rows, double rate, const Tensor& mask, const Tensor& dx) override {
    native::DropoutBackward(pool_, table_, rate, Bytes(mask), Out(dx, rows));
  }

  void Embed(const EmbedArgs& a) override { native::EmbedForward(pool_, table_, ArgsOf(a)); }
  void EmbedBackward(const EmbedGradArgs& a) override {
    native::EmbedBackward(pool_, table_, ArgsOf(a), scratch_);
    if (!a.dpositions_PD.defined()) return;
    native::EmbedBackward(pool_, table_, PositionArgsOf(a), scratch_);
  }

  void CrossEntropy(const CrossEntropyArgs& a) override {
    LossSums sums;
    const native::PackedWeight& weight = PackedOf(*a.weight_VD);
    const int64_t classes = weight.out();
    ReserveLogits(std::min(native::kCpuLogitRows, a.rows), classes, a.dhidden_RD.defined());
    for (int64_t begin = 0; begin < a.rows; begin += native::kCpuLogitRows) {
      const int64_t rows = std::min(native::kCpuLogitRows, a.rows - begin);
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
    if (a.sums != nullptr) *a.sums = sums;
  }
  void LogSoftmax(int64_t rows, const Tensor& logits) override {
    native::LogSoftmaxRows(pool_, table_, rows, logits.size(1), Floats(logits), logits.stride(0),
                           Floats(logits), logits.stride(0));
  }
  void AverageLogProbs(int n, const Tensor& x, const Tensor& y) override {
    native::AverageLogProbs(pool_, y.numel(), n, Floats(x), Floats(y));
  }
  void ChooseTokens(const Tensor& log_probs, const native::TokenChoices& choices) override {
    pool_.ParallelFor(choices.count, [&](int64_t i, int) {
      native::ChooseToken(Floats(log_probs), log_probs.size(1), log_probs.stride(0), choices, i);
    });
  }

  void InitialNormal(uint64_t seed, std::string_view name, double std, const Tensor& x) override {
    float* const out = Floats(x);
    native::ForBlocks(pool_, x.numel(), native::kElementsPerBlock,
                      [&](int64_t begin, int64_t end, int) {
                        const std::span values(out + begin, static_cast<size_t>(end - begin));
                        FillInitialNormal(seed, name, begin, values);
                        for (float& value : values) value *= static_cast<float>(std);
                      });
  }
  void Adam(const AdamArgs& a) override { native::AdamStep(pool_, table_, a.rule, RangeOf(a)); }
  void SumSquares(std::span<const SquareSums> all) override {
    for (const SquareSums& one : all) {
      native::SumSquares(pool_, table_, Floats(one.x), one.x.numel(), one.sums);
    }
  }
  void Scale(int64_t rows, const Tensor& x, double factor) override {
    x.narrow(0, 0, rows).mul_(factor);
  }
  void AddScaled(const AddScaledArgs& a) override {
    a.y_RD.narrow(0, 0, a.rows).add_(a.x_RD.narrow(0, 0, a.rows), a.factor_1.item());
  }
  void AddScaledBackward(const AddScaledGradArgs& a) override {
    const Tensor dy = a.dy_RD.narrow(0, 0, a.rows);
    a.dx_RD.narrow(0, 0, a.rows).add_(dy, a.factor_1.item());
    a.dfactor_1.add_((dy * a.x_RD.narrow(0, 0, a.rows)).sum());
  }
  void Add(const Tensor& y, const Tensor& x) override {
    native::Add(pool_, table_, Floats(x), Floats(y), y.numel());
  }
  void Copy(int64_t rows, const Tensor& x, const Tensor& y) override {
    native::Cast(pool_, table_, In(x, rows), Out(y, rows));
  }

 private:
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

  const std::shared_ptr<NativeSession> session_;
  native::Scratch& scratch_;
  at::ScalarType operand_;
  const native::KernelTable& table_;
  native::ThreadPool pool_;
  Tensor logits_, dlogits_;
  Tensor floats_;  // of AsFloats
  std::vector<float> row_nll_, row_loss_;
};

}  // namespace

std::unique_ptr<Ops> MakeNativeOps(const ComputeSpec& compute) {
  return std::make_unique<NativeOps>(compute, std::make_shared<NativeSession>());
}

}  // namespace deepnet
