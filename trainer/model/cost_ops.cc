// Bytes are those of rows of activations and matrices of products, once each but where it is said
// that they are read again. Vectors of features, offsets and statistics of rows count nothing.
#include "trainer/model/cost_ops.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"

#include "parallel/base/check.h"
#include "trainer/kernels/aten.h"
#include "trainer/kernels/kernel_sizes.h"

namespace deepnet {
namespace {

using at::Tensor;
using native::kFlashTile;

constexpr double kFloat = 4;         // bytes
constexpr double kXhat = kFloat;     // bytes of a normalised element, kept for the backward pass
constexpr int64_t kManyRows = 1024;  // among which a token or a position is frequent
constexpr double kRunSums = 2 * kFloat / native::kNormRunRows;  // bytes: two sums of a column
constexpr int64_t kBiasAlignment = 16;  // bytes: where cuBLASLt reads biases
constexpr double kFlashBackward = 2.5;  // operations of its backward pass, of those of its forward
// The shares of peaks that kernels of attention reach: flash attention's backward pass of what its
// forward pass does; this project's own, without tensor cores, of float32 peak. The last is a
// guess.
constexpr double kFlashBackwardShare = 0.8;
constexpr double kOwnShare = 0.25;
constexpr double kOwnBackward = 3.5;

using Kernels = std::vector<KernelWork>;

// The bytes that a kernel moves for each element that it works on.
struct Traffic {
  double read = 0, written = 0;
};

// Bytes of an element; 0 where there is no tensor.
double Size(const Tensor& x) { return x.defined() ? static_cast<double>(x.element_size()) : 0; }
double MaskSize(const Tensor& mask) { return mask.defined() ? 1.0 / 8 : 0; }
double Columns(const Tensor& x) { return static_cast<double>(x.size(1)); }
double Count(const PackedRows* rows) { return static_cast<double>(rows->count); }

// Returns the name that plans give to products with a matrix.
const char* ProductLabel(const std::string& name) {
  const bool cross = absl::StrContains(name, "encoder_attn.");
  if (absl::EndsWith(name, "q_proj.weight")) return cross ? "query projection" : "qkv projection";
  if (absl::EndsWith(name, "k_proj.weight")) return "kv projection";
  if (absl::EndsWith(name, "out_proj.weight")) return "output projection";
  if (absl::EndsWith(name, "fc1.weight")) return "fc1";
  return absl::EndsWith(name, "fc2.weight") ? "fc2" : "logits";
}

struct NamedWeight : public Weight {
  explicit NamedWeight(Tensor master) : master_OI(std::move(master)) {}
  const Tensor master_OI;
};

// Read it beside cuda_ops.cc, which says what an operation launches.
class NotingOps : public CostOps {
 public:
  NotingOps(at::ScalarType operand, bool flash, int64_t sentences)
      : operand_(operand), flash_(flash), sentences_(static_cast<double>(sentences)) {}

  void SetLabels(const Parameters& parameters) override {
    for (const Use& use : parameters.uses()) {
      const char* const label = ProductLabel(parameters.inventory().parameters[use.parameter].name);
      labels_[use.weight_offset] = label;
      gradient_labels_[use.gradient_offset] = label;
    }
  }
  void NoteIn(Kernels& kernels, Kernels& weight_gradients) override {
    kernels_ = &kernels;
    weight_gradients_ = &weight_gradients;
  }

  at::TensorOptions ResidualOptions() const override {
    return at::device(at::kMeta).dtype(at::kFloat);
  }
  at::TensorOptions OperandOptions() const override {
    return at::device(at::kMeta).dtype(operand_);
  }
  std::unique_ptr<Weight> MakeWeight(Tensor master, bool) override {
    return std::make_unique<NamedWeight>(std::move(master));
  }
  void Refresh(Weight&) override {}

