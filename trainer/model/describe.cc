// The figures of memory stand nowhere else: tests hold them to the bytes that layers allocate.
//
// Operations are those of a full microbatch (S source, T target positions) whose sentences have
// mean length S/B and T/B: two per multiply-add of each matrix product, attention over whole
// sentences (a decoder's causal half is not subtracted: kernels may or may not skip it).
#include "trainer/model/describe.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "trainer/kernels/kernel_sizes.h"
#include "trainer/model/scheme.h"

namespace deepnet {
namespace {

constexpr char kStreamType[] = "float32";
constexpr int kPadRow = 1;            // id of <pad>
constexpr int64_t kDoubleBytes = 8;   // decisions of LibTorch's dropout
constexpr int64_t kPackedRows = 256;  // that native kernels pack together for a weight gradient
constexpr int kNever = Recompute_ARRAYSIZE;

// Bytes of a dropout mask, one bit a feature; none where nothing is dropped.
int64_t MaskBytes(int64_t rows, int64_t features, double rate) {
  return rate > 0 ? rows * ((features + 7) / 8) : 0;
}

// Keeps `more` at the levels below `given_up`.
void Keep(const ActivationBytes& more, int given_up, Layer& layer) {
  for (int level = 0; level < given_up; ++level) {
    layer.kept[level].bytes += more.bytes;
    layer.kept[level].operands += more.operands;
  }
}

// Products that are computed again from `level` on, up to FULL, which repeats all of the layer.
void RepeatProducts(int64_t operations, Recompute level, Layer& layer) {
  for (int l = level; l < FULL; ++l) layer.recompute_flops[l] += static_cast<double>(operations);
}

void AddPending(int64_t rows, int64_t columns, int count, Layer& layer) {
  layer.pending.push_back({.rows = rows, .columns = columns, .count = count});
}

// Features that the last matrix of a sub-layer's branch reads.
int64_t InsideFeatures(const ModelSpec& model, SublayerKind kind) {
  return kind == SublayerKind::kFeedForward ? model.ffn_dim() : model.d_model();
}

// Adds what the scheme of a sub-layer keeps in float32, and dropout's decisions on its branch.
void KeepJoin(const ModelSpec& model, const SublayerPlace& place, int64_t rows, Layer& layer) {
  const SublayerScheme scheme = MakeSublayerScheme(model, place);
  Keep({.bytes = kFloatBytes * scheme.KeptFloats(model, rows, InsideFeatures(model, place.kind)) +
                 MaskBytes(rows, model.d_model(), model.dropout())},
       FULL, layer);
}

// Inner rows, with GELU also before the activation, and the mask of activation dropout.
ActivationBytes InnerRows(const ModelSpec& model, int64_t rows) {
  return {.bytes = MaskBytes(rows, model.ffn_dim(), model.activation_dropout()),
          .operands = rows * model.ffn_dim() * (model.activation() == GELU ? 2 : 1)};
}

// Features of the widest operand rows that native norms want in float32: norms behind products and
// before others read rows in operand type.
int64_t ConvertedFeatures(const ModelSpec& model) {
  int64_t features = 0;
  for (const SublayerKind kind : {SublayerKind::kSelfAttention, SublayerKind::kFeedForward}) {
    const SublayerScheme scheme = MakeSublayerScheme(model, {LabelledStack(model), 0, kind});
    if (scheme.output_norm) features = std::max<int64_t>(features, model.d_model());
    if (scheme.inner_norm) features = std::max(features, InsideFeatures(model, kind));
  }
  return features;
}

// `rows` of queries, `key_rows` of keys and values. Context and one log-sum a head are kept at
// every level, queries, keys and values can be made again. Deferred: gradient and input of q, k, v
// together (of q alone in cross-attention, whose keys and values come from rows that all layers
// share) and of the output.
void AddAttentionMemory(const ModelSpec& model, const SublayerPlace& place, int64_t rows,
                        int64_t key_rows, Layer& layer) {
  const int64_t d = model.d_model();
  KeepJoin(model, place, rows, layer);
  Keep({.bytes = kFloatBytes * rows * model.num_heads(), .operands = rows * d}, FULL, layer);
  Keep({.operands = (rows + 2 * key_rows) * d}, SELECTIVE_GEMM, layer);
  RepeatProducts(2 * (rows + 2 * key_rows) * d * d, SELECTIVE_GEMM, layer);
  if (place.kind == SublayerKind::kCrossAttention) {
    if (key_rows == 0) return;  // the capacity is still open: nothing to attend to
    AddPending(rows, d, 4, layer);
    AddPending(key_rows, 2 * d, 1, layer);
    layer.pending.push_back({.rows = key_rows, .columns = d, .shared = true});
  } else {
    AddPending(rows, 3 * d, 1, layer);
    AddPending(rows, d, 3, layer);
  }
}

void AddFeedForwardMemory(const ModelSpec& model, const SublayerPlace& place, int64_t rows,
                          Layer& layer) {
  const int64_t d = model.d_model(), f = model.ffn_dim();
  KeepJoin(model, place, rows, layer);
  Keep(InnerRows(model, rows), SELECTIVE_FFN, layer);
  RepeatProducts(2 * rows * d * f, SELECTIVE_FFN, layer);
  AddPending(rows, d, 2, layer);
  AddPending(rows, f, 2, layer);
}

// The stream and the first branch's input count in the layer behind.
void AddEmbeddingMemory(const ModelSpec& model, int64_t rows, Layer& layer) {
  Keep({.bytes = MaskBytes(rows, model.d_model(), model.dropout())}, kNever, layer);
  if (HasEmbeddingNorm(model)) {
    Keep({.bytes = kFloatBytes * NormStateFloats(model, rows, model.d_model())}, kNever, layer);
  }
  if (model.positions() != LEARNED) {
    layer.constant_bytes = kFloatBytes * int64_t{model.max_positions()} * model.d_model();
  }
}

// DLCL: the output of every layer is kept with all others to the end, with the first one also what
// entered the stack.
void AddHistoryMemory(const ModelSpec& model, int64_t rows, Layer& layer) {
  if (!KeepsHistory(model)) return;
  const int64_t streams = (layer.index == 0 ? 2 : 1) * kFloatBytes * rows * model.d_model();
  Keep({.bytes = streams + kFloatBytes * NormStateFloats(model, rows, model.d_model())}, kNever,
       layer);
  layer.constant_bytes += streams;  // gradients, once a rank
}

// The gradient of the last hidden rows, which the loss leaves on its way forward; buffers of the
// loss.
void AddOutputMemory(const ModelSpec& model, int64_t rows, Layer& layer) {
  Keep({.bytes = kFloatBytes * rows * model.d_model()}, kNever, layer);
  const int64_t vocabulary = model.vocabulary_size();
  const int64_t logits = std::min(native::kCpuLogitRows, rows) * vocabulary;
  // float32 logits become their gradient in place. A GPU has two figures a row.
  constexpr int64_t kStep = native::kLogitAlignment;
  const int64_t gpu_rows = native::LogitRows(vocabulary, rows);
  const int64_t stride = (vocabulary + kStep - 1) / kStep * kStep;
  layer.device_loss = {
      {.bytes = kFloatBytes * gpu_rows * (stride + 2), .copies = gpu_rows * stride}};
  layer.native_loss = {{.bytes = logits * kFloatBytes, .copies = logits}};
  // LibTorch: log-probabilities, targets, and four steps from the one to the other. Then the
  // table's gradient, with log-probabilities, targets and the gradient of logits alive.
  layer.library_loss = {
      {.bytes = 6 * kFloatBytes * logits, .copies = logits},
      {.bytes = kFloatBytes * (3 * logits + vocabulary * model.d_model()), .copies = logits}};
}

// Returns what the layers of a stack share. Temporaries are those of LibTorch's kernels, where an
// expression's live until its end; attention works sentence by sentence and is left out. Dropout's
// decisions are made on the host in float64: upper bounds for a GPU.
Stack DescribeStack(const ModelSpec& model, int64_t rows, int64_t sentences) {
  const int64_t d = model.d_model(), f = model.ffn_dim();
  Stack stack{.stream_elements = rows * d};
  // Three operands of the width and three more for dq, dk, dv, one of the inner width, two streams;
  // with other operands, those of the stream. B2T holds what entered a layer, RESIDUAL_DUAL a
  // stream that passes all of a stack.
  const int64_t streams = 2 + int{ReadsLayerInput(model)} + int{HasSecondStream(model)};
  stack.workspace = {.bytes = streams * kFloatBytes * rows * d,
                     .operands = rows * (6 * d + f),
                     .copies = rows * d};
  // The input of the widest weight gradient, packed; rows that norms convert, and sums over rows.
  const int64_t packed_rows = (rows + kPackedRows - 1) / kPackedRows * kPackedRows;
  const int64_t converted = ConvertedFeatures(model);
  const bool is_over_rows = model.norm() == BATCH_NORM;
  const int64_t over_rows = is_over_rows ? std::max(converted, d) : 0;
  const int64_t gpu_converted = is_over_rows ? converted : 0;
  stack.kernel_buffers = {.bytes = kFloatBytes * rows * over_rows,
                          .operands = packed_rows * std::max(f, d),
                          .widened = rows * converted};
  // Sums over runs of rows, two of each column; attention's figure of each row and head.
  // LibTorch's flash attention, of 16 bits, makes context and gradients anew and sums the queries'
  // in float32, each sentence's rows padded. On a GPU only BATCH_NORM has its rows converted.
  const int64_t sums =
      2 * ((rows + native::kNormRunRows - 1) / native::kNormRunRows) * std::max(f, d);
  stack.device_scratch = {
      .bytes = kFloatBytes * (std::max(sums, rows * model.num_heads()) + rows * over_rows),
      .copies = 4 * rows * d,
      .widened =
          rows * (gpu_converted + model.num_heads()) + (rows + native::kFlashTile * sentences) * d};
  stack.reader_temporaries = {
      // Backward pass of a norm: the gradient's copy and six steps to that of the sum.
      {.bytes = 7 * kFloatBytes * rows * d},
      // Through RELU: product, its signs as bits and as numbers, what remains.
      {.bytes = (3 * kFloatBytes + 1) * rows * f},
      // Weight gradient: both operands in float32, and the product.
      {.bytes = kFloatBytes * f * d, .widened = rows * (f + d)}};
  stack.temporaries = stack.reader_temporaries;
  if (model.activation_dropout() > 0) {
    stack.temporaries.push_back(
        {.bytes = (kDoubleBytes + 2 * kFloatBytes) * rows * f, .widened = rows * f});
  }
  stack.recomputed[SELECTIVE_FFN] = stack.recomputed[SELECTIVE_GEMM] = InnerRows(model, rows);
  stack.recomputed[SELECTIVE_GEMM].operands += 3 * rows * d;
  // The stream in both types, and once more as the first branch's input.
  stack.recomputed[FULL] = {.bytes = kFloatBytes * rows * d, .copies = 2 * rows * d};
  return stack;
}

std::string WhyInOnePiece(const ModelSpec& model) {
  if (HasSecondStream(model)) {
    return "model.residual: RESIDUAL_DUAL: a second stream passes all layers of a stack";
  }
  return KeepsHistory(model) ? "model.residual: DLCL: a layer reads all before it" : "";
}

class Builder {
 public:
  Builder(const ModelSpec& model, const MicrobatchSpec& batch) : model_(model), batch_(batch) {}

