// Everything is appended in the order in which it is launched: read it beside attention.cc,
// feed_forward.cc and residual.cc, and beside cuda_ops.cc for what an operation launches.
//
// Bytes are those of the tensors that a kernel reads and writes: rows of activations, and matrices
// of products; once each, but where it is said that they are read again. Vectors of features,
// offsets and statistics of rows count nothing.
#include "trainer/model/work.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"

#include "trainer/kernels/native/gpu_shapes.h"
#include "trainer/model/architecture.h"
#include "trainer/model/scheme.h"

namespace deepnet {
namespace {

constexpr double kFloat = 4;         // bytes
constexpr double kXhat = kFloat;     // bytes of a normalised element, kept for the backward pass
constexpr double kMask = 1.0 / 8;    // bytes of a decision of dropout
constexpr int64_t kManyRows = 1024;  // among which a token or a position is frequent
constexpr int64_t kFlashTile = 128;  // rows and keys that flash attention works on at a time
// A microbatch is taken to be full of sentences of so many positions: max_sentences is what may be
// in it. Where it holds fewer, they are longer.
constexpr int64_t kSentenceRows = 25;
constexpr double kRunSums = 2 * kFloat / 16;  // bytes: two sums of a column for runs of 16 rows
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
constexpr Traffic kSum = {2 * kFloat, kFloat};  // y += x

// The properties that do not change within a model.
struct Rules {
  const ModelSpec& model;
  double operand = 2;  // bytes of an element
  bool flash = false;
  int64_t source_rows = 0, target_rows = 0, sentences = 1;

  double width() const { return model.d_model(); }
  bool narrow() const { return operand < kFloat; }
  bool drops() const { return model.dropout() > 0; }
  int64_t Rows(bool source) const { return source ? source_rows : target_rows; }
  // The stream, and its copy as products want it: bytes of an element of each.
  std::vector<double> Stream() const {
    return narrow() ? std::vector{kFloat, operand} : std::vector{kFloat};
  }
};

// A list of kernels that grows by the calls of Ops, on so many rows.
class Work {
 public:
  Work(const Rules& rules, int64_t rows, Kernels& kernels)
      : rules_(rules), rows_(static_cast<double>(rows)), kernels_(kernels) {}

  void Kernel(const char* name, double bytes) {
    kernels_.push_back({.name = name, .bytes = bytes});
  }
  // Works on the elements of `columns` columns.
  void Sweep(const char* name, double columns, const Traffic& element) {
    Kernel(name, rows_ * columns * (element.read + element.written));
  }
  void Copy(double columns, double from, double to) { Sweep("Cast", columns, {from, to}); }
  void Zero(double columns) { Sweep(kZeroFill, columns, {.written = kFloat}); }

  // y [rows, columns] of sums over `depth`. `bytes`: of an element of y, read and written.
  void Product(ProductForm form, const char* label, double rows, double columns, double depth,
               double bytes) {
    kernels_.push_back({.name = "cublasLtMatmul",
                        .label = label,
                        .flops = 2 * rows * columns * depth,
                        .bytes = rules_.operand * (rows + columns) * depth + bytes * rows * columns,
                        .rows = static_cast<int64_t>(rows),
                        .columns = static_cast<int64_t>(columns),
                        .depth = static_cast<int64_t>(depth),
                        .form = form,
                        .result_bytes = bytes});
  }
  void Linear(const char* label, double in, double out, double bytes) {
    Product(ProductForm::kForward, label, rows_, out, in, bytes);
  }
  void LinearBackwardInput(const char* label, double in, double out, double bytes) {
    Product(ProductForm::kInputGradient, label, rows_, in, out, bytes);
  }
  void LinearBackwardWeight(const char* label, double in, double out, bool bias) {
    Product(ProductForm::kWeightGradient, label, out, in, rows_, 2 * kFloat);
    if (bias) BiasGradient("BiasGradient", out, {.read = rules_.operand});
  }
  void BiasGradient(const char* name, double columns, const Traffic& element) {
    if (rows_ <= native::kFewRows) return Sweep(name, columns, element);
    constexpr double kSums = kFloat / native::kBiasRunRows;
    Sweep(name, columns, {element.read, element.written + kSums});
    Sweep("BiasGradientSums", columns, {.read = kSums});
  }

