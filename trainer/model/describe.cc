// Layers are appended in chain order, each with its costs and, through ParameterList, with its
// parameters.
//
// Costs are those of a full microbatch (S source, T target positions) whose sentences have mean
// length S/B and T/B: two operations per multiply-add of each matrix product, attention over whole
// sentences (a decoder's causal half is not subtracted: kernels may or may not skip it).

#include "trainer/model/describe.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "trainer/model/architecture.h"
#include "trainer/model/describe_parameters.h"
#include "trainer/model/scheme.h"

namespace deepnet {
namespace {

constexpr int kBytesOfFloat = 4;  // residual stream, statistics
constexpr char kStreamType[] = "float32";

// Bytes of a dropout mask, one bit a feature; none where nothing is dropped.
int64_t MaskBytes(int64_t rows, int64_t features, double rate) {
  return rate > 0 ? rows * ((features + 7) / 8) : 0;
}

struct Builder {
  const ModelSpec& model;
  const MicrobatchSpec& batch;
  Inventory inventory = {};
  ParameterList parameters = {model, inventory};

  int64_t Width() const { return model.width(); }
  int64_t FfnWidth() const { return model.ffn_width(); }
  int64_t SourceRows() const { return batch.source_tokens(); }
  int64_t TargetRows() const { return batch.target_tokens(); }
  double SourceLength() const { return Mean(SourceRows()); }
  double TargetLength() const { return Mean(TargetRows()); }
  double Mean(int64_t rows) const {
    return static_cast<double>(rows) / std::max(1, batch.sentences());
  }

  Layer& AddLayer(LayerKind kind, std::string name, int index);

  void KeepJoin(Layer& layer, const Sublayer& sublayer, int64_t rows) const;
  void KeepEmbedding(Layer& layer, int64_t rows) const;
  void KeepAttention(Layer& layer, const Sublayer& sublayer, int64_t rows, int64_t key_rows) const;
  void KeepFeedForward(Layer& layer, const Sublayer& sublayer, int64_t rows) const;
  void KeepStackEnd(Layer& layer, int64_t rows) const;
  void KeepHistory(Layer& layer, int64_t rows);
  void KeepEmbeddingNorm(Layer& layer, int64_t rows) const;

  BoundaryTensor Memory() const { return {"memory", {SourceRows(), Width()}, kStreamType, true}; }
  BoundaryTensor Hidden(int64_t rows) const {
    return {"hidden", {rows, Width()}, kStreamType, true};
  }