  Inventory Build() && {
    constexpr int64_t kNumberBytes = 4, kPadding = 256;  // of arrays of a batch
    inventory_.one_piece = WhyInOnePiece(model_);
    for (const bool source : {true, false}) {
      if (source && !IsEncoderDecoder(model_)) continue;
      inventory_.stacks.push_back(DescribeStack(model_, Rows(source), batch_.max_sentences()));
      // A row has a token, a position, a pair and a label, and stands twice in an order of rows,
      // each with an index and a start.
      inventory_.batch_bytes +=
          kNumberBytes * (10 * Rows(source) + batch_.max_sentences()) + kPadding;
      AddEmbedding(source);
      const int layers = LayersOf(model_, source ? 0 : LabelledStack(model_));
      for (int i = 0; i < layers; ++i) AddStackLayer(source, i);
    }
    AddOutput();
    return std::move(inventory_);
  }

 private:
  int64_t Width() const { return model_.d_model(); }
  // Rows of the source, or of the target, which are the only ones of a model of one stack.
  int64_t Rows(bool source) const {
    return source ? batch_.max_source_tokens() : batch_.max_target_tokens();
  }
  // The place of those rows' stack in Inventory::stacks.
  int StackIndex(bool source) const { return !source && IsEncoderDecoder(model_) ? 1 : 0; }
  BoundaryTensor Boundary(std::string name, bool source) const {
    return {std::move(name), {Rows(source), Width()}, kStreamType, true, StackIndex(source)};
  }