  // `sum`: what is added up, with the mask; `outputs`: bytes of an element of each result.
  void Norm(double columns, const Traffic& sum, const std::vector<double>& outputs) {
    if (rules_.model.norm() != BATCH_NORM) {
      const double results = std::accumulate(outputs.begin(), outputs.end(), 0.0);
      return Sweep("ResidualNorm", columns, {sum.read, sum.written + kXhat + results});
    }
    Sweep("ResidualSum", columns, {sum.read, sum.written + kFloat});
    Sweep("BatchNorm", columns, {.read = 3 * kFloat, .written = kXhat});  // read three times
    for (const double output : outputs) Sweep("NormOutput", columns, {kXhat, output});
  }
  // `gradient`: bytes of an element of it; `written`: of all that comes of it.
  void NormBackward(double columns, double gradient, double written) {
    if (rules_.model.norm() == BATCH_NORM) {
      if (gradient < kFloat) Copy(columns, gradient, kFloat);
      return Sweep("BatchNormBackward", columns, {2 * (kFloat + kXhat), written});  // read twice
    }
    Sweep("ResidualNormBackward", columns, {gradient + kXhat, written + kRunSums});
    Sweep("ResidualNormBackwardSums", columns, {.read = kRunSums});
  }
  void NormOutput(double columns) { Sweep("NormOutput", columns, {kXhat, rules_.operand}); }
  void ScaleShiftBackward(double columns, const Traffic& element) {
    Sweep("ScaleShiftBackward", columns, {element.read, element.written + kRunSums});
    Sweep("ScaleShiftBackwardSums", columns, {.read = kRunSums});
  }
  void AddBranch(double columns, bool drops) {
    Sweep("ResidualSum", columns, {2 * kFloat, kFloat + (drops ? kMask : 0)});
  }

  void Attention(int64_t key_rows, bool causal);
  void AttentionBackward(int64_t key_rows, bool causal);

 private:
  void FlashBackward(double flops, double keys);
  // Operations of one product of all queries and keys of all sentences, 2 a multiply-add.
  double PairFlops(int64_t key_rows, bool causal) const;

