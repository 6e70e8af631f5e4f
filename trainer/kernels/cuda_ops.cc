// Ops on a GPU: tensors become pointers with shapes, operations become kernels and products on the
// session's stream. Nothing here waits but SumSquares, and what writes to the host where no room
// for results is left. Once buffers have grown no device memory is taken: results of LibTorch's
// attention are blocks that its allocator holds already.
#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>

#include "parallel/base/check.h"
#include "parallel/base/philox.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/compute.h"
#include "trainer/kernels/cuda/gpu_stream.h"
#include "trainer/kernels/cuda/host_copies.h"
#include "trainer/kernels/cuda/kernels.h"
#include "trainer/kernels/cuda/launch_graphs.h"
#include "trainer/kernels/cuda/linear.h"
#include "trainer/kernels/cuda_session.h"
#include "trainer/kernels/kernel_sizes.h"
#include "trainer/kernels/native_args.h"
#include "trainer/kernels/traced_ops.h"

namespace deepnet {
namespace {

using at::Tensor;

// The copies in operand type of all weights in one flat tensor: a weight's copy lies as far from
// the beginning as the weight does.
struct OperandCopy {
  Tensor weights, operands;  // flat
  bool stale = true;         // still to be converted
};

class GpuWeight : public Weight {
 public:
  GpuWeight(Tensor master, OperandCopy* operand_copy)
      : master_OI(std::move(master)), copy(operand_copy) {
    if (copy == nullptr) return;
    operand_OI = copy->operands.narrow(0, master_OI.storage_offset(), master_OI.numel())
                     .view(master_OI.sizes());
  }

  Tensor master_OI;
  OperandCopy* copy;  // null: operands are float32, and products read the master
  Tensor operand_OI;  // a view of copy->operands
};

// The first `rows` rows of x [.., heads * head_dim] as LibTorch's attention takes them.
Tensor ByHeads(const Tensor& x_RD, int64_t rows, int heads) {
  return x_RD.narrow(0, 0, rows).view({rows, heads, x_RD.size(1) / heads});
}

// Returns the offsets of `side` without the empty sentences at the end of both sides.
Tensor FirstOffsets(const GpuRowIndex& side, const GpuRowIndex& other) {
  return side.offsets.narrow(0, 0, std::max(side.num_sentences, other.num_sentences) + 1);
}

namespace kernels = cuda;
using Device = cuda::GpuStream;
using DeviceOps = TracedOps;
#include "trainer/kernels/kernel_ops.inc"

class CudaOps : public KernelOps {
 public:
  CudaOps(const std::shared_ptr<CudaSession>& session, at::ScalarType operand, bool flash)
      : KernelOps(session, session->gpu(), at::device(session->device()).dtype(operand)),
        flash_(flash),
        gpu_(session->gpu()),
        results_(session->results()),
        matmul_(gpu_) {
    session->BeforePass([this] {
      for (OperandCopy& copy : copies_) Convert(copy);
    });
    if (!flash) return;
    // LibTorch's attention adds the gradient of queries in a fixed order only where the process
    // asks for it, which by itself would also fill all new tensors.
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }

  void StartTrace() override { gpu_.StartTiming(); }
  std::vector<TimedKernel> StopTrace() override { return gpu_.StopTiming(); }

  std::unique_ptr<Weight> MakeWeight(Tensor master_OI, bool) override {
    DEEPNET_CHECK(master_OI.is_contiguous());
    OperandCopy* const copy = has_float_operands() ? nullptr : CopyOf(master_OI);
    return std::make_unique<GpuWeight>(std::move(master_OI), copy);
  }
  // All weights move at once: they are converted by one kernel, when a product first needs one.
  void Refresh(Weight& weight) override {
    const auto& w = static_cast<GpuWeight&>(weight);
    if (w.copy != nullptr) w.copy->stale = true;
  }