  Layer& AddLayer(LayerKind kind, std::string name, int index) {
    Layer& layer = inventory_.layers.emplace_back();
    layer.kind = kind;
    layer.name = std::move(name);
    layer.index = index;
    layer.position = static_cast<int>(inventory_.layers.size()) - 1;
    return layer;
  }

  void AddEmbedding(bool source) {
    const int stack = source ? 0 : LabelledStack(model_);
    const LayerKind kind = source ? LayerKind::kSourceEmbedding : LayerKind::kTargetEmbedding;
    const std::string name = StackName(stack);
    Layer& layer = AddLayer(kind, name + "embedding", 0);
    if (!source && IsEncoderDecoder(model_)) layer.inputs = {Boundary("encoder_output", true)};
    layer.looks_up = true;
    AddEmbeddingMemory(model_, Rows(source), layer);
    AddTable(kind);
    if (model_.positions() == LEARNED) {
      AddParameter({.name = name + "embed_positions.weight",
                    .shape = {model_.max_positions(), Width()},
                    .role = Role::kPosition,
                    .initial_std = 1.0 / std::sqrt(static_cast<double>(Width()))});
    }
    if (HasEmbeddingNorm(model_)) AddNorm(name + kEmbeddingNorm, Width());
  }

  // A decoder layer of a model of two stacks has an attention more, whose keys and values come from
  // the encoder's output, which is kept once per rank.
  void AddStackLayer(bool source, int index) {
    const int stack = source ? 0 : LabelledStack(model_);
    const int64_t rows = Rows(source);
    Layer& layer = AddLayer(source ? LayerKind::kEncoder : LayerKind::kDecoder,
                            absl::StrCat(StackName(stack), "layers.", index), index);
    layer.stack = StackIndex(source);
    layer.forward_flops = LayerFlops(source);
    layer.recompute_flops[FULL] = layer.forward_flops;
    const SublayerPlace attention{stack, index, SublayerKind::kSelfAttention};
    AddAttentionMemory(model_, attention, rows, rows, layer);
    AddAttention(attention);
    if (SublayersPerLayer(model_, stack) == 3) {
      const SublayerPlace cross{stack, index, SublayerKind::kCrossAttention};
      AddAttentionMemory(model_, cross, rows, Rows(/*source=*/true), layer);
      AddAttention(cross);
      layer.inputs = {Boundary("encoder_output", /*source=*/true)};
    }
    layer.inputs.push_back(Boundary(std::string(kHidden), source));
    const SublayerPlace block{stack, index, SublayerKind::kFeedForward};
    AddFeedForwardMemory(model_, block, rows, layer);
    AddFeedForward(block);
    AddHistoryMemory(model_, rows, layer);
    AddHistory(stack, index);
    if (index + 1 < LayersOf(model_, stack)) return;
    // The norm behind the last layer is never computed again.
    Keep({.bytes = kFloatBytes * StackEndFloats(model_, rows)}, kNever, layer);
    AddStackEnd(stack);
  }