  const Rules& rules_;
  const double rows_;
  Kernels& kernels_;
};

double Work::PairFlops(int64_t key_rows, bool causal) const {
  const auto sentences = static_cast<double>(rules_.sentences);
  double queries = rows_ / sentences, keys = static_cast<double>(key_rows) / sentences;
  double seen = causal ? 0.5 : 1.0;
  if (rules_.flash) {
    const double tiles = std::ceil(queries / kFlashTile);
    queries = tiles * kFlashTile;
    keys = std::ceil(keys / kFlashTile) * kFlashTile;
    if (causal) seen = (tiles + 1) / (2 * tiles);
  }
  return 2 * seen * sentences * queries * keys * rules_.width();
}

void Work::Attention(int64_t key_rows, bool causal) {
  const double d = rules_.width(), keys = static_cast<double>(key_rows);
  const double sums = kFloat * rows_ * rules_.model.num_heads();
  KernelWork work = {.name = rules_.flash ? "FlashAttentionForward" : "AttentionForward",
                     .flops = 2 * PairFlops(key_rows, causal),
                     .bytes = rules_.operand * d * 2 * (rows_ + keys) + sums,
                     .unit = rules_.flash ? ComputeUnit::kTensor : ComputeUnit::kFloat32,
                     .reaches = rules_.flash ? 1.0 : kOwnShare,
                     .alone = rules_.flash};
  kernels_.push_back(std::move(work));
  if (!rules_.flash) return;
  Copy(d, rules_.operand, rules_.operand);
  Kernel("Cast", 2 * sums);
}

void Work::AttentionBackward(int64_t key_rows, bool causal) {
  const double d = rules_.width(), keys = static_cast<double>(key_rows);
  const double flops = 2 * PairFlops(key_rows, causal);
  if (rules_.flash) {
    FlashBackward(kFlashBackward * flops, keys);
    Copy(d, rules_.operand, rules_.operand);
    for (int i = 0; i < 2; ++i) Kernel("Cast", 2 * keys * d * rules_.operand);
    return;
  }
  // The first reads q, k, v, the context and its gradient, the second all but the context.
  for (const bool of_keys : {false, true}) {
    const double rows = of_keys ? 2 * rows_ + 4 * keys : 4 * rows_ + 2 * keys;
    kernels_.push_back({.name = of_keys ? "AttentionKeyGradient" : "AttentionQueryGradient",
                        .flops = kOwnBackward / 2 * flops,
                        .bytes = rules_.operand * d * rows,
                        .unit = ComputeUnit::kFloat32,
                        .reaches = kOwnShare});
  }
}

// LibTorch's is three kernels. The gradients of queries are added up in float32, in a tensor that
// leaves a tile of rows free behind each sentence and is filled with zeros first; kernels work on
// whole tiles of it. It has one part where sentences times heads are at least the multiprocessors.
void Work::FlashBackward(double flops, double keys) {
  const double d = rules_.width(), e = rules_.operand;
  const auto sentences = static_cast<double>(rules_.sentences);
  const double tiled = std::ceil(rows_ / sentences / kFlashTile) * kFlashTile * sentences;
  const double sum = tiled * d * kFloat;
  const double means = tiled * rules_.model.num_heads() * kFloat;
  const auto part = [&](const char* label, double bytes) {
    kernels_.push_back(
        {.name = "FlashAttentionBackward", .label = label, .bytes = bytes, .alone = true});
  };
  Kernel(kZeroFill, (rows_ + kFlashTile * sentences) * d * kFloat);
  kernels_.back().alone = true;
  part("flash attention: dO . O", 2 * e * rows_ * d + means + sum);
  part("flash attention", 2 * e * d * (rows_ + 2 * keys) + means + 2 * sum);
  kernels_.back().flops = flops;
  kernels_.back().reaches = kFlashBackwardShare;
  part("flash attention: dQ converted", sum + e * rows_ * d);
}

// --- sub-layers ----------------------------------------------------------------------------------

// One sub-layer's place, with the lists that it adds to.
class SublayerWork {
 public:
  SublayerWork(const Rules& rules, int stack, int layer, SublayerKind kind, int64_t rows,
               int64_t key_rows, LayerWork& layer_work)
      : rules_(rules),
        scheme_(MakeSublayerScheme(rules.model, stack, layer, kind)),
        block_(kind == SublayerKind::kFeedForward),
        cross_(kind == SublayerKind::kCrossAttention),
        causal_(kind == SublayerKind::kSelfAttention && stack == 1),
        bias_(HasBiases(rules.model)),
        key_rows_(key_rows),
        d_(rules.width()),
        inside_(block_ ? rules.model.ffn_dim() : rules.model.d_model()),
        forward_(rules, rows, layer_work.forward),
        backward_(rules, rows, layer_work.backward_input),
        weights_(rules, rows, layer_work.backward_weight),
        sources_(rules, key_rows, layer_work.forward),
        source_gradients_(rules, key_rows, layer_work.backward_input),
        source_weights_(rules, key_rows, layer_work.backward_weight) {}

  void Forward() {
    Enter(forward_);
    Inner(forward_, sources_);
    if (!block_) forward_.Attention(key_rows_, causal_);
    InnerNorm();
    forward_.Linear(block_ ? "fc2" : "output projection", inside_, d_, kFloat);
    Leave();
  }

  // `kept_input`: nothing has to be done to have the input of its first product again.
  void Backward(bool kept_input) {
    LeaveBackward();
    if (!kept_input) Input();
    InnerAgain();
    weights_.LinearBackwardWeight(block_ ? "fc2" : "output projection", inside_, d_, bias_);
    backward_.LinearBackwardInput(block_ ? "fc2" : "output projection", inside_, d_, e());
    if (block_) {
      BlockBackward();
    } else {
      AttentionBackward();
    }
    EnterBackward();
  }

