// Ops on a CPU: tensors become pointers with shapes, operations become kernels. The only algorithm
// here is the output layer, which walks the rows in chunks.
#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include <ATen/Parallel.h>

#include "parallel/base/check.h"
#include "parallel/base/philox.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/kernels/kernel_sizes.h"
#include "trainer/kernels/native/adam.h"
#include "trainer/kernels/native/attention.h"
#include "trainer/kernels/native/cpu.h"
#include "trainer/kernels/native/cross_entropy.h"
#include "trainer/kernels/native/dropout.h"
#include "trainer/kernels/native/elementwise.h"
#include "trainer/kernels/native/embedding.h"
#include "trainer/kernels/native/linear.h"
#include "trainer/kernels/native/residual_norm.h"
#include "trainer/kernels/native_args.h"

namespace deepnet {
namespace {

using at::Tensor;

// Both enums have the same numbers.
native::Isa IsaOf(Isa isa) {
  return isa == ISA_UNSPECIFIED ? native::BestIsa() : static_cast<native::Isa>(isa);
}

// The processor, and the memory of the operations.
struct NativeSession : public DeviceSession {
  explicit NativeSession(const ComputeSpec& compute)
      : cpu(std::max(1, compute.threads_per_rank()), IsaOf(compute.isa())) {}
  int64_t OwnBytes() const override { return packed_bytes + cpu.scratch.num_bytes(); }

  native::Cpu cpu;
  std::atomic<int64_t> packed_bytes = 0;  // packed copies of all living weights
};

class NativeWeight : public Weight {
 public:
  NativeWeight(Tensor master, native::Element element, bool backward,
               std::shared_ptr<NativeSession> session)
      : master_OI(std::move(master)),
        packed(session->cpu.table, master_OI.size(0), master_OI.size(1), element,
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

}  // namespace

void Convert(const Weight* weight, const native::PackedWeight*& to) {
  to = &static_cast<const NativeWeight*>(weight)->packed;
}

namespace {

namespace kernels = native;
using Device = native::Cpu;
using DeviceOps = Ops;
#include "trainer/kernels/kernel_ops.inc"

class NativeOps : public KernelOps {
 public:
  NativeOps(const ComputeSpec& compute, const std::shared_ptr<NativeSession>& session)
      : KernelOps(session, session->cpu, at::device(at::kCPU).dtype(TypeOf(compute.dtype()))),
        session_(session) {
    // LibTorch's own threads would spin for work on the cores of the pool.
    at::set_num_threads(1);
  }

  std::unique_ptr<Weight> MakeWeight(Tensor master_OI, bool backward) override {
    DEEPNET_CHECK(master_OI.is_contiguous());
    const auto element =
        has_float_operands() ? native::Element::kFloat32 : native::Element::kBfloat16;
    return std::make_unique<NativeWeight>(std::move(master_OI), element, backward, session_);
  }
  void Refresh(Weight& weight) override {
    auto& w = static_cast<NativeWeight&>(weight);
    w.packed.Pack(device_.pool, w.master_OI.const_data_ptr<float>());
  }

  void Linear(const LinearArgs& a) override { native::LinearForward(device_, ArgsOf(a)); }
  void LinearBackwardInput(const LinearInputGradArgs& a) override {
    native::LinearBackwardInput(device_, ArgsOf(a));
  }
  void LinearBackwardWeight(int64_t rows, const Tensor& dy, const Tensor& x, const Tensor& dw,
                            const Tensor& dbias) override {
    native::LinearBackwardWeight(device_, In(dy, rows), In(x, rows), Floats(dw), Floats(dbias));
  }

  void ResidualNormBackward(const ResidualNormGradArgs& a) override {
    native::ResidualNormGradArgs args = ArgsOf(a);
    args.dy_RD = In(AsFloats(a.rows, a.dy_RD), a.rows);
    native::ResidualNormBackward(device_, args);
  }
  void AddBranchBackward(int64_t rows, const Tensor& dx, double rate, const Tensor& mask,
                         const Tensor& dbranch) override {
    native::Cast(device_, In(dx, rows), Out(dbranch, rows));
    if (rate > 0) native::DropoutBackward(device_, rate, Bytes(mask), Out(dbranch, rows));
  }