  double LayerFlops(bool source) const {
    const auto mean = [&](int64_t rows) {  // length of a sentence
      return static_cast<double>(rows) / std::max(1, batch_.max_sentences());
    };
    const double d = Width(), f = model_.ffn_dim(), t = Rows(source);
    if (source || !IsEncoderDecoder(model_)) {
      return 2 * t * (4 * d * d + 2 * d * f) + 4 * t * mean(Rows(source)) * d;
    }
    const double s = Rows(/*source=*/true);
    return 2 * t * (6 * d * d + 2 * d * f) + 2 * s * 2 * d * d +
           4 * t * (mean(Rows(false)) + mean(Rows(true))) * d;
  }

  void AddOutput() {
    Layer& layer = AddLayer(LayerKind::kOutput, "output", 0);
    layer.forward_flops = 2.0 * Rows(false) * Width() * model_.vocabulary_size();
    layer.computes_loss = true;
    layer.inputs = {Boundary(std::string(kHidden), /*source=*/false)};
    AddOutputMemory(model_, Rows(false), layer);
    AddTable(LayerKind::kOutput);
  }

  // Parameters of the layer that was added last, in flat order.
  void AddParameter(Parameter parameter) {
    parameter.offset = offset_;
    offset_ += parameter.NumElements();
    inventory_.layers.back().parameters.push_back(static_cast<int>(inventory_.parameters.size()));
    inventory_.parameters.push_back(std::move(parameter));
  }