  // Products and what follows them before attention or the last matrix.
  void Inner(Work& rows, Work& keys) const {
    if (!block_) {
      rows.Linear(cross_ ? "query projection" : "qkv projection", d_, cross_ ? d_ : 3 * d_, e());
      if (cross_) keys.Linear("kv projection", d_, 2 * d_, e());
      return;
    }
    rows.Linear("fc1", d_, inside_, e());
    if (scheme_.shifts) rows.Sweep("ScaleShiftForward", inside_, {e(), e()});
    if (scheme_.shifts && !gelu()) rows.Sweep("ReluForward", inside_, {e(), e()});
    if (gelu()) rows.Sweep("GeluForward", inside_, {e(), e()});
    if (drops_inside()) rows.Sweep("DropoutForward", inside_, {e(), e() + kMask});
  }

 private:
  double e() const { return rules_.operand; }
  bool gelu() const { return rules_.model.activation() == GELU; }
  bool drops_inside() const { return rules_.model.activation_dropout() > 0; }
  bool scales_inside() const { return scheme_.head_scale || (scheme_.shifts && block_); }
  double mask() const { return rules_.drops() ? kMask : 0; }

  void Enter(Work& work) const {
    if (scheme_.KeepsStream()) work.Copy(d_, kFloat, kFloat);
    if (scheme_.input_norm) {
      work.Norm(d_, {.read = kFloat}, {e()});
      if (scheme_.input_scale != 1.0) work.Sweep("Scale", d_, {e(), e()});
    } else if (scheme_.shifts) {
      work.Sweep("ScaleShiftForward", d_, {kFloat, e()});
    }
  }

  void InnerNorm() {
    if (scheme_.inner_norm) forward_.Norm(inside_, {.read = e()}, {e()});
    if (scales_inside()) forward_.Sweep("ScaleShiftForward", inside_, {e(), e()});
  }
  void InnerAgain() {
    if (scheme_.inner_norm) backward_.NormOutput(inside_);
    if (scales_inside()) backward_.Sweep("ScaleShiftForward", inside_, {e(), e()});
  }

  void Leave() {
    if (scheme_.output_norm) forward_.Norm(d_, {.read = kFloat}, {kFloat});
    if (scheme_.branch_scale != BranchScale::kNone) {
      forward_.Copy(d_, kFloat, kFloat);
      forward_.Sweep("ScaleShiftForward", d_, {kFloat, kFloat});
    }
    if (scheme_.stream_scale != 0) forward_.Sweep("ScaleShiftForward", d_, {kFloat, kFloat});
    if (scheme_.layer_input) forward_.Sweep("Add", d_, kSum);
    if (scheme_.second_stream) forward_.AddBranch(d_, rules_.drops());
    if (scheme_.end_norm) {
      return forward_.Norm(d_, {2 * kFloat, mask()}, rules_.Stream());
    }
    if (scheme_.alpha == 0) forward_.Zero(d_);
    forward_.AddBranch(d_, rules_.drops());
    if (!scheme_.input_norm && rules_.narrow()) forward_.Copy(d_, kFloat, e());
  }

  void LeaveBackward() {
    if (scheme_.end_norm) {
      backward_.NormBackward(d_, kFloat,
                             kFloat + e() + mask() + (scheme_.second_stream ? kFloat : 0));
    } else {
      backward_.Sweep(rules_.drops() ? "AddBranchBackward" : "Cast", d_, {kFloat + mask(), e()});
      if (scheme_.alpha == 0) backward_.Zero(d_);
    }
    if (scheme_.layer_input) backward_.Copy(d_, kFloat, kFloat);
    if (scheme_.stream_scale != 0) backward_.ScaleShiftBackward(d_, {2 * kFloat, kFloat});
    if (scheme_.branch_scale != BranchScale::kNone) {
      backward_.ScaleShiftBackward(d_, {e() + kFloat, e()});
    }
    if (scheme_.output_norm) backward_.NormBackward(d_, e(), e());
  }