  void Linear(const LinearArgs& a) override {
    const Tensor& weight = OperandOf(*a.weight_OI);
    matmul_.Run({.a = In(a.x_RI, a.rows),
                 .b = In(weight, weight.size(0)),
                 .transpose_b = true,
                 .y = Out(a.y_RO, a.rows),
                 .bias = BiasOf(*a.weight_OI, a.bias_O, a.y_RO.scalar_type()),
                 .relu = a.relu});
  }
  void LinearBackwardInput(const LinearInputGradArgs& a) override {
    const Tensor& weight = OperandOf(*a.weight_OI);
    matmul_.Run({.a = In(a.dy_RO, a.rows),
                 .b = In(weight, weight.size(0)),
                 .y = Out(a.dx_RI, a.rows),
                 .accumulate = a.accumulate});
    if (a.relu_output_RI.defined()) ReluBackward(a.rows, a.relu_output_RI, a.dx_RI);
  }
  void LinearBackwardWeight(int64_t rows, const Tensor& dy, const Tensor& x, const Tensor& dw,
                            const Tensor& dbias) override {
    matmul_.Run({.a = In(dy, rows),
                 .transpose_a = true,
                 .b = In(x, rows),
                 .y = Out(dw, dw.size(0)),
                 .accumulate = true});
    if (dbias.defined()) cuda::AddBiasGradient(gpu_, In(dy, rows), Floats(dbias));
  }

  void ResidualNormBackward(const ResidualNormGradArgs& a) override {
    native::ResidualNormGradArgs args = ArgsOf(a);
    if (a.over_rows) args.dy_RD = In(AsFloats(a.rows, a.dy_RD), a.rows);
    cuda::ResidualNormBackward(gpu_, args);
  }
  void AddBranchBackward(int64_t rows, const Tensor& dx, double rate, const Tensor& mask,
                         const Tensor& dbranch) override {
    cuda::AddBranchBackward(gpu_, In(dx, rows), rate, Bytes(mask), Out(dbranch, rows));
  }

  void Attention(const AttentionArgs& a) override {
    if (flash_) return FlashAttention(a);
    cuda::AttentionForward(gpu_, ArgsOf(a));
  }
  void AttentionBackward(const AttentionGradArgs& g) override {
    if (g.forward.queries->count == 0) return ZeroKeyGradients(g);
    if (flash_) return FlashAttentionBackward(g);
    cuda::AttentionBackward(gpu_, ArgsOf(g));
  }
  void Relu(int64_t rows, const Tensor& x) override { cuda::ReluForward(gpu_, Out(x, rows)); }
  void ReluBackward(int64_t rows, const Tensor& relu_output, const Tensor& dx) override {
    cuda::ReluBackward(gpu_, In(relu_output, rows), Out(dx, rows));
  }
  bool HasReluBackwardWithBias() const override { return true; }
  void ReluBackwardWithBias(int64_t rows, const Tensor& relu_output, const Tensor& dx,
                            const Tensor& dbias) override {
    cuda::ReluBackwardWithBias(gpu_, In(relu_output, rows), Out(dx, rows), Floats(dbias));
  }
  void Embed(const EmbedArgs& a) override {
    const cuda::WithoutGraphs checked(gpu_);
    if (a.rows->index != nullptr) {  // null: a decoding step's, whose ids were chosen here
      const GpuRowIndex& index = IndexOf(*a.rows);
      DEEPNET_CHECK_LT(index.last_token, a.table_VD.size(0))
          << "a row's id is not in the vocabulary";
      DEEPNET_CHECK_LT(index.last_position, a.positions_PD.size(0))
          << "a row's position is not in the table";
    }
    cuda::EmbedForward(gpu_, ArgsOf(a));
  }
  void EmbedBackward(const EmbedGradArgs& a) override {
    const cuda::WithoutGraphs sized(gpu_);
    const GpuRowIndex& index = IndexOf(*a.rows);
    const native::EmbedGradArgs args = ArgsOf(a);
    cuda::EmbedBackward(gpu_, args, index.tokens);
    if (a.dpositions_PD.defined()) {
      cuda::EmbedBackward(gpu_, native::OfPositions(args), index.positions);
    }
  }

  void CrossEntropy(const CrossEntropyArgs& a) override;
  void ChooseTokens(const Tensor& log_probs, const native::TokenChoices& choices) override {
    if (choices.count == 0) return;
    native::TokenChoices here = choices;
    here.chosen =
        results_.Add(std::span(choices.chosen, static_cast<size_t>(choices.count * choices.k)));
    cuda::ChooseTokens(gpu_, Floats(log_probs), log_probs.size(1), log_probs.stride(0), here);
  }