  // A tied matrix is appended where it is used first and referred to from later layers by index.
  void AddTable(LayerKind use) {
    const std::string name = EmbeddingName(model_, use);
    const std::vector<Parameter>& all = inventory_.parameters;
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const Parameter& p) { return p.name == name; });
    if (found != all.end()) {
      inventory_.layers.back().parameters.push_back(static_cast<int>(found - all.begin()));
      return;
    }
    const bool output = use == LayerKind::kOutput;
    const double gain = !output ? EmbeddingGain(model_, StackOfKind(model_, use))
                        : OutputStartsAtZero(model_) ? 0.0
                                                     : 1.0;
    AddParameter({.name = name,
                  .shape = {model_.vocabulary_size(), Width()},
                  .role = Role::kEmbedding,
                  .initial_std = gain / std::sqrt(static_cast<double>(Width())),
                  .zero_row = output ? -1 : kPadRow});
  }

  void AddWeight(const std::string& block, Role role, int64_t out, int64_t in, double gain) {
    AddParameter({.name = absl::StrCat(block, ".weight"),
                  .shape = {out, in},
                  .role = role,
                  .initial_std = gain * std::sqrt(2.0 / static_cast<double>(in + out))});
  }

  void AddBias(const std::string& block, Role role, int64_t out) {
    if (!HasBiases(model_)) return;
    AddParameter({.name = absl::StrCat(block, ".bias"), .shape = {out}, .role = role});
  }

  void AddNorm(const std::string& block, int64_t features) {
    AddVector(absl::StrCat(block, ".weight"), Role::kNormGain, features, 1.0);
    if (!HasNormBiases(model_)) return;
    AddVector(absl::StrCat(block, ".bias"), Role::kNormBias, features, 0.0);
  }

  void AddVector(std::string name, Role role, int64_t size, double value) {
    AddParameter({.name = std::move(name),
                  .shape = {size},
                  .role = role,
                  .initial_value = static_cast<float>(value)});
  }

  // Matrices of equal input stand together, so that one product makes them all.
  void AddAttention(const SublayerPlace& place) {
    const std::string block = BlockName(place);
    const bool apart = place.kind == SublayerKind::kCrossAttention;  // queries: of another stream
    const auto add_weight = [&](const char* name, Role role, bool last) {
      AddWeight(block + name, role, Width(), Width(), InitialGain(model_, place, role, last));
    };
    add_weight(".q_proj", Role::kQuery, /*last=*/false);
    if (apart) AddBias(block + ".q_proj", Role::kQuery, Width());
    add_weight(".k_proj", Role::kKey, /*last=*/false);
    add_weight(".v_proj", Role::kValue, /*last=*/false);
    if (!apart) AddBias(block + ".q_proj", Role::kQuery, Width());
    AddBias(block + ".k_proj", Role::kKey, Width());
    AddBias(block + ".v_proj", Role::kValue, Width());
    add_weight(".out_proj", Role::kAttentionOutput, /*last=*/true);
    AddBias(block + ".out_proj", Role::kAttentionOutput, Width());
    AddScheme(place);
  }