  // The input of the branch's first product, made again.
  void Input() {
    if (scheme_.input_norm) {
      backward_.NormOutput(d_);
      if (scheme_.input_scale != 1.0) backward_.Sweep("Scale", d_, {e(), e()});
    } else if (scheme_.shifts) {
      backward_.Sweep("ScaleShiftForward", d_, {kFloat, e()});
    } else if (scheme_.KeepsStream()) {
      if (rules_.narrow()) backward_.Copy(d_, kFloat, e());
    } else {
      backward_.NormOutput(d_);
    }
  }

  void InnerBackward() {
    if (scales_inside()) backward_.ScaleShiftBackward(inside_, {2 * e(), e()});
    if (scheme_.inner_norm) backward_.NormBackward(inside_, e(), e());
  }

  void BlockBackward() {
    const bool inner = scheme_.inner_norm || scales_inside();
    const bool fused = !gelu() && !inner;
    const bool with_bias = fused && !drops_inside() && !scheme_.shifts && bias_;
    if (with_bias) {
      backward_.BiasGradient("ReluBackwardWithBias", inside_, {2 * e(), e()});
    } else {
      if (fused) backward_.Sweep("ReluBackward", inside_, {2 * e(), e()});
      InnerBackward();
      if (inner && !gelu()) backward_.Sweep("ReluBackward", inside_, {2 * e(), e()});
      if (drops_inside()) backward_.Sweep("DropoutBackward", inside_, {e() + kMask, e()});
      if (gelu()) backward_.Sweep("GeluBackward", inside_, {2 * e(), e()});
      if (scheme_.shifts) backward_.ScaleShiftBackward(inside_, {e(), e()});
    }
    weights_.LinearBackwardWeight("fc1", d_, inside_, bias_ && !with_bias);
    InputGradient("fc1", inside_);
  }

  void AttentionBackward() {
    InnerBackward();
    backward_.AttentionBackward(key_rows_, causal_);
    if (cross_) {
      source_weights_.LinearBackwardWeight("kv projection", d_, 2 * d_, bias_);
      source_gradients_.LinearBackwardInput("kv projection", d_, 2 * d_, 2 * kFloat);
    }
    const char* label = cross_ ? "query projection" : "qkv projection";
    const double out = cross_ ? d_ : 3 * d_;
    weights_.LinearBackwardWeight(label, d_, out, bias_);
    InputGradient(label, out);
  }

  // Without a step before the branch the gradient is added to the stream's at once.
  void InputGradient(const char* label, double out) {
    const bool adds = !scheme_.input_norm && !scheme_.shifts;
    backward_.LinearBackwardInput(label, d_, out, adds ? 2 * kFloat : kFloat);
  }

  void EnterBackward() {
    if (scheme_.input_norm) {
      if (scheme_.input_scale != 1.0) backward_.Sweep("Scale", d_, {kFloat, kFloat});
      backward_.NormBackward(d_, kFloat, 2 * kFloat);
    } else if (scheme_.shifts) {
      backward_.ScaleShiftBackward(d_, {kFloat, kFloat});
      backward_.Sweep("Add", d_, kSum);
    }
  }