  void Linear(const LinearArgs& a) override {
    const Tensor& bias = a.bias_O;
    const Tensor& y = a.y_RO;
    // A bias that does not lie where products read it, behind the single factors of some schemes,
    // is copied there.
    if (bias.defined() && bias.storage_offset() * y.element_size() % kBiasAlignment != 0) {
      Kernel("Cast", static_cast<double>(bias.numel()) * (kFloat + Size(y)));
    }
    Product(LabelOf(*a.weight_OI), {ProductForm::kForward, a.rows, y.size(1), a.x_RI.size(1)},
            Size(y));
  }
  void LinearBackwardInput(const LinearInputGradArgs& a) override {
    Product(LabelOf(*a.weight_OI),
            {ProductForm::kInputGradient, a.rows, a.dx_RI.size(1), a.dy_RO.size(1)},
            a.accumulate ? 2 * Size(a.dx_RI) : Size(a.dx_RI));
    if (a.relu_output_RI.defined()) ReluBackward(a.rows, a.relu_output_RI, a.dx_RI);
  }
  void LinearBackwardWeight(int64_t rows, const Tensor& dy, const Tensor&, const Tensor& dw,
                            const Tensor& dbias) override {
    std::swap(kernels_, weight_gradients_);
    WeightGradient(gradient_labels_.at(dw.storage_offset()), rows, dw);
    if (dbias.defined()) BiasGradient("BiasGradient", rows, dy, {.read = Size(dy)});
    std::swap(kernels_, weight_gradients_);
  }

  void ResidualNorm(const ResidualNormArgs& a) override {
    const double columns = Columns(a.x_RD.defined() ? a.x_RD : a.branch_RD);
    const Traffic sum = {Size(a.x_RD) + Size(a.branch_RD), MaskSize(a.mask) + Size(a.sum_RD)};
    if (!a.gain_D.defined()) return Sweep("ResidualSum", a.rows, columns, sum);
    if (!a.over_rows) {
      const double results = Size(a.y_RD) + Size(a.y_operand_RD);
      return Sweep("ResidualNorm", a.rows, columns, {sum.read, sum.written + kXhat + results});
    }
    Sweep("ResidualSum", a.rows, columns, {sum.read, sum.written + kFloat});
    Sweep("BatchNorm", a.rows, columns, {3 * kFloat, kXhat});  // read three times
    for (const Tensor& y : {a.y_RD, a.y_operand_RD}) {
      if (y.defined()) Sweep("NormOutput", a.rows, columns, {kXhat, Size(y)});
    }
  }
  void ResidualNormBackward(const ResidualNormGradArgs& a) override {
    const auto columns = static_cast<double>(a.gain_D.size(0));
    const double dx = (a.accumulate_dx ? 2 : 1) * Size(a.dx_RD);
    const double rest = dx + Size(a.dbranch_RD) + MaskSize(a.mask) + Size(a.dpast_RD);
    if (a.over_rows) {
      if (Size(a.dy_RD) < kFloat) Sweep("Cast", a.rows, columns, {Size(a.dy_RD), kFloat});
      // Read twice.
      return Sweep("BatchNormBackward", a.rows, columns, {2 * (kFloat + kXhat), rest});
    }
    InRuns("ResidualNormBackward", a.rows, columns, {Size(a.dy_RD) + kXhat, rest});
  }
  void NormOutput(int64_t rows, const NormState&, const Tensor&, const Tensor&,
                  const Tensor& y) override {
    Sweep("NormOutput", rows, Columns(y), {kXhat, Size(y)});
  }
  void AddBranchBackward(int64_t rows, const Tensor& dx, double, const Tensor& mask,
                         const Tensor& dbranch) override {
    Sweep(mask.defined() ? "AddBranchBackward" : "Cast", rows, Columns(dx),
          {Size(dx) + MaskSize(mask), Size(dbranch)});
  }

  void ScaleShift(const ScaleShiftArgs& a) override {
    Sweep("ScaleShiftForward", a.rows, Columns(a.x_RD), {Size(a.x_RD), Size(a.y_RD)});
  }
  void ScaleShiftBackward(const ScaleShiftGradArgs& a) override {
    const double x = a.scale_G.defined() ? Size(a.x_RD) : 0;
    InRuns("ScaleShiftBackward", a.rows, Columns(a.dy_RD), {Size(a.dy_RD) + x, Size(a.dx_RD)});
  }