  void InitialNormal(uint64_t seed, std::string_view name, double std, const Tensor& x) override {
    cuda::InitialNormal(gpu_, MakeKey(seed, RandomPurpose::kInitialWeight), HashName(name),
                        {Floats(x), static_cast<size_t>(x.numel())}, static_cast<float>(std));
  }
  void SumSquares(std::span<const SquareSums> all) override;
  void Scale(int64_t rows, const Tensor& x, double factor) override {
    const Tensor matrix = x.dim() == 1 ? x.unsqueeze(1) : x;
    cuda::Scale(gpu_, static_cast<float>(factor), Out(matrix, rows));
  }
  void AddScaled(const AddScaledArgs& a) override {
    cuda::AddScaled(gpu_, In(a.x_RD, a.rows), Floats(a.factor_1), Out(a.y_RD, a.rows));
  }
  void AddScaledBackward(const AddScaledGradArgs& a) override {
    cuda::AddScaledBackward(gpu_, In(a.dy_RD, a.rows), In(a.x_RD, a.rows), Floats(a.factor_1),
                            Out(a.dx_RD, a.rows), Floats(a.dfactor_1));
  }
  void Zero(const Tensor& x) override;

 private:
  // x [capacity, ..] = 0 in the rows behind the first `rows`.
  static void ZeroPadding(int64_t rows, int64_t capacity, const Tensor& x) {
    if (rows < capacity) x.narrow(0, rows, capacity - rows).zero_();
  }
  const Tensor& OperandOf(const Weight& w) {
    auto& weight = static_cast<const GpuWeight&>(w);
    if (weight.copy == nullptr) return weight.master_OI;
    Convert(*weight.copy);
    return weight.operand_OI;
  }
  void Convert(OperandCopy& copy) {
    if (!std::exchange(copy.stale, false)) return;
    cuda::Cast(gpu_, In(copy.weights.unsqueeze(0), 1), Out(copy.operands.unsqueeze(0), 1));
  }
  OperandCopy* CopyOf(const Tensor& master);
  const void* BiasOf(const Weight& w, const Tensor& bias, at::ScalarType type);
  void ReserveLogits(int64_t rows, int64_t classes);
  void FlashAttention(const AttentionArgs& a);
  void FlashAttentionBackward(const AttentionGradArgs& g);
  // y = x, [rows, heads, head_dim], in the first rows of y [.., heads * head_dim].
  void CopyHeads(const Tensor& x, const Tensor& y_RD) {
    const int64_t rows = x.size(0);
    cuda::Cast(gpu_, In(x.view({rows, x.size(1) * x.size(2)}), rows), Out(y_RD, rows));
  }
  // Writes the gradients of keys that no query reads.
  static void ZeroKeyGradients(const AttentionGradArgs& g) {
    for (const Tensor& x_RD : {g.dk_RD, g.dv_RD}) x_RD.narrow(0, 0, g.forward.keys->count).zero_();
  }