  const Rules& rules_;
  const SublayerScheme scheme_;
  const bool block_, cross_, causal_, bias_;
  const int64_t key_rows_;
  const double d_, inside_;
  Work forward_, backward_, weights_;
  Work sources_, source_gradients_, source_weights_;
};

// --- layers --------------------------------------------------------------------------------------

// DLCL: a layer reads a weighted sum of the outputs of all before it.
void AddHistory(const Rules& rules, int layer, int layers, int64_t rows, LayerWork& work) {
  const double d = rules.width();
  Work forward(rules, rows, work.forward), backward(rules, rows, work.backward_input);
  const auto mix = [&](int outputs) {
    forward.Zero(d);
    for (int k = 0; k < outputs; ++k) forward.Sweep("AddScaled", d, kSum);
  };
  const auto mix_backward = [&](int outputs, bool first) {
    for (int k = 0; k < outputs; ++k) {
      if (first) backward.Zero(d);
      backward.Sweep("AddScaled", d, kSum);
      backward.Sweep("Dot", d, {.read = 2 * kFloat});
      backward.Kernel("DotSum", 0);
    }
  };
  if (layer == 0) forward.Copy(d, kFloat, kFloat);
  mix(layer + 1);
  forward.Norm(d, {.read = kFloat}, {kFloat});
  const bool last = layer + 1 == layers;
  if (last) mix(layers + 1);
  if (last) mix_backward(layers + 1, true);
  backward.Copy(d, kFloat, kFloat);
  backward.NormBackward(d, kFloat, kFloat);
  mix_backward(layer + 1, false);
  if (layer == 0) backward.Copy(d, kFloat, kFloat);
}

void AddStackEnd(const Rules& rules, int64_t rows, LayerWork& work) {
  const double d = rules.width(), e = rules.operand;
  Work forward(rules, rows, work.forward), backward(rules, rows, work.backward_input);
  const bool two = rules.narrow();
  switch (EndOf(rules.model)) {
    case StackEnd::kNothing:
      return;
    case StackEnd::kNorm:
      forward.Norm(d, {.read = kFloat}, rules.Stream());
      backward.NormBackward(d, kFloat, kFloat);
      return;
    case StackEnd::kSecondNorm:
      forward.Norm(d, {.read = kFloat}, {kFloat});
      forward.Sweep("Add", d, kSum);
      if (two) forward.Copy(d, kFloat, e);
      backward.Copy(d, kFloat, kFloat);
      backward.NormBackward(d, kFloat, kFloat);
      return;
    case StackEnd::kScaledShift:
      forward.Copy(d, kFloat, kFloat);
      forward.Sweep("ScaleShiftForward", d, {kFloat, kFloat});
      if (two) forward.Copy(d, kFloat, e);
      backward.ScaleShiftBackward(d, {2 * kFloat, kFloat});
      return;
  }
}

// Adds the steps before, around and behind the sub-layers of a layer.
void AddAround(const Rules& rules, int stack, int layer, int64_t rows, LayerWork& work) {
  const double d = rules.width();
  Work forward(rules, rows, work.forward), backward(rules, rows, work.backward_input);
  const int layers = LayersOf(rules.model, stack);
  const bool ends_source = stack == 0 && IsEncoderDecoder(rules.model) && layer + 1 == layers;
  if (layer == 0) forward.Copy(d, rules.operand, rules.operand);
  if (layer == 0 && HasSecondStream(rules.model)) {
    forward.Copy(d, kFloat, kFloat);
    backward.Sweep("Add", d, kSum);
  }
  if (ReadsLayerInput(rules.model)) {
    forward.Copy(d, kFloat, kFloat);
    backward.Sweep("Add", d, kSum);
  }
  if (KeepsHistory(rules.model)) AddHistory(rules, layer, layers, rows, work);
  if (layer + 1 == layers) AddStackEnd(rules, rows, work);
  if (ends_source) forward.Copy(d, rules.operand, rules.operand);
  if (stack == 1 && IsEncoderDecoder(rules.model) && layer + 1 == layers) {
    Work(rules, rules.source_rows, work.backward_input).Zero(d);
  }
}

// Adds a copy for each bias of a product that lies where cuBLASLt does not read biases, which
// happens behind the single factors of some schemes. `offset`s are those of a rank that has the
// whole model. A block's last matrix adds to float32 rows, with the bias of the master.
void AddBiasCopies(const Rules& rules, const Inventory& inventory, const Layer& layer,
                   LayerWork& work) {
  constexpr double kAlignment = 16;  // bytes
  const auto add = [&](const Parameter& bias, double element, std::initializer_list<Kernels*> to) {
    if (std::fmod(static_cast<double>(bias.offset) * element, kAlignment) == 0) return;
    const double bytes = static_cast<double>(bias.NumElements()) * (kFloat + element);
    for (Kernels* kernels : to) kernels->push_back({.name = "Cast", .bytes = bytes});
  };
  for (const int index : layer.parameters) {
    const Parameter& bias = inventory.parameters[index];
    const auto is = [&](const char* name) { return absl::EndsWith(bias.name, name); };
    Kernels& ffn = work.recompute[SELECTIVE_FFN];
    Kernels& gemm = work.recompute[SELECTIVE_GEMM];
    if (is("q_proj.bias") || is("encoder_attn.k_proj.bias")) {
      add(bias, rules.operand, {&work.forward, &gemm});
    } else if (is("fc1.bias")) {
      add(bias, rules.operand, {&work.forward, &ffn, &gemm});
    } else if (is("out_proj.bias") || is("fc2.bias")) {
      add(bias, kFloat, {&work.forward});
    }
  }
}

LayerWork MakeStackLayer(const Rules& rules, bool source, int layer) {
  const int stack = source ? 0 : LabelledStack(rules.model);
  const int64_t rows = rules.Rows(source);
  LayerWork work;
  AddAround(rules, stack, layer, rows, work);
  std::vector<SublayerKind> kinds = {SublayerKind::kSelfAttention, SublayerKind::kFeedForward};
  if (SublayersPerLayer(rules.model, stack) == 3) {
    kinds.insert(kinds.begin() + 1, SublayerKind::kCrossAttention);
  }
  for (const SublayerKind kind : kinds) {
    const bool cross = kind == SublayerKind::kCrossAttention;
    const int64_t key_rows = cross ? rules.source_rows : rows;
    SublayerWork sublayer(rules, stack, layer, kind, rows, key_rows, work);
    sublayer.Forward();
    // The rows that entered the stack were kept as products want them.
    const SublayerScheme scheme = MakeSublayerScheme(rules.model, stack, layer, kind);
    const bool first = layer == 0 && kind == SublayerKind::kSelfAttention;
    sublayer.Backward(first && !scheme.input_norm && !scheme.shifts && !scheme.KeepsStream());
    for (const Recompute level : {SELECTIVE_FFN, SELECTIVE_GEMM}) {
      if (level == SELECTIVE_FFN && kind != SublayerKind::kFeedForward) continue;
      Work again(rules, rows, work.recompute[level]), keys(rules, key_rows, work.recompute[level]);
      sublayer.Inner(again, keys);
    }
  }
  return work;
}

LayerWork MakeEmbedding(const Rules& rules, bool source) {
  const double d = rules.width(), e = rules.operand;
  LayerWork work;
  Work forward(rules, rules.Rows(source), work.forward);
  Work backward(rules, rules.Rows(source), work.backward_input);
  const double mask = rules.drops() ? kMask : 0;
  const double stream = kFloat + (rules.narrow() ? e : 0);
  forward.Sweep("EmbedForward", d, {2 * kFloat, stream + mask});  // rows of two tables
  if (HasEmbeddingNorm(rules.model)) {
    forward.Norm(d, {.read = kFloat}, rules.Stream());
    backward.NormBackward(d, kFloat, kFloat);
  }
  const int tables = rules.model.positions() == LEARNED ? 2 : 1;
  for (int i = 0; i < tables; ++i) {
    backward.Sweep("EmbedBackward", d, {2 * kFloat + mask, kFloat});
    // Gradients of a frequent token are added in pieces.
    if (rules.Rows(source) > kManyRows) backward.Sweep("EmbedBackwardPieces", d, {.read = kFloat});
  }
  return work;
}

// The loss of each block of rows, and its gradients.
LayerWork MakeOutput(const Rules& rules) {
  const double d = rules.width(), e = rules.operand;
  const auto classes = static_cast<double>(rules.model.vocabulary_size());
  LayerWork work;
  const int64_t most = native::LogitRows(rules.model.vocabulary_size());
  for (int64_t begin = 0; begin < rules.target_rows; begin += most) {
    Work block(rules, std::min(most, rules.target_rows - begin), work.forward);
    block.Linear("logits", d, classes, kFloat);
    block.Sweep("CrossEntropy", classes, {2 * kFloat, e});  // read twice
    block.Kernel("SumLosses", 0);
    block.LinearBackwardInput("logits", d, classes, kFloat);
    block.LinearBackwardWeight("logits", d, classes, /*bias=*/false);
  }
  return work;
}

// Adds up launches of one kernel, label and shape, so that lists stay short.
void Merge(Kernels& kernels) {
  Kernels merged;
  for (KernelWork& kernel : kernels) {
    const auto same = std::find_if(merged.begin(), merged.end(), [&](const KernelWork& other) {
      return other.name == kernel.name && other.label == kernel.label &&
             other.rows == kernel.rows && other.columns == kernel.columns &&
             other.depth == kernel.depth && other.form == kernel.form &&
             other.result_bytes == kernel.result_bytes && other.alone == kernel.alone;
    });
    if (same == merged.end()) {
      merged.push_back(std::move(kernel));
      continue;
    }
    same->launches += kernel.launches;
    same->flops += kernel.flops;
    same->bytes += kernel.bytes;
  }
  kernels = std::move(merged);
}

LayerWork MakeLayer(const Rules& rules, const Inventory& inventory, const Layer& layer) {
  LayerWork work;
  switch (layer.kind) {
    case LayerKind::kSourceEmbedding:
    case LayerKind::kTargetEmbedding:
      work = MakeEmbedding(rules, layer.kind == LayerKind::kSourceEmbedding);
      break;
    case LayerKind::kEncoder:
    case LayerKind::kDecoder:
      work = MakeStackLayer(rules, layer.kind == LayerKind::kEncoder, layer.index);
      AddBiasCopies(rules, inventory, layer, work);
      work.recompute[FULL] = work.forward;
      break;
    case LayerKind::kOutput:
      work = MakeOutput(rules);
      break;
  }
  if (layer.kind != LayerKind::kEncoder && layer.kind != LayerKind::kDecoder) {
    for (Kernels* kernels : {&work.forward, &work.backward_input}) {
      for (KernelWork& kernel : *kernels) kernel.alone = true;
    }
  }
  Merge(work.forward);
  Merge(work.backward_input);
  Merge(work.backward_weight);
  for (Kernels& kernels : work.recompute) Merge(kernels);
  return work;
}

}  // namespace

void DescribeWork(const ModelSpec& model, const MicrobatchSpec& microbatch,
                  const ComputeSpec& compute, Inventory& inventory) {
  if (compute.device().empty() || compute.device() == "cpu") return;
  ComputeSpec resolved = compute;
  resolved.set_device("cuda");
  if (resolved.dtype() == DATA_TYPE_UNSPECIFIED) resolved.set_dtype(BFLOAT16);
  const int64_t rows = std::max(microbatch.max_source_tokens(), microbatch.max_target_tokens());
  const int64_t sentences =
      std::clamp<int64_t>(rows / kSentenceRows, 1, std::max(1, microbatch.max_sentences()));
  const Rules rules = {.model = model,
                       .operand = resolved.dtype() == FLOAT32 ? kFloat : 2,
                       .flash = ChooseAttention(model, resolved) == FLASH,
                       .source_rows = microbatch.max_source_tokens(),
                       .target_rows = microbatch.max_target_tokens(),
                       .sentences = sentences};
  inventory.work.clear();
  for (Layer& layer : inventory.layers) {
    LayerWork work = MakeLayer(rules, inventory, layer);
    const auto same = std::find(inventory.work.rbegin(), inventory.work.rend(), work);
    layer.work = static_cast<int>(inventory.work.rend() - same) - 1;
    if (same != inventory.work.rend()) continue;
    layer.work = static_cast<int>(inventory.work.size());
    inventory.work.push_back(std::move(work));
  }
}

}  // namespace deepnet