  void Attention(const AttentionArgs& a) override {
    const double d = Columns(a.q_RD), e = operand_size();
    const double rows = Count(a.queries), keys = Count(a.keys);
    const double sums = kFloat * rows * a.heads;
    Note({.name = flash_ ? "FlashAttentionForward" : "AttentionForward",
          .flops = 2 * PairFlops(a),
          .bytes = e * d * 2 * (rows + keys) + sums,
          .unit = flash_ ? ComputeUnit::kTensor : ComputeUnit::kFloat32,
          .reaches = flash_ ? 1.0 : kOwnShare,
          .alone = flash_});
    if (!flash_) return;
    Sweep("Cast", a.queries->count, d, {e, e});
    Kernel("Cast", 2 * sums);
  }

  void AttentionBackward(const AttentionGradArgs& g) override {
    const AttentionArgs& a = g.forward;
    const double flops = 2 * PairFlops(a);
    if (flash_) return FlashAttentionBackward(a, kFlashBackward * flops);
    const double rows = Count(a.queries), keys = Count(a.keys);
    // The first reads q, k, v, the context and its gradient, the second all but the context.
    for (const bool of_keys : {false, true}) {
      const double moved = of_keys ? 2 * rows + 4 * keys : 4 * rows + 2 * keys;
      Note({.name = of_keys ? "AttentionKeyGradient" : "AttentionQueryGradient",
            .flops = kOwnBackward / 2 * flops,
            .bytes = operand_size() * Columns(a.q_RD) * moved,
            .unit = ComputeUnit::kFloat32,
            .reaches = kOwnShare});
    }
  }

  void Relu(int64_t rows, const Tensor& x) override {
    Sweep("ReluForward", rows, Columns(x), {Size(x), Size(x)});
  }
  void ReluBackward(int64_t rows, const Tensor& relu_output, const Tensor& dx) override {
    Sweep("ReluBackward", rows, Columns(dx), {Size(relu_output) + Size(dx), Size(dx)});
  }
  bool HasReluBackwardWithBias() const override { return true; }
  void ReluBackwardWithBias(int64_t rows, const Tensor& relu_output, const Tensor& dx,
                            const Tensor&) override {
    BiasGradient("ReluBackwardWithBias", rows, dx, {Size(relu_output) + Size(dx), Size(dx)});
  }
  void Gelu(int64_t rows, const Tensor& pre, const Tensor& h) override {
    Sweep("GeluForward", rows, Columns(h), {Size(pre), Size(h)});
  }
  void GeluBackward(int64_t rows, const Tensor& pre, const Tensor& dh,
                    const Tensor& dpre) override {
    Sweep("GeluBackward", rows, Columns(dh), {Size(pre) + Size(dh), Size(dpre)});
  }
  void Dropout(int64_t rows, const DropoutSite&, const PackedRows&, const Tensor& x,
               const Tensor& mask) override {
    Sweep("DropoutForward", rows, Columns(x), {Size(x), Size(x) + MaskSize(mask)});
  }
  void DropoutBackward(int64_t rows, double, const Tensor& mask, const Tensor& dx) override {
    Sweep("DropoutBackward", rows, Columns(dx), {Size(dx) + MaskSize(mask), Size(dx)});
  }

  void Embed(const EmbedArgs& a) override {
    const double results = Size(a.x_RD) + Size(a.x_operand_RD) + MaskSize(a.mask);
    Alone([&] {  // reads rows of two tables
      Sweep("EmbedForward", a.rows->count, Columns(a.x_RD), {2 * kFloat, results});
    });
  }
  void EmbedBackward(const EmbedGradArgs& a) override {
    const int64_t rows = a.rows->count;
    Alone([&] {
      for (const Tensor& table : {a.dtable_VD, a.dpositions_PD}) {
        if (!table.defined()) continue;
        Sweep("EmbedBackward", rows, Columns(table), {2 * kFloat + MaskSize(a.mask), kFloat});
        // Gradients of a frequent token are added in pieces.
        if (rows > kManyRows) Sweep("EmbedBackwardPieces", rows, Columns(table), {.read = kFloat});
      }
    });
  }
  // The loss of each block of rows, and its gradients.
  void CrossEntropy(const CrossEntropyArgs& a) override {
    const Tensor& dw = a.dweight_VD;
    const char* const label = LabelOf(*a.weight_VD);
    const int64_t classes = dw.size(0), width = dw.size(1), most = native::LogitRows(classes);
    Alone([&] {
      for (int64_t begin = 0; begin < a.rows; begin += most) {
        const int64_t rows = std::min(most, a.rows - begin);
        Product(label, {ProductForm::kForward, rows, classes, width}, kFloat);
        Sweep("CrossEntropy", rows, static_cast<double>(classes),
              {2 * kFloat, operand_size()});  // read twice
        Kernel("SumLosses", 0);
        Product(label, {ProductForm::kInputGradient, rows, width, classes}, kFloat);
        WeightGradient(label, rows, dw);
      }
    });
  }