  const bool flash_;
  cuda::GpuStream& gpu_;        // of the session
  cuda::ResultQueue& results_;  // likewise
  cuda::Matmul matmul_;
  std::deque<OperandCopy> copies_;  // one for each flat tensor of weights
  Tensor row_losses_;               // [2, rows of logits]: nll and loss of a chunk
  LossSums unwanted_;
};

// Returns the copy of the flat tensor that `master` is a part of.
OperandCopy* CudaOps::CopyOf(const Tensor& master) {
  for (OperandCopy& copy : copies_) {
    if (copy.weights.is_alias_of(master)) return &copy;
  }
  const int64_t elements = static_cast<int64_t>(master.storage().nbytes() / sizeof(float));
  const Tensor flat = master.as_strided({elements}, {1}, 0);
  copies_.push_back({flat, at::empty({elements}, OperandOptions())});
  return &copies_.back();
}

// Returns `bias`, a vector of master weights, as a product adds it to an output of `type`: biases
// are converted with the weights of their flat tensor. What does not lie there, or not as products
// want it (behind the single factors of some schemes), is copied.
const void* CudaOps::BiasOf(const Weight& w, const Tensor& bias, at::ScalarType type) {
  if (!bias.defined()) return nullptr;
  const OperandCopy* const copy = static_cast<const GpuWeight&>(w).copy;
  const void* there = nullptr;
  if (type == at::kFloat) {
    there = bias.const_data_ptr();
  } else if (copy->weights.is_alias_of(bias)) {
    there = copy->operands.narrow(0, bias.storage_offset(), bias.numel()).const_data_ptr();
  }
  if (there != nullptr && cuda::HasAlignedBias(there)) return there;
  const native::ConstMatrix from = In(bias.unsqueeze(0), 1);
  void* const aligned = gpu_.Scratch(from.cols * int64_t{sizeof(float)});
  cuda::Cast(gpu_, from, {aligned, ElementOf(type), 1, from.cols, from.cols});
  return aligned;
}

void CudaOps::Zero(const Tensor& x) {
  cuda::LaunchGatherer* const graphs = gpu_.graphs();
  if (graphs == nullptr) {
    x.zero_();
    return;
  }
  DEEPNET_CHECK(x.is_contiguous());
  void* const memory = x.data_ptr();
  const size_t bytes = x.nbytes();
  graphs->AddToKey(memory);
  graphs->AddToKey(bytes);
  graphs->Add([=, this] {
    gpu_.Launching();
    gpu_.Launched("Zero", cudaMemsetAsync(memory, 0, bytes, gpu_.get()));
  });
}

// The logarithms of sums, [heads, rows], lie at the beginning of a.log_sum_exp_RH.
void CudaOps::FlashAttention(const AttentionArgs& a) {
  DEEPNET_CHECK(a.dropout.rate == 0.0) << "attention weights are dropped";
  if (a.queries->count == 0) return;
  const cuda::WithoutGraphs by_libtorch(gpu_);
  const GpuRowIndex& queries = IndexOf(*a.queries);
  const GpuRowIndex& keys = IndexOf(*a.keys);
  const int64_t rows = queries.rows, key_rows = keys.rows;
  gpu_.Launching();
  const auto [context, log_sum_exp, random_state, unused, weights] = at::_flash_attention_forward(
      ByHeads(a.q_RD, rows, a.heads), ByHeads(a.k_RD, key_rows, a.heads),
      ByHeads(a.v_RD, key_rows, a.heads), FirstOffsets(queries, keys), FirstOffsets(keys, queries),
      queries.longest, keys.longest, /*dropout_p=*/0.0, a.causal, /*return_debug_mask=*/false);
  gpu_.Launched("FlashAttentionForward", cudaSuccess);
  CopyHeads(context, a.context_RD);
  ZeroPadding(rows, a.queries->count, a.context_RD);
  if (!a.log_sum_exp_RH.defined()) return;
  const Tensor kept = a.log_sum_exp_RH.view({1, -1}).narrow(1, 0, a.heads * rows);
  cuda::Cast(gpu_, In(log_sum_exp.view({1, a.heads * rows}), 1), Out(kept, 1));
}

void CudaOps::FlashAttentionBackward(const AttentionGradArgs& g) {
  const AttentionArgs& a = g.forward;
  const cuda::WithoutGraphs by_libtorch(gpu_);
  const GpuRowIndex& queries = IndexOf(*a.queries);
  const GpuRowIndex& keys = IndexOf(*a.keys);
  const int64_t rows = queries.rows, key_rows = keys.rows;
  const Tensor log_sum_exp =
      a.log_sum_exp_RH.view({-1}).narrow(0, 0, a.heads * rows).view({a.heads, rows});
  gpu_.Launching();
  const auto [dq, dk, dv] = at::_flash_attention_backward(
      ByHeads(g.dcontext_RD, rows, a.heads), ByHeads(a.q_RD, rows, a.heads),
      ByHeads(a.k_RD, key_rows, a.heads), ByHeads(a.v_RD, key_rows, a.heads),
      ByHeads(a.context_RD, rows, a.heads), log_sum_exp, FirstOffsets(queries, keys),
      FirstOffsets(keys, queries), queries.longest, keys.longest, /*dropout_p=*/0.0, a.causal,
      /*rng_state=*/{}, /*unused=*/{});
  gpu_.Launched("FlashAttentionBackward", cudaSuccess);
  CopyHeads(dq, g.dq_RD);
  CopyHeads(dk, g.dk_RD);
  CopyHeads(dv, g.dv_RD);
  ZeroPadding(rows, a.queries->count, g.dq_RD);
  ZeroPadding(key_rows, a.keys->count, g.dk_RD);
  ZeroPadding(key_rows, a.keys->count, g.dv_RD);
}

// Logits of a chunk of rows, their loss and gradient in one launch, and two products.
void CudaOps::CrossEntropy(const CrossEntropyArgs& a) {
  const cuda::WithoutGraphs sized(gpu_);
  const Tensor& weight = OperandOf(*a.weight_VD);
  const int64_t classes = weight.size(0);
  int64_t all_rows = a.rows;
  if (a.index != nullptr) {
    const auto& index = static_cast<const GpuRowIndex&>(*a.index);
    DEEPNET_CHECK_LT(index.last_label, classes) << "a row's target is not in the vocabulary";
    all_rows = std::min(all_rows, index.rows);
    if (a.dhidden_RD.defined()) ZeroPadding(all_rows, a.rows, a.dhidden_RD);
  }
  // A function of the run: hidden_RD has the capacity's rows.
  ReserveLogits(native::LogitRows(classes, a.hidden_RD.size(0)), classes);
  const native::ConstMatrix weights = In(weight, classes);
  static_assert(sizeof(LossSums) == 2 * sizeof(double));
  auto* const wanted = reinterpret_cast<double*>(a.sums != nullptr ? a.sums : &unwanted_);
  results_.Reserve(cuda::UploadBlock::Padded(sizeof(LossSums)) + UploadBytes(a.rows));
  double* const sums = results_.Add(std::span(wanted, 2));
  float* const row_nll = a.row_nll == nullptr
                             ? nullptr
                             : results_.Add(std::span(a.row_nll, static_cast<size_t>(a.rows)));
  const int64_t most = native::LogitRows(classes);
  for (int64_t begin = 0; begin < all_rows; begin += most) {
    const int64_t rows = std::min(most, all_rows - begin);
    const native::ConstMatrix hidden = In(a.hidden_RD.narrow(0, begin, rows), rows);
    matmul_.Run({.a = hidden, .b = weights, .transpose_b = true, .y = Out(logits_, rows)});
    float* const nll = row_nll == nullptr ? Floats(row_losses_) : row_nll + begin;
    float* const loss = Floats(row_losses_) + logits_.size(0);
    cuda::CrossEntropyRows(gpu_, LossOf(a, begin, rows, nll, loss));
    cuda::SumLosses(gpu_, rows, loss, nll, sums);
    if (!a.dhidden_RD.defined()) continue;
    const native::ConstMatrix dlogits = In(dlogits_, rows);
    matmul_.Run({.a = dlogits, .b = weights, .y = Out(a.dhidden_RD.narrow(0, begin, rows), rows)});
    matmul_.Run({.a = dlogits,
                 .transpose_a = true,
                 .b = hidden,
                 .y = Out(a.dweight_VD, classes),
                 .accumulate = true});
  }
}

void CudaOps::ReserveLogits(int64_t rows, int64_t classes) {
  if (logits_.defined() && logits_.size(1) == classes && logits_.size(0) >= rows) return;
  logits_ = dlogits_ = row_losses_ = Tensor();
  constexpr int64_t kStep = native::kLogitAlignment;
  const int64_t stride = (classes + kStep - 1) / kStep * kStep;
  const auto make = [&](const at::TensorOptions& options) {
    return at::empty({rows, stride}, options).narrow(1, 0, classes);
  };
  logits_ = make(ResidualOptions());
  // In float32 the gradient overwrites the logits.
  dlogits_ = has_float_operands() ? logits_ : make(OperandOptions());
  row_losses_ = at::empty({2 * rows}, ResidualOptions());
}

void CudaOps::SumSquares(std::span<const SquareSums> all) {
  std::vector<cuda::FloatRange> ranges;
  size_t blocks = 0;
  for (const SquareSums& one : all) {
    ranges.push_back({Floats(one.x), one.x.numel()});
    blocks += one.sums.size();
  }
  std::vector<double> sums(blocks);
  if (blocks > 0) cuda::SumSquares(gpu_, ranges, results_.Add(std::span(sums)));
  results_.Wait();
  auto next = sums.begin();
  for (const SquareSums& one : all) {
    std::copy_n(next, one.sums.size(), one.sums.begin());
    next += static_cast<ptrdiff_t>(one.sums.size());
  }
}

}  // namespace

std::unique_ptr<Ops> MakeCudaOps(at::Device device, at::ScalarType operand, bool check_launches,
                                 AttentionKernel attention, bool graphs) {
  DEEPNET_CHECK(attention != FLASH || operand != at::kFloat);
  return std::make_unique<CudaOps>(std::make_shared<CudaSession>(device, check_launches, graphs),
                                   operand, attention == FLASH);
}

}  // namespace deepnet