  void Attention(const AttentionArgs& a) override { native::AttentionForward(device_, ArgsOf(a)); }
  void AttentionBackward(const AttentionGradArgs& g) override {
    native::AttentionBackward(device_, ArgsOf(g));
  }
  void Relu(int64_t rows, const Tensor& x) override { x.narrow(0, 0, rows).clamp_min_(0); }
  void ReluBackward(int64_t rows, const Tensor& relu_output, const Tensor& dx) override {
    Tensor first = dx.narrow(0, 0, rows);
    at::threshold_backward_out(first, first, relu_output.narrow(0, 0, rows), 0);
  }
  void Embed(const EmbedArgs& a) override { native::EmbedForward(device_, ArgsOf(a)); }
  void EmbedBackward(const EmbedGradArgs& a) override {
    const native::EmbedGradArgs args = ArgsOf(a);
    native::EmbedBackward(device_, args);
    if (a.dpositions_PD.defined()) native::EmbedBackward(device_, native::OfPositions(args));
  }

  void CrossEntropy(const CrossEntropyArgs& a) override {
    LossSums sums;
    const native::PackedWeight* weight = nullptr;
    Convert(a.weight_VD, weight);
    const int64_t classes = weight->out();
    ReserveLogits(std::min(native::kCpuLogitRows, a.rows), classes, a.dhidden_RD.defined());
    for (int64_t begin = 0; begin < a.rows; begin += native::kCpuLogitRows) {
      const int64_t rows = std::min(native::kCpuLogitRows, a.rows - begin);
      const Tensor hidden = a.hidden_RD.narrow(0, begin, rows);
      native::LinearForward(device_, {.rows = rows,
                                      .x_RI = In(hidden, rows),
                                      .weight_OI = weight,
                                      .y_RO = Out(logits_, rows)});
      native::CrossEntropyRows(device_, LossOf(a, begin, rows, row_nll_.data(), row_loss_.data()));
      for (int64_t r = 0; r < rows; ++r) {
        sums.nll += row_nll_[r];
        sums.loss += row_loss_[r];
      }
      if (a.row_nll != nullptr) std::copy_n(row_nll_.data(), rows, a.row_nll + begin);
      if (!a.dhidden_RD.defined()) continue;
      const Tensor dhidden = a.dhidden_RD.narrow(0, begin, rows);
      native::LinearBackwardInput(device_, {.rows = rows,
                                            .dy_RO = In(dlogits_, rows),
                                            .weight_OI = weight,
                                            .dx_RI = Out(dhidden, rows)});
      native::LinearBackwardWeight(device_, In(dlogits_, rows), In(hidden, rows),
                                   Floats(a.dweight_VD), nullptr);
    }
    if (a.sums != nullptr) *a.sums = sums;
  }
  void ChooseTokens(const Tensor& log_probs, const native::TokenChoices& choices) override {
    device_.pool.ParallelFor(choices.count, [&](int64_t i, int) {
      native::ChooseToken(Floats(log_probs), log_probs.size(1), log_probs.stride(0), choices, i);
    });
  }

  void InitialNormal(uint64_t seed, std::string_view name, double std, const Tensor& x) override {
    float* const out = Floats(x);
    native::ForBlocks(device_.pool, x.numel(), native::kElementsPerBlock,
                      [&](int64_t begin, int64_t end, int) {
                        const std::span values(out + begin, static_cast<size_t>(end - begin));
                        FillInitialNormal(seed, name, begin, values);
                        for (float& value : values) value *= static_cast<float>(std);
                      });
  }
  void SumSquares(std::span<const SquareSums> all) override {
    for (const SquareSums& one : all) {
      native::SumSquares(device_, Floats(one.x), one.x.numel(), one.sums);
    }
  }

 private:
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
        has_float_operands() ? logits_ : at::empty({logits_.size(0), classes}, OperandOptions());
  }

  const std::shared_ptr<NativeSession> session_;
  std::vector<float> row_nll_, row_loss_;
};

}  // namespace

std::unique_ptr<Ops> MakeNativeOps(const ComputeSpec& compute) {
  return std::make_unique<NativeOps>(compute, std::make_shared<NativeSession>(compute));
}

}  // namespace deepnet