  void Scale(int64_t rows, const Tensor& x, double) override {
    Sweep("Scale", rows, Columns(x), {Size(x), Size(x)});
  }
  void AddScaled(const AddScaledArgs& a) override {
    Sweep("AddScaled", a.rows, Columns(a.x_RD), kSum);
  }
  void AddScaledBackward(const AddScaledGradArgs& a) override {
    Sweep("AddScaled", a.rows, Columns(a.x_RD), kSum);
    Sweep("Dot", a.rows, Columns(a.x_RD), {.read = 2 * kFloat});
    Kernel("DotSum", 0);
  }
  void Add(const Tensor& y, const Tensor&) override { Sweep("Add", y.size(0), Columns(y), kSum); }
  void Zero(const Tensor& x) override { Kernel(kZeroFill, static_cast<double>(x.nbytes())); }
  void Copy(int64_t rows, const Tensor& x, const Tensor& y) override {
    Sweep("Cast", rows, Columns(x), {Size(x), Size(y)});
  }

  // No pass of a microbatch has these.
  void DecodeAttention(const DecodeAttentionArgs&) override { Unexpected(); }
  void LogSoftmax(int64_t, const Tensor&) override { Unexpected(); }
  void AverageLogProbs(int, const Tensor&, const Tensor&) override { Unexpected(); }
  void ChooseTokens(const Tensor&, const native::TokenChoices&) override { Unexpected(); }
  void InitialNormal(uint64_t, std::string_view, double, const Tensor&) override { Unexpected(); }
  void Adam(const AdamArgs&) override { Unexpected(); }
  void SumSquares(std::span<const SquareSums>) override { Unexpected(); }

 private:
  static constexpr Traffic kSum = {2 * kFloat, kFloat};  // y += x

  static void Unexpected() { DEEPNET_CHECK(false) << "not an operation of a training pass"; }

  const char* LabelOf(const Weight& w) const {
    return labels_.at(static_cast<const NamedWeight&>(w).master_OI.storage_offset());
  }