  void AddSourceEmbedding();
  void AddEncoderLayer(int index);
  void AddTargetEmbedding();
  void AddTargetLayer(int index);
  double TargetLayerFlops() const;
  void AddOutput();
  void AddExtras();
};

Layer& Builder::AddLayer(LayerKind kind, std::string name, int index) {
  Layer& layer = inventory.layers.emplace_back();
  layer.kind = kind;
  layer.name = std::move(name);
  layer.index = index;
  layer.position = static_cast<int>(inventory.layers.size()) - 1;
  return layer;
}

// An embedding keeps its stack's stream, the first branch's input and its dropout's mask.
void Builder::KeepEmbedding(Layer& layer, int64_t rows) const {
  layer.activation_bytes =
      kBytesOfFloat * rows * Width() + MaskBytes(rows, Width(), model.dropout());
  layer.activation_operands = rows * Width();
  if (model.positions() != LEARNED) {
    layer.constant_bytes = kBytesOfFloat * int64_t{model.max_positions()} * Width();
  }
}

void Builder::KeepEmbeddingNorm(Layer& layer, int64_t rows) const {
  if (!HasEmbeddingNorm(model)) return;
  layer.activation_bytes += kBytesOfFloat * NormStateFloats(model, rows, Width());
}

void Builder::AddSourceEmbedding() {
  Layer& layer = AddLayer(LayerKind::kSourceEmbedding, "encoder.embedding", 0);
  KeepEmbedding(layer, SourceRows());
  KeepEmbeddingNorm(layer, SourceRows());
  parameters.AddSourceEmbedding();
}

void Builder::AddTargetEmbedding() {
  const std::string name = StackName(LabelledStack(model)) + "embedding";
  Layer& layer = AddLayer(LayerKind::kTargetEmbedding, name, 0);
  if (HasMemory(model)) layer.inputs = {Memory()};
  KeepEmbedding(layer, TargetRows());
  KeepEmbeddingNorm(layer, TargetRows());
  parameters.AddTargetEmbedding();
}

// What one sub-layer keeps of `rows` rows besides its products: what its scheme needs in float32,
// one bit a feature for dropout.
void Builder::KeepJoin(Layer& layer, const Sublayer& s, int64_t rows) const {
  const int64_t inside = s.kind == SublayerKind::kFeedForward ? FfnWidth() : Width();
  layer.activation_bytes += kBytesOfFloat * s.scheme.KeptFloats(model, rows, inside) +
                            MaskBytes(rows, Width(), model.dropout());
}

// Attention keeps q, context and one log-sum a head of `rows` rows, k and v of `key_rows` rows.
void Builder::KeepAttention(Layer& layer, const Sublayer& s, int64_t rows, int64_t key_rows) const {
  KeepJoin(layer, s, rows);
  layer.activation_bytes += kBytesOfFloat * rows * model.heads();
  layer.activation_operands += 2 * (rows + key_rows) * Width();
}

// The feed-forward block keeps its hidden rows, with GELU also before the activation.
void Builder::KeepFeedForward(Layer& layer, const Sublayer& s, int64_t rows) const {
  KeepJoin(layer, s, rows);
  layer.inner_bytes = MaskBytes(rows, FfnWidth(), model.activation_dropout());
  layer.activation_bytes += layer.inner_bytes;
  layer.activation_operands += rows * FfnWidth() * (model.activation() == GELU ? 2 : 1);
}

// What stands behind a stack belongs to no sub-layer and is never computed again.
void Builder::KeepStackEnd(Layer& layer, int64_t rows) const {
  const int64_t kept = kBytesOfFloat * StackEndFloats(model, rows);
  layer.lasting_bytes += kept;
  layer.activation_bytes += kept;
}

// DLCL: the output of every layer is kept with all others to the end, with the first one also what
// entered the stack.
void Builder::KeepHistory(Layer& layer, int64_t rows) {
  if (!KeepsHistory(model)) return;
  inventory.one_piece = "model.residual: DLCL: a layer reads all before it";
  const int64_t stream = kBytesOfFloat * rows * Width();
  const int64_t streams = layer.index == 0 ? 2 : 1;
  const int64_t kept = streams * stream + kBytesOfFloat * NormStateFloats(model, rows, Width());
  layer.lasting_bytes += kept;
  layer.activation_bytes += kept;
  layer.constant_bytes += streams * stream;  // gradients, once a rank
}

// Products: q, k, v, out (4 d^2), feed-forward (2 d f), scores and mixing of attention.
void Builder::AddEncoderLayer(int index) {
  const std::string name = absl::StrCat("encoder.layers.", index);
  Layer& layer = AddLayer(LayerKind::kEncoder, name, index);
  const double d = Width(), f = FfnWidth(), s = SourceRows();
  layer.forward_flops = 2 * s * (4 * d * d + 2 * d * f) + 4 * s * SourceLength() * d;
  const Sublayer attention = MakeSublayer(model, 0, index, SublayerKind::kSelfAttention);
  const Sublayer block = MakeSublayer(model, 0, index, SublayerKind::kFeedForward);
  KeepAttention(layer, attention, SourceRows(), SourceRows());
  KeepFeedForward(layer, block, SourceRows());
  layer.inputs = {Hidden(SourceRows())};
  parameters.AddAttention(attention);
  parameters.AddFeedForward(block);
  KeepHistory(layer, SourceRows());
  parameters.AddHistory(0, index);
  if (index + 1 < model.encoder_layers()) return;
  KeepStackEnd(layer, SourceRows());
  parameters.AddStackEnd(0);
}

// Of one stack: as an encoder layer, on the target rows. Of two: with a second attention whose keys
// and values come from the memory. The memory itself is kept once per rank: the planner adds it.
void Builder::AddTargetLayer(int index) {
  const int stack = LabelledStack(model);
  const std::string name = absl::StrCat(StackName(stack), "layers.", index);
  Layer& layer = AddLayer(LayerKind::kDecoder, name, index);
  layer.forward_flops = TargetLayerFlops();
  const Sublayer attention = MakeSublayer(model, stack, index, SublayerKind::kSelfAttention);
  const Sublayer block = MakeSublayer(model, stack, index, SublayerKind::kFeedForward);
  KeepAttention(layer, attention, TargetRows(), TargetRows());
  parameters.AddAttention(attention);
  if (HasMemory(model)) {
    const Sublayer cross = MakeSublayer(model, stack, index, SublayerKind::kCrossAttention);
    KeepAttention(layer, cross, TargetRows(), SourceRows());
    parameters.AddAttention(cross);
    layer.inputs = {Memory()};
  }
  layer.inputs.push_back(Hidden(TargetRows()));
  KeepFeedForward(layer, block, TargetRows());
  parameters.AddFeedForward(block);
  KeepHistory(layer, TargetRows());
  parameters.AddHistory(stack, index);
  if (index + 1 < LayersOf(model, stack)) return;
  KeepStackEnd(layer, TargetRows());
  parameters.AddStackEnd(stack);
}

double Builder::TargetLayerFlops() const {
  const double d = Width(), f = FfnWidth(), s = SourceRows(), t = TargetRows();
  if (!HasMemory(model)) return 2 * t * (4 * d * d + 2 * d * f) + 4 * t * TargetLength() * d;
  return 2 * t * (6 * d * d + 2 * d * f) + 2 * s * 2 * d * d +
         4 * t * (TargetLength() + SourceLength()) * d;
}

// Kept: the gradient of the last hidden rows, which the loss leaves on its way forward. Logits live
// in the workspace.
void Builder::AddOutput() {
  Layer& layer = AddLayer(LayerKind::kOutput, "output", 0);
  layer.forward_flops = 2.0 * TargetRows() * Width() * model.vocabulary_size();
  layer.activation_bytes = kBytesOfFloat * TargetRows() * Width();
  layer.inputs = {Hidden(TargetRows())};
  parameters.AddOutput();
}

// B2T holds what entered a layer, RESIDUAL_DUAL a stream that passes all of a stack. Norms behind
// products and before others read rows in operand type.
void Builder::AddExtras() {
  StackExtras& extras = inventory.extras;
  extras.streams = int{ReadsLayerInput(model)} + int{HasSecondStream(model)};
  for (const SublayerKind kind : {SublayerKind::kSelfAttention, SublayerKind::kFeedForward}) {
    const SublayerScheme scheme = MakeSublayerScheme(model, LabelledStack(model), 0, kind);
    const int64_t inside = kind == SublayerKind::kFeedForward ? FfnWidth() : Width();
    if (scheme.output_norm) extras.converted = std::max(extras.converted, Width());
    if (scheme.inner_norm) extras.converted = std::max(extras.converted, inside);
  }
  if (model.norm() == BATCH_NORM) extras.over_rows = std::max(extras.converted, Width());
  if (!HasSecondStream(model)) return;
  inventory.one_piece =
      "model.residual: RESIDUAL_DUAL: a second stream passes all layers of a stack";
}

}  // namespace

Inventory Describe(const ModelSpec& model, const MicrobatchSpec& microbatch) {
  Builder builder{.model = model, .batch = microbatch};
  if (HasMemory(model)) {
    builder.AddSourceEmbedding();
    for (int i = 0; i < model.encoder_layers(); ++i) builder.AddEncoderLayer(i);
  }
  builder.AddTargetEmbedding();
  const int layers = LayersOf(model, LabelledStack(model));
  for (int i = 0; i < layers; ++i) builder.AddTargetLayer(i);
  builder.AddOutput();
  builder.AddExtras();
  return std::move(builder.inventory);
}

}  // namespace deepnet