  void AddFeedForward(const SublayerPlace& place) {
    const auto add = [&](const char* name, int64_t out, int64_t in, bool last) {
      const std::string block = LayerPrefix(place.stack, place.layer) + name;
      AddWeight(block, Role::kFeedForward, out, in,
                InitialGain(model_, place, Role::kFeedForward, last));
      AddBias(block, Role::kFeedForward, out);
    };
    add("fc1", model_.ffn_dim(), Width(), /*last=*/false);
    add("fc2", Width(), model_.ffn_dim(), /*last=*/true);
    AddScheme(place);
  }

  // Norms, factors and shifts of one sub-layer (trainer/model/scheme.h).
  void AddScheme(const SublayerPlace& place) {
    const SublayerScheme scheme = MakeSublayerScheme(model_, place);
    const std::string block = BlockName(place);
    const auto add_scale = [&](std::string name, int64_t size, double value) {
      AddVector(std::move(name), Role::kResidualScale, size, value);
    };
    const auto add_shift = [&](const char* name) {
      AddVector(block + name, Role::kResidualShift, 1, 0.0);
    };
    if (scheme.input_norm) AddNorm(block + kNorm, Width());
    if (scheme.inner_norm) AddNorm(block + kInnerNorm, InsideFeatures(model_, place.kind));
    if (scheme.output_norm) AddNorm(block + kOutputNorm, Width());
    if (scheme.end_norm) AddNorm(EndNormName(place, scheme), Width());
    if (scheme.head_scale) add_scale(block + kHeadScale, model_.num_heads(), 1.0);
    if (scheme.stream_scale != 0) add_scale(block + kStreamScale, Width(), scheme.stream_scale);
    if (scheme.branch_scale == BranchScale::kOfSublayer ||
        (scheme.branch_scale == BranchScale::kOfLayer &&
         place.kind == SublayerKind::kSelfAttention)) {
      add_scale(BranchScaleName(place, scheme), 1, scheme.initial_branch_scale);
    }
    if (!scheme.shifts) return;
    add_shift(kInputShift);
    if (place.kind != SublayerKind::kFeedForward) return;
    add_shift(kMiddleShift);
    add_shift(kInnerShift);
  }

  void AddHistory(int stack, int index) {
    if (!KeepsHistory(model_)) return;
    const std::string name = LayerPrefix(stack, index);
    const int layers = LayersOf(model_, stack);
    AddVector(name + kHistoryWeight, Role::kResidualScale, index + 1, 1.0 / (index + 1));
    AddNorm(name + kHistoryNorm, Width());
    if (index + 1 < layers) return;
    AddVector(StackName(stack) + kHistoryWeight, Role::kResidualScale, layers + 1,
              1.0 / (layers + 1));
  }

  void AddStackEnd(int stack) {
    const std::string name = StackName(stack);
    switch (EndOf(model_)) {
      case StackEnd::kNothing:
        return;
      case StackEnd::kNorm:
      case StackEnd::kSecondNorm:
        return AddNorm(name + kFinalNorm, Width());
      case StackEnd::kScaledShift:
        if (stack == 0) AddVector(name + kFinalScale, Role::kResidualScale, 1, 1.0);
        return AddVector(name + kFinalShift, Role::kResidualShift, 1, 0.0);
    }
  }

  const ModelSpec& model_;
  const MicrobatchSpec& batch_;
  Inventory inventory_;
  int64_t offset_ = 0;
};

}  // namespace

Inventory Describe(const ModelSpec& model, const MicrobatchSpec& microbatch) {
  return Builder(model, microbatch).Build();
}

}  // namespace deepnet