  void Note(KernelWork kernel) {
    kernel.alone = kernel.alone || alone_;
    AddWork(kernel, 1, *kernels_);
  }
  // Notes what `call` launches as never part of a CUDA graph.
  template <typename Call>
  void Alone(const Call& call) {
    alone_ = true;
    call();
    alone_ = false;
  }
  void Kernel(const char* name, double bytes) { Note({.name = name, .bytes = bytes}); }
  void Sweep(const char* name, int64_t rows, double columns, const Traffic& element) {
    Kernel(name, static_cast<double>(rows) * columns * (element.read + element.written));
  }
  // A sweep that leaves two sums of each column for every run of rows, and their addition.
  void InRuns(const std::string& name, int64_t rows, double columns, const Traffic& element) {
    Sweep(name.c_str(), rows, columns, {element.read, element.written + kRunSums});
    Sweep((name + "Sums").c_str(), rows, columns, {.read = kRunSums});
  }
  // `bytes`: of an element of the result, read and written.
  void Product(const char* label, const ProductShape& shape, double bytes) {
    const auto m = static_cast<double>(shape.rows), n = static_cast<double>(shape.columns);
    const auto k = static_cast<double>(shape.depth);
    Note({.name = "cublasLtMatmul",
          .label = label,
          .flops = 2 * m * n * k,
          .bytes = operand_size() * (m + n) * k + bytes * m * n,
          .product = shape,
          .result_bytes = bytes});
  }
  void WeightGradient(const char* label, int64_t rows, const Tensor& dw) {
    Product(label, {ProductForm::kWeightGradient, dw.size(0), dw.size(1), rows}, 2 * kFloat);
  }
  void BiasGradient(const char* name, int64_t rows, const Tensor& dy, const Traffic& element) {
    if (rows <= native::kFewRows) return Sweep(name, rows, Columns(dy), element);
    constexpr double kSums = kFloat / native::kBiasRunRows;
    Sweep(name, rows, Columns(dy), {element.read, element.written + kSums});
    Sweep("BiasGradientSums", rows, Columns(dy), {.read = kSums});
  }
  // LibTorch's is three kernels. The gradients of queries are added up in float32, in a tensor that
  // leaves a tile of rows free behind each sentence and is filled with zeros first; kernels work on
  // whole tiles of it. It has one part where sentences times heads fill the multiprocessors.
  void FlashAttentionBackward(const AttentionArgs& a, double flops) {
    const double d = Columns(a.q_RD), e = operand_size();
    const double rows = Count(a.queries), keys = Count(a.keys);
    const double tiled = std::ceil(rows / sentences_ / kFlashTile) * kFlashTile * sentences_;
    const double sum = tiled * d * kFloat;
    const double means = tiled * a.heads * kFloat;
    const auto part = [&](const char* label, double bytes, double operations, double reaches) {
      Note({.name = "FlashAttentionBackward",
            .label = label,
            .flops = operations,
            .bytes = bytes,
            .reaches = reaches});
    };
    Alone([&] {
      Kernel(kZeroFill, (rows + kFlashTile * sentences_) * d * kFloat);
      part("flash attention: dO . O", 2 * e * rows * d + means + sum, 0, 1);
      part("flash attention", 2 * e * d * (rows + 2 * keys) + means + 2 * sum, flops,
           kFlashBackwardShare);
      part("flash attention: dQ converted", sum + e * rows * d, 0, 1);
    });
    Sweep("Cast", a.queries->count, d, {e, e});
    for (int i = 0; i < 2; ++i) Sweep("Cast", a.keys->count, d, {e, e});
  }

  // Operations of one product of all queries and keys of all sentences, 2 a multiply-add.
  double PairFlops(const AttentionArgs& a) const {
    double queries = Count(a.queries) / sentences_, keys = Count(a.keys) / sentences_;
    double seen = a.causal ? 0.5 : 1.0;
    if (flash_) {
      const double tiles = std::ceil(queries / kFlashTile);
      queries = tiles * kFlashTile;
      keys = std::ceil(keys / kFlashTile) * kFlashTile;
      if (a.causal) seen = (tiles + 1) / (2 * tiles);
    }
    return 2 * seen * sentences_ * queries * keys * Columns(a.q_RD);
  }

  double operand_size() const { return static_cast<double>(c10::elementSize(operand_)); }

  const at::ScalarType operand_;
  const bool flash_;
  const double sentences_;
  // Each is the label of the matrix that begins there in the flat weights, or gradients.
  absl::flat_hash_map<int64_t, const char*> labels_, gradient_labels_;
  Kernels* kernels_ = nullptr;
  Kernels* weight_gradients_ = nullptr;
  bool alone_ = false;
};

}  // namespace

std::unique_ptr<CostOps> MakeCostOps(at::ScalarType operand, bool flash, int64_t sentences) {
  return std::make_unique<NotingOps>(operand, flash, sentences);
}

void AddWork(const KernelWork& kernel, int sign, Kernels& kernels) {
  const auto same = std::find_if(kernels.begin(), kernels.end(), [&](const KernelWork& other) {
    return kernel.name == other.name && kernel.label == other.label &&
           kernel.product == other.product && kernel.result_bytes == other.result_bytes &&
           kernel.alone == other.alone;
  });
  if (same == kernels.end()) return kernels.push_back(kernel);
  same->launches += sign * kernel.launches;
  same->flops += sign * kernel.flops;
  same->bytes += sign * kernel.bytes;
  if (same->launches == 0) kernels.erase(same);
}

}  // namespace deepnet
